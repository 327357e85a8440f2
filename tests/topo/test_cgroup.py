# SPDX-License-Identifier: BSD-3-Clause
import pytest
from tests.machines.trees import GIB, two_sockets, write

from weft.topo import discovery

V2 = "30 23 0:26 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate"
V1 = """\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset
35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"""


def allowed(root, own, mounts, files):
    write(root, {"proc/self/cgroup": own, "proc/self/mountinfo": mounts})
    write(root, {f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    return discovery.read(root).allowed


def test_affinity(tmp_path):
    made = discovery.read(two_sockets(tmp_path, allowed="2-3", mems="0")).allowed
    assert (made.cpus, made.nodes) == ((2, 3), (0,))
    assert made.why == (
        "CPUs: 2-3 of 0-15, by affinity",
        "NUMA nodes: 0 of 0-1, by Mems_allowed_list",
    )


def test_version_2_the_tightest_of_the_groups_above_counts(tmp_path):
    files = {
        "job/cpu.max": "400000 100000",
        "job/step/cpu.max": "max 100000",
        "job/memory.max": f"{8 * GIB}",
        "job/step/memory.max": f"{16 * GIB}",
        "job/step/cpuset.cpus.effective": "0-7",
        "job/step/cpuset.mems.effective": "0",
    }
    made = allowed(two_sockets(tmp_path), "0::/job/step", V2, files)
    assert (made.cpus, made.nodes) == (tuple(range(8)), (0,))
    assert (made.cpu_quota, made.memory_nbytes) == (4.0, 8 * GIB)
    assert made.why == (
        "CPUs: 0-7 of 0-15, by /sys/fs/cgroup/job/step/cpuset.cpus.effective",
        "NUMA nodes: 0 of 0-1, by /sys/fs/cgroup/job/step/cpuset.mems.effective",
        "CPU time: 4 CPUs, by /sys/fs/cgroup/job/cpu.max",
        "memory: 8 GiB, by /sys/fs/cgroup/job/memory.max",
    )


def test_version_1_beside_version_2(tmp_path):
    own = "4:memory:/slurm/job\n3:cpuset:/slurm\n1:cpu,cpuacct:/\n0::/"
    files = {
        "memory/memory.limit_in_bytes": 2**63 - 4096,
        "memory/slurm/job/memory.limit_in_bytes": 4 * GIB,
        "cpuset/slurm/cpuset.cpus": "8-11",
        "cpuset/slurm/cpuset.mems": "1",
        "cpu,cpuacct/cpu.cfs_quota_us": 150000,
        "cpu,cpuacct/cpu.cfs_period_us": 100000,
        "unified/cpu.max": "100000 100000",
    }
    made = allowed(two_sockets(tmp_path), own, V1, files)
    assert (made.cpus, made.nodes, made.cpu_quota, made.memory_nbytes) == ((8, 9, 10, 11), (1,), 1.5, 4 * GIB)


def test_no_limits_are_no_limits(tmp_path):
    files = {
        "memory/memory.limit_in_bytes": 2**63 - 4096,
        "cpu,cpuacct/cpu.cfs_quota_us": -1,
        "cpu,cpuacct/cpu.cfs_period_us": 100000,
        "cpuset/cpuset.cpus": "0-15",
    }
    made = allowed(two_sockets(tmp_path), "4:memory:/\n1:cpu,cpuacct:/\n3:cpuset:/", V1, files)
    assert (len(made.cpus), made.cpu_quota, made.memory_nbytes, made.why) == (16, None, None, ())


@pytest.mark.parametrize(
    ("own", "mounts"),
    [
        ("0::/docker/abc/job", V2.replace("0:26 /", "0:26 /docker/abc")),  # the mount shows the container's group
        ("0::/docker/abc", V2.replace("0:26 /", "0:26 /docker/abc")),
        ("0::/../../outside", V2),  # a group outside the namespace
        ("0::/vanished/group", V2),
        ("0::/elsewhere", V2.replace("0:26 /", "0:26 /docker/abc")),
    ],
)
def test_containers(tmp_path, own, mounts):
    made = allowed(two_sockets(tmp_path), own, mounts, {"memory.max": GIB})
    assert made.memory_nbytes == GIB


def test_a_quota_above_the_cpus_is_not_reported(tmp_path):
    made = allowed(two_sockets(tmp_path, allowed="0"), "0::/", V2, {"cpu.max": "200000 100000"})
    assert [line for line in made.why if line.startswith("CPU time")] == []


@pytest.mark.parametrize(
    "files",
    [
        {"proc/self/cgroup": "noise"},
        {"proc/self/mountinfo": "noise"},
        {"proc/self/mountinfo": "a b c d /sys/fs/cgroup - "},
        {"proc/self/mountinfo": "a b c d /sys/fs/cgroup - cgroup cgroup"},
        {"proc/self/mountinfo": f"a b c / /{'x' * 300} - cgroup2 cgroup2 rw"},
        {"proc/self/mountinfo": "a b c / /\0 - cgroup2 cgroup2 rw"},
        {"proc/self/status": "Cpus_allowed_list:\tnoise"},
        {"sys/fs/cgroup/cpu.max": "100000 0"},
        {"sys/fs/cgroup/cpu.max": "100000 noise"},
        {"sys/fs/cgroup/memory.max": "9" * 5000},
    ],
    ids=range(10),
)
def test_noise_is_no_limit(tmp_path, files):
    write(two_sockets(tmp_path), {"proc/self/cgroup": "0::/", "proc/self/mountinfo": V2} | files)
    made = discovery.read(tmp_path).allowed
    assert (len(made.cpus), made.cpu_quota, made.memory_nbytes) == (16, None, None)
