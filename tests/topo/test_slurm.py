# SPDX-License-Identifier: BSD-3-Clause
import pytest
from tests.machines.trees import GIB, two_sockets, write

from weft.topo import discovery, slurm
from weft.topo.plan import PlanOptions, plan

MIB = 1 << 20
#: What a batch script saw: 4 CPUs of each of 4 nodes, --mem-per-cpu=4.
JOB = {
    "SLURM_JOB_ID": "200505",
    "SLURMD_NODENAME": "gnode10",
    "SLURM_CPUS_ON_NODE": "4",
    "SLURM_JOB_CPUS_PER_NODE": "4(x4)",
    "SLURM_MEM_PER_CPU": "4",
}
NODE = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}


@pytest.mark.parametrize(
    ("environ", "limit"),
    [
        ({}, None),
        (JOB, (16 * MIB, "SLURM_MEM_PER_CPU and SLURM_CPUS_ON_NODE")),
        (NODE | {"SLURM_MEM_PER_NODE": "2000"}, (2000 * MIB, "SLURM_MEM_PER_NODE")),
        (NODE | {"SLURM_MEM_PER_NODE": "3G"}, (3 * GIB, "SLURM_MEM_PER_NODE")),  # as the user wrote it for srun
        (
            NODE | {"SLURM_MEM_PER_GPU": "1024", "SLURM_GPUS_ON_NODE": "2"},
            (2 * GIB, "SLURM_MEM_PER_GPU and SLURM_GPUS_ON_NODE"),
        ),
        (NODE | {"SLURM_MEM_PER_NODE": "0"}, None),  # --mem=0: all of the node's
        (NODE | {"SLURM_MEM_PER_NODE": "much"}, None),
        (NODE | {"SLURM_MEM_PER_NODE": "9" * 5000}, None),
        (NODE | {"SLURM_MEM_PER_CPU": "4"}, None),  # of how many CPUs is not known
        ({"SLURM_JOB_ID": "7", "SLURM_MEM_PER_NODE": "2000"}, None),  # salloc's shell, on the login node
    ],
)
def test_what_the_job_was_given_of_this_node(environ, limit):
    assert slurm.memory_limit(environ) == limit


@pytest.fixture
def sockets(tmp_path):
    return two_sockets(tmp_path)


def test_workers_share_it_and_the_plan_says_so(sockets):
    made = plan(discovery.read(sockets, environ=NODE | {"SLURM_MEM_PER_NODE": "2048"}), PlanOptions("numa"))
    assert [worker.memory_nbytes for worker in made.workers] == [GIB, GIB]
    assert made.workers[0].reasons["memory"] == "1/2 of the limit by SLURM_MEM_PER_NODE"
    assert made.notes[0] == "memory: 2 GiB, by SLURM_MEM_PER_NODE"


@pytest.mark.parametrize(
    ("group_gib", "by"), [(1, "/sys/fs/cgroup/memory.max"), (2, "/sys/fs/cgroup/memory.max"), (3, "SLURM_MEM_PER_NODE")]
)
def test_the_tighter_of_it_and_the_control_group_counts(sockets, group_gib, by):
    mounts = "30 23 0:26 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw"
    files = {"proc/self/cgroup": "0::/", "proc/self/mountinfo": mounts, "sys/fs/cgroup/memory.max": group_gib * GIB}
    write(sockets, files)
    allowed = discovery.read(sockets, environ=NODE | {"SLURM_MEM_PER_NODE": "2048"}).allowed
    assert (allowed.memory_nbytes, allowed.memory_by) == (min(group_gib, 2) * GIB, by)


def test_as_much_as_the_machine_has_is_no_limit(sockets):
    allowed = discovery.read(sockets, environ=NODE | {"SLURM_MEM_PER_NODE": "1T"}).allowed
    assert (allowed.memory_nbytes, allowed.why) == (None, ())


def test_the_environment_of_this_process_is_not_that_of_a_recorded_machine(sockets, monkeypatch):
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)
    assert discovery.read(sockets).allowed.memory_nbytes is None
