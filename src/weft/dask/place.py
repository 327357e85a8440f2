# SPDX-License-Identifier: BSD-3-Clause
"""A preload of Dask workers: go where ``WEFT_CPUS`` and ``WEFT_MEMORY_NODES`` say, lists such as ``0-3,8``.

A worker imports its preloads before it listens, so before UCX is loaded and before it has threads for tasks; a
plugin would come after both. `TopologyCluster` sets the variables; ``WEFT_CPUS=0-3 dask worker --preload
weft.dask.place`` does the same by hand.
"""

from __future__ import annotations

import os

from weft.topo import cpulist
from weft.topo.bind import bind

CPUS, NODES = "WEFT_CPUS", "WEFT_MEMORY_NODES"

bind(cpulist.parse(os.environ.get(CPUS, "")), cpulist.parse(os.environ.get(NODES, "")))
