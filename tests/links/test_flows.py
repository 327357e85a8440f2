# SPDX-License-Identifier: BSD-3-Clause
"""How many connections a value comes over: as many as bring more."""

from __future__ import annotations

import pytest

from weft.links.flows import Flows, Trial, worth

MiB = 1 << 20


def bring(trial: Trial, nbytes: int, cap: float, port: float, now_s: float = 0.0) -> list[int]:
    """Bring pieces of 1 MiB over flows with a cap each, behind a port; return the numbers of flows over time."""
    counts = [trial.count]
    for _ in range(nbytes // MiB):
        now_s += MiB / min(port, cap * trial.count)
        trial.landed(MiB, now_s)
        if trial.count != counts[-1]:
            counts.append(trial.count)
    return counts


def test_flows_are_added_while_they_bring_more() -> None:
    flows = Flows()
    assert bring(flows.begin("a", 200 * MiB), 200 * MiB, 6 * MiB, 24 * MiB) == [1, 2, 4, 8, 4]
    assert flows.best("a") == 4
    assert bring(flows.begin("a", 200 * MiB), 200 * MiB, 6 * MiB, 24 * MiB, 100.0) == [4]
    assert bring(flows.begin("a", 200 * MiB), 200 * MiB, 6 * MiB, 24 * MiB, 1000.0) == [4, 8, 4]
    assert flows.best("b") == 1


def test_a_port_that_is_full_is_tried_once() -> None:
    flows = Flows()
    assert bring(flows.begin("a", 100 * MiB), 100 * MiB, 24 * MiB, 24 * MiB) == [1, 2, 1]
    assert bring(flows.begin("a", 100 * MiB), 100 * MiB, 24 * MiB, 24 * MiB) == [1]


def test_a_value_that_others_wait_for_is_no_experiment() -> None:
    flows = Flows()
    trial = flows.begin("a", 200 * MiB)
    for i in range(20):
        trial.landed(MiB, 0.1 * i, passed_on=True)
    assert trial.count == 1
    for i in range(20, 30):
        trial.landed(MiB, 0.1 * i)
    assert trial.count == 2


@pytest.mark.parametrize(("may_try", "port", "nbytes"), [(False, 0.0, 200), (True, 7.0 * MiB, 200), (True, 0.0, 8)])
def test_nothing_is_tried_where_nothing_is_to_be_gained(may_try: bool, port: float, nbytes: int) -> None:
    trial = Flows().begin("a", nbytes * MiB, may_try=may_try, port_Bps=port)
    assert bring(trial, nbytes * MiB, 6 * MiB, 24 * MiB) == [1]


def test_flows_that_cannot_be_had_are_done_without() -> None:
    flows = Flows()
    trial = flows.begin("a", 200 * MiB)
    bring(trial, 10 * MiB, 6 * MiB, 24 * MiB)
    assert trial.count == 2
    trial.refused(1)
    assert bring(trial, 190 * MiB, 6 * MiB, 24 * MiB) == [1]
    assert flows.best("a") == 1


def test_a_slow_flow_does_not_take_the_last_pieces() -> None:
    assert worth(0.0, 8 * MiB, 0.0, 8 * MiB)
    assert worth(1.0 * MiB, MiB, 4.0 * MiB, 100 * MiB)
    assert not worth(0.1 * MiB, MiB, 4.0 * MiB, 10 * MiB)
