# SPDX-License-Identifier: BSD-3-Clause
from typing import Any

BOKEH_THEME: Any
env: Any
