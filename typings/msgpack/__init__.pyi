# SPDX-License-Identifier: BSD-3-Clause
from typing import Any

def loads(packed: Any, **kwargs: Any) -> Any: ...
