# SPDX-License-Identifier: BSD-3-Clause
from typing import Any

from distributed.deploy.spec import SpecCluster

class LocalCluster(SpecCluster):
    def __init__(self, **kwargs: Any) -> None: ...
