# SPDX-License-Identifier: BSD-3-Clause
"""A preload of Dask workers: binds the process to ``WEFT_CPUS`` and ``WEFT_MEMORY_NODES``, lists such as ``0-3,8``.

A worker imports its preloads before it listens: before UCX is loaded, and before task threads exist. A plugin would
come after both. `TopologyCluster` sets the variables; ``WEFT_CPUS=0-3 dask worker --preload weft.dask.place`` does the
same by hand.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading

from weft.topo import cpulist
from weft.topo.bind import bind

CPUS, NODES = "WEFT_CPUS", "WEFT_MEMORY_NODES"

# The nanny ends its worker. Ctrl-C at a terminal reaches both, and a worker that ends by itself logs an error.
if multiprocessing.parent_process() is not None and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.SIG_IGN)

bind(cpulist.parse(os.environ.get(CPUS, "")), cpulist.parse(os.environ.get(NODES, "")))
