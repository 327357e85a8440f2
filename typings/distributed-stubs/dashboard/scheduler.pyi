# SPDX-License-Identifier: BSD-3-Clause
from typing import Any

def template_variables(scheduler: Any) -> dict[str, Any]: ...
