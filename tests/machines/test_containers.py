# SPDX-License-Identifier: BSD-3-Clause
"""The doctor finds the piece that is missing in each container, and nothing that is not."""

import pytest
from tests.machines import containers

from weft.doctor.checks import examine
from weft.doctor.finding import Level


@pytest.mark.parametrize("make", containers.FOUND, ids=lambda make: make.__name__)
def test_what_is_missing_is_found(tmp_path, make):
    found = {check: finding for check, finding in examine(make(tmp_path)).items() if finding.level > Level.OK}
    expected = containers.FOUND[make]
    assert {check: str(finding.level) for check, finding in found.items()} == {
        check: level for check, (level, _) in expected.items()
    }
    for check, (_, remedy) in expected.items():
        assert found[check].remedy.startswith(remedy), check


def test_a_pod_that_shares_everything_has_no_remedy(tmp_path):
    found = examine(containers.pod_that_shares_with_ucx(tmp_path))["container"]
    assert found.remedy == ""
    assert "/proc/1/comm: pause, so all containers of this pod share their processes" in found.evidence


def test_cma_in_a_container_needs_a_capability(tmp_path):
    assert examine(containers.cma(tmp_path))["ptrace"].remedy.endswith("--cap-add=SYS_PTRACE")


def test_a_rootless_container_shares_memory_within_its_user_namespace(tmp_path):
    assert examine(containers.with_ucx(containers.rootless(tmp_path)))["container"].remedy.endswith(
        "as the same user in one user namespace"
    )
