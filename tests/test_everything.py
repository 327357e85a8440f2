# SPDX-License-Identifier: BSD-3-Clause
"""What may be skipped where everything is installed that can be."""

import pytest
from scripts import everything


@pytest.mark.parametrize(
    ("why", "lacks"),
    [
        ("CuPy is not installed", "a GPU"),
        ("no CUDA device", "a GPU"),
        ("UCX reaches host memory only", "a GPU"),
        ("no IPv6 on the loopback", "what this kernel or machine has"),
        ("UCX 1.23 notices", "another UCX"),
        ("scale_many was not measured", "a record that was not taken"),
        ("PyTorch is not installed", None),
        ("no cloud-init: apt-get install cloud-init", None),
        ("no Slurm: slurmctld not found; apt-get install slurmctld slurmd slurm-client munge", None),
        ("could not import 'prometheus_client': No module named 'prometheus_client'", None),
    ],
)
def test_only_what_cannot_be_installed_may_lack(why, lacks):
    assert everything.reason(why) == lacks
