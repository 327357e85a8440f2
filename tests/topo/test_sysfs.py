# SPDX-License-Identifier: BSD-3-Clause
import os

import pytest
from tests.machines.trees import GIB, two_sockets, write

from weft.topo import discovery, sysfs
from weft.topo.model import Cpu, NumaNode


def test_two_sockets(tmp_path):
    made = discovery.read(two_sockets(tmp_path))
    assert len(made.cpus) == 16
    assert made.cpus[13] == Cpu(13, core=5, socket=1, node=1, l3=4)
    assert made.nodes[1] == NumaNode(1, (4, 5, 6, 7, 12, 13, 14, 15), 32 * GIB)
    assert made.memory_nbytes == 64 * GIB
    assert made.allowed.cpus == tuple(range(16))
    assert made.allowed.why == ()


def test_cpus_that_are_offline_are_left_out(tmp_path):
    two_sockets(tmp_path)
    write(tmp_path, {"sys/devices/system/cpu/online": "0-7"})
    assert [cpu.id for cpu in discovery.read(tmp_path).cpus] == list(range(8))


def test_older_name_of_siblings(tmp_path):
    write(tmp_path, {f"sys/devices/system/cpu/cpu{i}/topology/thread_siblings_list": "0-1" for i in range(2)})
    assert [cpu.core for cpu in discovery.read(tmp_path).cpus] == [0, 0]


def test_a_kernel_without_numa_topology_or_caches(tmp_path):
    write(tmp_path, {"sys/devices/system/cpu/online": "0-1", "proc/meminfo": "MemTotal: 1024 kB"})
    for i in range(2):
        (tmp_path / f"sys/devices/system/cpu/cpu{i}").mkdir()
    made = discovery.read(tmp_path)
    assert made.nodes == (NumaNode(0, (0, 1), 2**20),)
    assert made.cpus == (Cpu(0, 0, 0, 0, None), Cpu(1, 1, 0, 0, None))


def test_the_only_node_has_all_memory_whatever_it_says(tmp_path):
    """A guest whose memory is plugged in after the start counts little of it in its node."""
    node = "sys/devices/system/node/node0"
    write(
        tmp_path, {f"{node}/cpulist": "0", f"{node}/meminfo": "Node 0 MemTotal: 1 kB", "proc/meminfo": "MemTotal: 4 kB"}
    )
    assert sysfs.read_nodes(tmp_path) == (NumaNode(0, (0,), 4096),)


@pytest.mark.parametrize("text", ["-1", "", "x", "1 2"])
def test_what_is_no_number_is_not_known(tmp_path, text):
    write(tmp_path, {"file": text})
    assert sysfs.number(tmp_path / "file") is None
    assert sysfs.number(tmp_path / "missing") is None
    assert sysfs.text(tmp_path) is None


def test_an_empty_tree_has_nothing(tmp_path):
    made = discovery.read(tmp_path)
    assert made.cpus == made.gpus == made.nics == made.interconnects == ()


def test_this_machine():
    made = discovery.read()
    assert made.allowed.cpus == tuple(sorted(os.sched_getaffinity(0)))
    assert {cpu.node for cpu in made.cpus} <= {node.id for node in made.nodes}
    assert made.memory_nbytes > 0
