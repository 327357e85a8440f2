# SPDX-License-Identifier: BSD-3-Clause
"""A preload of Dask workers: go where ``WEFT_CPUS`` and ``WEFT_MEMORY_NODES`` say, lists such as ``0-3,8``.

A worker imports its preloads before it listens, so before UCX is loaded and before it has threads for tasks; a
plugin would come after both. `TopologyCluster` sets the variables; ``WEFT_CPUS=0-3 dask worker --preload
weft.dask.place`` does the same by hand.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading

from weft.topo import cpulist
from weft.topo.bind import bind

CPUS, NODES = "WEFT_CPUS", "WEFT_MEMORY_NODES"

# A nanny ends its worker. At a terminal Ctrl-C reaches both, and a worker that ends by itself meanwhile complains.
if multiprocessing.parent_process() is not None and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.SIG_IGN)

bind(cpulist.parse(os.environ.get(CPUS, "")), cpulist.parse(os.environ.get(NODES, "")))
