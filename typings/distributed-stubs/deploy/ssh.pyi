# SPDX-License-Identifier: BSD-3-Clause
from typing import Any

from distributed.deploy.spec import SpecCluster

def SSHCluster(hosts: list[str], **kwargs: Any) -> SpecCluster: ...
