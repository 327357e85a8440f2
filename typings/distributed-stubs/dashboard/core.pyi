# SPDX-License-Identifier: BSD-3-Clause
from collections.abc import Callable, Mapping
from typing import Any

def BokehApplication(
    applications: Mapping[str, Callable[..., None]],
    server: Any,
    prefix: str = "/",
    template_variables: Mapping[str, Any] | None = None,
) -> Any: ...
