# SPDX-License-Identifier: BSD-3-Clause
from collections.abc import Callable
from typing import Any

def delayed(obj: Callable[..., Any], pure: bool | None = None) -> Callable[..., Any]: ...
