# SPDX-License-Identifier: BSD-3-Clause
from typing import Any

msgpack_opts: dict[str, Any]
