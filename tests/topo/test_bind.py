# SPDX-License-Identifier: BSD-3-Clause
import logging
import os
import platform
from pathlib import Path

import pytest

from weft.topo import bind as bind_module
from weft.topo.bind import bind

CPU = min(os.sched_getaffinity(0))

THREADS = """
    import os, sys, threading
    from weft.topo.bind import bind
    event = threading.Event()
    before = [threading.Thread(target=event.wait) for _ in range(2)]
    for thread in before: thread.start()
    bind((int(sys.argv[1]),), ())
    after = threading.Thread(target=event.wait)
    after.start()
    tasks = os.listdir("/proc/self/task")
    print(len(tasks), {tuple(os.sched_getaffinity(int(task))) for task in tasks})
    event.set()
"""

MEMORY = """
    import mmap, threading
    from weft.topo.bind import bind
    bind((), (0,))
    def touch():
        block = mmap.mmap(-1, 1 << 20)
        block[0] = 1
        print(sum("prefer:0" in line for line in open("/proc/self/numa_maps")) > 0)
    thread = threading.Thread(target=touch)
    thread.start()
    thread.join()
"""


def test_all_threads_are_bound(spawn):
    assert spawn(THREADS, str(CPU)).line() == f"4 {{({CPU},)}}"


@pytest.mark.skipif(not Path("/proc/self/numa_maps").exists(), reason="the kernel shows no memory policies")
def test_memory_is_preferred_in_threads_to_come(spawn):
    assert spawn(MEMORY).line() == "True"


def test_nothing_asked_for_changes_nothing():
    before = os.sched_getaffinity(0)
    bind((), ())
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(
    ("cpus", "nodes", "message"),
    [
        ((1000,), (), "could not bind this process to CPUs 1000: [Errno 22] Invalid argument"),
        ((), (63,), "could not prefer memory of node 63: [Errno 22] set_mempolicy: Invalid argument"),
    ],
)
def test_what_the_kernel_refuses_is_a_warning(cpus, nodes, message, caplog):
    with caplog.at_level(logging.WARNING, "weft"):
        bind(cpus, nodes)
    assert caplog.messages == [message]


def test_an_architecture_whose_number_is_not_known(monkeypatch, caplog):
    monkeypatch.setattr(platform, "machine", lambda: "pdp11")
    bind_module.bind((), (0,))
    assert caplog.messages == ["could not prefer memory of node 0: the number of set_mempolicy on pdp11 is not known"]
