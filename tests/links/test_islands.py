# SPDX-License-Identifier: BSD-3-Clause
"""Which hosts are islands, what goes over a link in a row, and where the tasks of a graph begin."""

from __future__ import annotations

import itertools

import pytest

from weft.links import Backlog, LinkModel, Need, Place, fetch_seconds, islands, split

MiB = 1 << 20


def world(*hosts: str, rates: dict[tuple[str, str], float]) -> LinkModel:
    """Two workers on each host; hosts are named by a letter of their rack and a number."""
    model = LinkModel()
    for host in hosts:
        for i in range(2):
            model.place(f"{host}.{i}", Place(host))
    for a in hosts:
        for b in hosts:
            for _ in range(5 if a != b else 0):
                model.observe(f"{a}.0", f"{b}.0", 8 * MiB, 8 * MiB / rates[min(a[0], b[0]), max(a[0], b[0])], 0.0)
    return model


def test_hosts_of_fast_links_are_an_island() -> None:
    fast, slow = 1.2e9, 12.5e6
    model = world("a1", "b1", "a2", "b2", rates={("a", "a"): fast, ("b", "b"): fast, ("a", "b"): slow})
    assert islands(model, model.workers(), 0.0) == {"a1": 0, "b1": 1, "a2": 0, "b2": 1}


def test_where_only_memory_is_faster_each_host_is_one() -> None:
    model = world("a1", "a2", rates={("a", "a"): 12.5e6})
    assert islands(model, model.workers(), 0.0) == {"a1": 0, "a2": 1}


def test_alike_links_make_one_island() -> None:
    model = LinkModel()
    for host in "abc":
        model.place(host, Place(host))
        for other in "abc".replace(host, ""):
            model.observe(host, other, 8 * MiB, 0.5, 0.0)
    assert set(islands(model, model.workers(), 0.0).values()) == {0}
    assert islands(model, [], 0.0) == {}


def test_of_too_many_hosts_each_is_one() -> None:
    names = [f"h{i}" for i in range(65)]
    assert islands(LinkModel(), names, 0.0) == {name: i for i, name in enumerate(names)}


def test_what_was_decided_is_before_the_next() -> None:
    backlog = Backlog()
    assert backlog.wait_s("a to b", 10.0) == 0
    backlog.book("a to b", 0.5, 10.0)
    backlog.book("a to b", 0.5, 10.25)
    assert backlog.wait_s("a to b", 10.25) == pytest.approx(0.75)
    assert backlog.wait_s("b to a", 10.25) == 0
    assert backlog.wait_s("a to b", 12.0) == 0
    backlog.book("a to b", 1e9, 12.0)
    assert backlog.wait_s("a to b", 12.0) == 10


def test_a_transfer_waits_for_those_before_it() -> None:
    model = world("a1", "a2", rates={("a", "a"): 10e6})
    needs = [Need(10_000_000, ["a1.0"])]
    alone = fetch_seconds(model, needs, "a2.0", 0.0)
    assert fetch_seconds(model, needs, "a2.0", 0.0, lambda a, b: {("a1", "a2"): 0.25}[a, b]) == alone + 0.25
    beside = fetch_seconds(model, needs, "a1.1", 0.0)
    assert fetch_seconds(model, needs, "a1.1", 0.0, lambda *_: 9.0) == beside, "memory is not waited for"


def test_what_meets_is_kept_together() -> None:
    pairs = [(0, 3), (1, 2), (4, 7), (5, 6)]
    of = split(range(8), pairs, [2, 2])
    assert all(of[a] == of[b] for a, b in pairs)
    assert of == [0, 0, 0, 0, 1, 1, 1, 1]


def test_a_row_of_neighbours_is_cut_once() -> None:
    """As a stencil's, whatever order they are to run in."""
    order = [9, 8, 10, 7, 11, 6, 5, 0, 1, 4, 2, 3]
    of = dict(zip(order, split(order, [range(i, i + 3) for i in range(10)], [4, 4]), strict=True))
    row = [of[i] for i in range(12)]
    assert sum(a != b for a, b in itertools.pairwise(row)) == 1
    assert row.count(0) == 6


@pytest.mark.parametrize("joined", [[], [range(i, i + 2) for i in range(11)], [range(12)]])
def test_else_by_their_order_and_as_threads_are(joined: list[range]) -> None:
    assert split(range(12), joined, [2, 1]) == [0] * 8 + [1] * 4


def test_few_tasks_stay_on_one_island() -> None:
    assert split("abcd", [], [4, 4]) == [0] * 4
    assert split("abcd", [], [4, 4], first=1) == [1] * 4
    assert split("abcde", [], [4, 4, 4], first=1) == [1, 1, 1, 2, 2]
