# SPDX-License-Identifier: BSD-3-Clause
"""Memory that was lent and is lent on: one copy for a host, whoever fetches it from whom, and whoever dies."""

from __future__ import annotations

import functools

import pytest
from tests.nodes import MIB, lend_along, row_of


@pytest.fixture
def nodes(spawn):
    return functools.partial(row_of, spawn)


def test_third_and_fourth_get_the_same_pages(nodes):
    a, b, c, d = row = nodes(4)
    b.meet(d)
    lend_along(row)
    b.lend(d)
    assert {node.ask("file") for node in row} == {a.ask("file")}
    assert {node.ask("sum") for node in row} == {str(3 * 8 * MIB)}
    assert [node.ask("live") for node in (b, c, d)] == ["0"] * 3  # nobody has a block of its own
    assert [node.ask("borrowed") for node in (b, c, d)] == [str(8 * MIB), str(8 * MIB), str(16 * MIB)]
    assert [b.ask("lent", "c"), b.ask("lent", "d")] == [str(8 * MIB)] * 2
    # Whoever lets go first: the owner has its block back when the last one has.
    a.ask("drop")
    for node in (b, c):
        node.ask("drop")
        a.ask("reuse", 8)
        assert (a.ask("pinned"), d.ask("sum")) == ("8", str(3 * 8 * MIB))
    d.ask("drop")
    for node in (c, b):  # leases come back one by one
        node.ask("crank")
    assert a.ask("until", "pinned", 0) == "0"
    assert a.ask("live") == "0"


def test_a_part_of_a_loan_is_lent_on(nodes):
    a, b, c = nodes(3)
    lend_along([a, b])
    b.lend(c, "frames")
    assert c.ask("sum") == str(3 * 8 * MIB)
    assert b.ask("lent", "c") == str(8 * MIB)


def test_what_the_borrower_wrote_to_is_copied(nodes):
    a, b, c = nodes(3)
    lend_along([a, b])
    b.ask("write", 5 * MIB + 1, 7)
    b.lend(c)
    assert b.ask("lent", "c") == "0"
    assert (a.ask("sum"), b.ask("sum"), c.ask("sum")) == (str(24 * MIB), str(24 * MIB + 4), str(24 * MIB + 4))
    # Only what it wrote to.
    b.lend(c, "frames")
    assert b.ask("lent", "c") == str(4 * MIB)
    assert c.ask("sum") == str(24 * MIB + 4)


def test_lent_back_to_the_owner(nodes):
    a, b = nodes(2)
    lend_along([a, b])
    b.lend(a)
    assert a.ask("sum") == str(24 * MIB)
    assert a.ask("live") == str(8 * MIB)
    a.ask("drop")
    b.ask("drop")
    b.ask("crank")
    assert a.ask("until", "pinned", 0) == "0"
    assert a.ask("live") == "0"


def test_a_killed_owner_leaves_what_is_held_and_no_more(nodes):
    a, b, c = row = nodes(3)
    before = [node.ask("files") for node in (b, c)]
    lend_along(row)
    a.kill()
    assert b.ask("until", "peers_left", 1) == "1"
    # A dead owner's memory can be lent on too.
    b.lend(c)
    b.ask("drop")
    assert c.ask("sum") == str(24 * MIB)
    c.ask("drop")
    for _ in range(3):
        b.ask("crank")
        c.ask("crank")
    assert [node.ask("files") for node in (b, c)] == before


def test_descriptors_go_with_the_last_loan(nodes):
    _, b, c = row = nodes(3)
    before = c.ask("files")
    lend_along(row)
    assert c.ask("files") != before
    c.ask("drop")
    b.ask("crank")
    c.ask("crank")
    assert c.ask("files") == before
    b.lend(c)  # handed over anew
    assert (b.ask("lent", "c"), c.ask("sum")) == (str(16 * MIB), str(24 * MIB))


def test_who_dropped_it_no_longer_has_it_resident(nodes):
    """Whatever is lent on, or still is: Dask spills until resident memory has shrunk."""
    a, b, c = row = nodes(3)
    before = [int(node.ask("resident")) for node in row]
    lend_along(row, mib=64)
    for node in row:
        assert node.ask("sum") == str(3 * 64 * MIB)  # touches every page
    for node in (a, b):
        node.ask("drop")
    a.ask("trim")
    assert a.ask("pinned") == "64"
    after = [int(node.ask("resident")) for node in row]
    assert [64 * round((x - y) / 64) for x, y in zip(after, before, strict=True)] == [0, 0, 64]
    assert c.ask("sum") == str(3 * 64 * MIB)
    c.ask("drop")
    b.ask("crank")
    assert a.ask("until", "pinned", 0) == "0"


@pytest.mark.parametrize("dropped", [False, True])
def test_a_kill_between_owner_and_reader(nodes, dropped):
    """The owner has its lease back, and still leaves the block alone; not the one beside it."""
    a, b, c = row = nodes(3)
    lend_along([a, b], value=1)
    lend_along(row)
    if dropped:
        a.ask("drop")
    b.kill()
    assert a.ask("until", "peers_left", 0) == "0"
    a.ask("drop")
    a.ask("reuse", 8)
    assert c.ask("sum") == str(24 * MIB)
    assert a.ask("pinned") == "8"
    c.ask("until", "peers_left", 0)
    assert c.ask("sum") == str(24 * MIB)
    c.ask("drop")
    assert a.ask("until", "pinned", 0) == "0"
    assert a.ask("live") == "0"


def test_a_kill_before_the_reader_looks(nodes):
    """What lies unread at the third when the second dies is delivered, and right."""
    a, b, c = row = nodes(3)
    lend_along(row)
    b.ask("lend", "c")  # the segment is there: this needs no answer
    b.kill()
    assert a.ask("until", "peers_left", 0) == "0"
    c.ask("drop")
    a.ask("drop")
    a.ask("reuse", 8)
    c.ask("recv", "b")
    assert c.ask("sum") == str(24 * MIB)
    assert a.ask("pinned") == "8"


def test_a_killed_reader_gives_everything_back(nodes):
    a, b, c = row = nodes(3)
    lend_along(row)
    for node in (a, b):
        node.ask("drop")
    c.kill()
    assert b.ask("until", "peers_left", 1) == "1"
    assert a.ask("until", "pinned", 0) == "0"
    assert a.ask("live") == "0"
