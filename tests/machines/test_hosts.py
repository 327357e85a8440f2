# SPDX-License-Identifier: BSD-3-Clause
"""What the three commands say on each of eight machines; ``expected/NAME.txt`` has it whole, to be read.

After a change that is meant: ``python -m tests.machines.printed`` writes those files.
"""

import pytest
from tests.machines import hosts, matrices, printed

from weft.doctor.checks import examine
from weft.doctor.finding import Level, exit_code
from weft.topo import cpulist, nvidia_smi
from weft.topo.options import of
from weft.topo.plan import plan

FOUND = {
    "dgx1": (0, {}),
    "nd40": (
        1,
        {
            "open files": "note",
            "MTU": "note",
            "GPU driver": "error",
            "kernel headers": "warning",
            "IPoIB": "warning",
            "Azure's agent": "warning",
            "libucp with verbs": "error",
            "locked memory": "note",
        },
    ),
    "hgx_h100": (
        1,
        {
            "several UCX": "warning",
            "kernel headers": "note",
            "GPU memory to NIC": "warning",
            "nvidia-smi": "note",
            "RDMA ports": "note",
            "libucp with verbs": "error",
        },
    ),
    "epyc": (
        1,
        {
            "shared huge pages": "note",
            "NUMA balancing": "note",
            "clock": "note",
            "clock source": "warning",
            "MTU": "note",
        },
    ),
    "laptop": (0, {"open files": "note", "host name": "note"}),
    "container": (
        1,
        {
            "memory limit": "warning",
            "CPUs": "warning",
            "container": "note",
            "open files": "note",
            "clock": "note",
        },
    ),
    "slurm": (
        1,
        {
            "UCX variables": "note",
            "UCX settings": "warning",
            "memory limit": "note",
            "CPUs": "note",
            "ptrace": "note",
            "RDMA ports": "error",
            "IPoIB": "note",
            "locked memory": "error",
        },
    ),
    "arm": (0, {}),
}


#: What each worker gets: CPUs, memory's nodes, threads, GiB, NIC, UCX_NET_DEVICES. {} is the worker's number.
IPOIB = "enp1s0f0,ib0,ib1,ib2,ib3"
PLANNED = {
    "dgx1": [("0-19,40-59", (0,), 1, 64, f"mlx5_{i}", f"mlx5_{i}:1,{IPOIB}") for i in (0, 0, 2, 2)]
    + [("20-39,60-79", (1,), 1, 64, f"mlx5_{i}", f"mlx5_{i}:1,{IPOIB}") for i in (1, 1, 3, 3)],
    "nd40": [("0-19", (0,), 1, 42, "mlx5_0", "mlx5_0:1,eth0")] * 8,
    "hgx_h100": [
        (
            "56-111,168-223" if i > 3 else "0-55,112-167",
            (i // 4,),
            1,
            256,
            f"mlx5_{nic}",
            f"mlx5_{nic}:1,ens1,ib0,ib1,ib2,ib3,ib4,ib6,ib7",
        )
        for i, nic in enumerate((0, 1, 2, 3, 4, 6, 6, 7))  # the port of mlx5_5 is down
    ],
    "epyc": [(f"{16 * i}-{16 * i + 15},{16 * i + 128}-{16 * i + 143}", (i,), 16, 64, None, None) for i in range(8)],
    "laptop": [("0-15", (), 12, 16, None, None)],
    "container": [("0-3,8-11", (0,), 1, 0.5, None, None)],
    "slurm": [("24-31", (1,), 8, 32, None, None)],
    "arm": [("0-79", (), 80, 256, "rocep1s0", "rocep1s0:1,enp1s0")],
}


def test_what_is_printed_is_what_was_read_and_found_good(host):
    """The files are for reading; where this fails, read the new text before it is written there."""
    assert printed.text(host.machine, host.topology) == printed.file(host.name).read_text()


def test_where_workers_go(host):
    made = plan(host.topology, of(host.topology))
    assert [
        (
            cpulist.join(worker.cpus),
            worker.nodes,
            worker.threads,
            worker.memory_nbytes / hosts.GIB,
            worker.nic,
            worker.env.get("UCX_NET_DEVICES"),
        )
        for worker in made.workers
    ] == PLANNED[host.name]
    for worker in made.workers:
        assert {"cpus", "nodes", "threads", "memory", "nic", "transports"} <= {*worker.reasons}
        assert all(worker.reasons.values())


@pytest.mark.parametrize("host", ["dgx1"], indirect=True)
def test_a_dgx_1_has_the_links_that_nvidia_smi_tells_of(host):
    matrix = nvidia_smi.parse(matrices.DGX_1)
    told = [name.replace("ib", "mlx5_") for name in matrix.names]
    read = [[str(host.topology.between(a, b) or "X") for b in told] for a in told]
    assert read == [[*map(str, row)] for row in matrix.cells]


@pytest.mark.parametrize("host", ["dgx1"], indirect=True)
def test_each_worker_of_a_dgx_1_has_the_ipoib_of_its_card(host):
    made = plan(host.topology, of(host.topology, interface="ib"))
    assert [worker.interface for worker in made.workers] == ["ib0", "ib0", "ib2", "ib2", "ib1", "ib1", "ib3", "ib3"]
    assert made.workers[4].env["UCX_NET_DEVICES"] == "mlx5_1:1,ib1"
    assert made.workers[4].reasons["interface"] == "of those that begin with ib, the nearest that is up"
    for name in ("ib3", "enp1s0f0", "bond7"):
        workers = plan(host.topology, of(host.topology, interface=name)).workers
        assert {worker.interface for worker in workers} == {name}
        assert {worker.reasons.get("interface") for worker in workers} == {None}


def test_what_the_doctor_finds(host):
    found = examine(host.machine)
    code, expected = FOUND[host.name]
    assert {check: str(finding.level) for check, finding in found.items() if finding.level > Level.OK} == expected
    assert exit_code([finding.level for finding in found.values()]) == code
    for check, finding in found.items():
        assert finding.what, check
        assert finding.evidence, check
        assert "\n" not in finding.what + finding.remedy, check
        if finding.level >= Level.WARNING:
            assert finding.remedy, check
            assert finding.source, check


def test_a_laptop_says_of_gpus_and_infiniband_that_there_are_none(tmp_path):
    found = examine(hosts.laptop(tmp_path))
    said = {check: finding.what for check, finding in found.items()}
    gpu = [said[name] for name in ("GPU driver", "kernel headers", "GPU memory to NIC", "nvidia-smi")]
    assert gpu == ["no NVIDIA GPU on the PCI bus"] * 4
    rdma = [said[name] for name in ("RDMA devices", "RDMA ports", "IPoIB", "libucp with verbs")]
    assert rdma == ["no InfiniBand or RoCE device on the PCI bus"] * 4
    assert said["Azure's agent"] == "not an Azure machine"
    assert said["locked memory"] == "8 MiB may be locked; only RDMA needs more"
    levels = {str(found[name].level) for name in ("GPU driver", "RDMA devices", "Azure's agent", "locked memory")}
    assert levels == {"n/a"}
