# SPDX-License-Identifier: BSD-3-Clause
"""What a dead process had lent: it stays for who holds it, and the rest goes back to the kernel."""

from __future__ import annotations

import functools

import pytest
from tests.nodes import MIB, lend_along, row_of

#: MiB of a block, and how many there are of it in one segment.
BLOCK, COUNT = 8, 12


@pytest.fixture
def nodes(spawn):
    return functools.partial(row_of, spawn)


def total(value):
    return str(value * BLOCK * MIB)


def lend_many(owner, *readers):
    """Have the readers borrow a segment's blocks in turns: block `i` is full of `i`."""
    for i in range(COUNT):
        owner.ask("make", i, BLOCK)
        owner.lend(readers[i % len(readers)])


def lose(owner, *survivors):
    owner.kill()
    for survivor in survivors:
        assert survivor.ask("until_lost", owner.name) == "True"


def test_only_what_is_held_stays(nodes):
    a, b, c = nodes(3)
    a.meet(c)
    lend_many(a, b, c)
    b.ask("keep", 2)  # block 4
    c.ask("keep", 5)  # and the last
    assert c.ask("allocated") == str(BLOCK * COUNT)
    lose(a, b)
    assert b.ask("allocated") == str(BLOCK * COUNT)  # for all it knows, more was lent to c
    lose(a, c)
    assert [node.ask("allocated") for node in (b, c)] == [str(2 * BLOCK)] * 2
    assert [node.ask("sum") for node in (b, c)] == [total(4), total(11)]
    b.ask("drop")
    assert (c.ask("allocated"), c.ask("sum")) == (str(BLOCK), total(11))


def test_what_a_survivor_wrote_is_its_own(nodes):
    a, b = nodes(2)
    lend_many(a, b)
    b.ask("keep", 3)
    b.ask("write", 5 * MIB, 7)
    lose(a, b)
    assert (b.ask("allocated"), b.ask("sum")) == (str(BLOCK), str(int(total(3)) + 4))


def test_a_message_that_nobody_has_read_keeps_what_it_lends(nodes):
    a, b, c = nodes(3)
    a.meet(c)
    lend_many(a, b, c)
    a.ask("lend", "c")  # the last block, which went to c and is there no more
    c.ask("drop")
    b.ask("keep", 0)
    lose(a, b)
    c.ask("recv", "a")
    assert c.ask("sum") == total(11)
    lose(a, c)
    assert (c.ask("sum"), c.ask("allocated")) == (total(11), str(2 * BLOCK))


def test_so_does_one_from_a_survivor(nodes):
    a, b, c = row = nodes(3)
    lend_many(a, b)
    lend_along(row, value=3, mib=BLOCK)  # the segment is known at c
    c.ask("drop")
    b.ask("keep", 7)
    b.ask("lend", "c")
    b.ask("drop")
    lose(a, b)
    c.ask("recv", "b")
    assert c.ask("sum") == total(7)
    b.ask("wait")
    assert (c.ask("allocated"), c.ask("sum")) == (str(BLOCK), total(7))
    lose(b, c)
    assert (c.ask("allocated"), c.ask("sum")) == (str(BLOCK), total(7))


def test_what_was_lent_on_goes_with_its_last_holder(nodes):
    a, b, c = row = nodes(3)
    lend_many(a, b)
    lend_along(row, value=3, mib=BLOCK)
    b.ask("keep", 7)
    lose(a, b)
    assert b.ask("allocated") == str(2 * BLOCK)
    assert (b.ask("sum"), c.ask("sum")) == (total(7), total(3))
    c.ask("drop")
    b.ask("wait")  # the lease comes back to it
    assert (b.ask("allocated"), b.ask("sum")) == (str(BLOCK), total(7))


@pytest.mark.parametrize("owner", ["lives", "dies"])
def test_a_forked_child_keeps_what_it_sees(nodes, owner):
    a, b = nodes(2)
    lend_many(a, b)
    a.ask("drop")
    b.ask("fork")
    b.ask("keep", 3)
    if owner == "dies":
        lose(a, b)
    else:
        a.ask("wait")
        assert a.ask("pinned") == str(BLOCK * COUNT)  # every lease but one is over
        a.ask("reuse", BLOCK)
    assert b.ask("child_sum") == total(11)
    if owner == "lives":
        assert a.ask("until", "pinned", BLOCK) == str(BLOCK)
