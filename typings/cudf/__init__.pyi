# SPDX-License-Identifier: BSD-3-Clause
from typing import Any

def from_pandas(obj: Any) -> Any: ...
