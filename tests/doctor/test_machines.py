# SPDX-License-Identifier: BSD-3-Clause
"""What is found on whole machines: every finding that is not ok, and no other."""

import pytest
from tests.doctor import machines

from weft.doctor.checks import examine
from weft.doctor.finding import Level, exit_code

FOUND = {
    "dgx1": (0, {}),
    "nd40": (
        2,
        {
            "open files": "note",
            "GPU driver": "error",
            "kernel headers": "warning",
            "IPoIB": "warning",
            "Azure's agent": "warning",
            "libucp with verbs": "warning",
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
            "libucp with verbs": "warning",
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
            "shared memory": "warning",
            "memory limit": "warning",
            "CPUs": "warning",
            "container": "note",
            "open files": "note",
            "clock": "note",
        },
    ),
    "slurm": (
        2,
        {
            "UCX variables": "note",
            "UCX settings": "warning",
            "CPUs": "note",
            "ptrace": "note",
            "RDMA ports": "error",
            "IPoIB": "note",
            "locked memory": "error",
        },
    ),
    "arm": (0, {}),
}


@pytest.mark.parametrize("name", machines.ALL)
def test_whole_machine(tmp_path, name):
    found = examine(machines.ALL[name](tmp_path))
    code, expected = FOUND[name]
    assert {check: str(finding.level) for check, finding in found.items() if finding.level is not Level.OK} == expected
    assert exit_code([finding.level for finding in found.values()]) == code
    for check, finding in found.items():
        assert finding.what, check
        assert finding.evidence, check
        assert "\n" not in finding.what + finding.remedy, check
        if finding.level >= Level.WARNING:
            assert finding.remedy, check
            assert finding.source, check


def test_a_laptop_says_of_gpus_and_infiniband_that_there_are_none(tmp_path):
    found = examine(machines.laptop(tmp_path))
    said = {check: finding.what for check, finding in found.items()}
    gpu = [said[name] for name in ("GPU driver", "kernel headers", "GPU memory to NIC", "nvidia-smi")]
    assert gpu == ["no NVIDIA GPU on the PCI bus"] * 4
    rdma = [said[name] for name in ("RDMA devices", "RDMA ports", "IPoIB", "libucp with verbs")]
    assert rdma == ["no InfiniBand or RoCE device on the PCI bus"] * 4
    assert said["Azure's agent"] == "not a machine of Azure's"
    assert said["locked memory"] == "8192 KiB may be locked; only RDMA needs more"
