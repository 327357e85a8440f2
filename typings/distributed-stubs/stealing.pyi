# SPDX-License-Identifier: BSD-3-Clause
LATENCY: float
fast_tasks: set[str]
