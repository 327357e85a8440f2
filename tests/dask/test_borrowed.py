# SPDX-License-Identifier: BSD-3-Clause
"""Who counts memory that processes share, as the kernel tells it from outside."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.nodes import Node, lend_along, row_of

from weft.dask.memory import shared_pages
from weft.dask.memory.shared_pages import NOTHING, Borrowed, Reader, read

MIB = 1 << 20

MAPPING = """\
7f2e00000000-7f2e00800000 {rights} 00000000 00:2e 4711       {name}
Size:               8192 kB
KernelPageSize:        4 kB
Rss:                6144 kB
Pss:                1536 kB
Shared_Clean:          0 kB
Shared_Dirty:       4096 kB
Private_Clean:      1024 kB
Private_Dirty:      1024 kB
Anonymous:          1024 kB
THPeligible:           0
VmFlags: rd wr mr mw me nr {flags}
"""


@pytest.mark.parametrize(
    ("rights", "name", "flags", "expected"),
    [
        ("rw-p", "/#4711 (deleted)", "dd sd", Borrowed(4 * MIB, 6 * MIB)),
        ("rw-p", "/memfd:weft (deleted)", "dd", Borrowed(4 * MIB, 6 * MIB)),
        ("rw-p", "/#4711 (deleted)", "sd", Borrowed(9 * MIB // 2, 13 * MIB // 2)),
        ("rw-s", "/#4711 (deleted)", "sd", NOTHING),  # its own
        ("rw-p", "/tmp/x (deleted)", "dd", NOTHING),
        ("rw-p", "/#4711", "dd", NOTHING),
        ("rw-p", "", "dd", NOTHING),
    ],
)
def test_what_mappings_say(
    monkeypatch: pytest.MonkeyPatch, rights: str, name: str, flags: str, expected: Borrowed
) -> None:
    other = MAPPING.format(rights="r--p", name="/usr/lib/libc.so.6", flags="sd")
    text = other + MAPPING.format(rights=rights, name=name, flags=flags) + other
    monkeypatch.setattr(Path, "read_bytes", lambda path: text.encode())
    assert read(1) == expected
    text *= 2
    assert read(1) == Borrowed(2 * expected.resident, 2 * expected.mapped)


@pytest.mark.parametrize("text", [MAPPING.format(rights="rw-p", name="/#1 (deleted)", flags="dd")[:100], ""])
def test_what_is_cut_off_says_nothing(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(Path, "read_bytes", lambda path: text.encode())
    assert read(1) == NOTHING


def test_a_process_that_is_not_there_has_borrowed_nothing() -> None:
    assert read(2**22 + 1) == NOTHING


class Readings:
    """A clock that reading takes 10 ms of."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, takes_s: float = 0.01) -> None:
        self.now, self.count, self.takes_s = 0.0, 0, takes_s
        monkeypatch.setattr(shared_pages, "read", self.read)

    def __call__(self) -> float:
        return self.now

    def read(self, pid: Any) -> Borrowed:
        self.now += self.takes_s
        self.count += 1
        return Borrowed(self.count, 0)


def test_a_reading_holds_for_a_hundred_times_what_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Readings(monkeypatch)
    reader = Reader(clock)
    for _ in range(10):
        assert reader.read(1, 1000 * MIB).resident == 1
    clock.now += 0.99
    assert reader.read(1, 1000 * MIB).resident == 1
    clock.now += 0.02
    assert reader.read(1, 1000 * MIB).resident == 2


def test_a_reading_that_took_little_holds_for_some_of_dasks_own(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Readings(monkeypatch, takes_s=0.0002)
    reader = Reader(clock)
    for _ in range(100):  # 10 s
        reader.read(1, 1000 * MIB)
        clock.now += 0.1
    assert 10 <= clock.count <= 20


def test_a_process_that_grew_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(Readings(monkeypatch))
    sizes = [1000, 1010, 1020, 1010, 900, 900]
    assert [reader.read(1, size * MIB).resident for size in sizes] == [1, 1, 2, 2, 3, 3]
    assert reader.read(2, 900 * MIB).resident == 4


def test_a_small_process_is_not_read_anew_for_a_little(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(Readings(monkeypatch))
    assert [reader.read(1, size * MIB).resident for size in [100, 107, 93, 109]] == [1, 1, 1, 2]


def counted(node: Node) -> float:
    """What a node counts of what it borrowed, all of it touched, in MiB."""
    node.ask("flag")
    total = int(node.ask("borrowing"))
    return round((total - read(node.child.process.pid).mapped) / MIB, 1)


def told(node: Node) -> Borrowed:
    """Return what the kernel says of a node, from outside, which must be what the node finds in its own loans."""
    node.ask("flag")
    seen = read(node.child.process.pid)
    assert node.ask("counted_elsewhere") == str((seen.resident, seen.mapped))
    return seen


@pytest.mark.slow
def test_the_owner_counts_while_it_has_it(spawn: Any) -> None:
    a, b, c, d = row = row_of(spawn, 4)
    lend_along(row)
    for node in (b, c, d):
        assert told(node) == Borrowed(0, 8 * MIB)  # flagged from the beginning, untouched yet
        node.ask("sum")
        assert told(node) == Borrowed(8 * MIB, 8 * MIB)
    d.ask("write", 5 * MIB, 7)
    assert 6 * MIB <= told(d).mapped < 8 * MIB  # but for one page, which may be a huge one
    a.ask("drop")
    assert counted(b) == 0  # it keeps it warm
    a.ask("trim")
    shares = [counted(node) for node in (b, c, d)]
    assert [node.ask("counted_elsewhere") for node in (b, c, d)] == ["None"] * 3  # nobody says who counts it
    assert sum(shares) == pytest.approx(8, abs=2)
    assert shares[0] == pytest.approx(8 / 3, abs=1)
    b.ask("drop")
    c.ask("drop")
    d.ask("sum")  # a write takes a whole huge page out of its tables
    assert counted(d) == 8


@pytest.mark.slow
def test_the_owner_counts_again_what_it_uses_again(spawn: Any) -> None:
    a, b = row_of(spawn, 2)
    lend_along([a, b])
    b.ask("sum")
    a.ask("drop")
    a.ask("trim")
    assert counted(b) == 8
    b.ask("drop")
    assert a.ask("until", "pinned", 0) == "0"
    lend_along([a, b])
    b.ask("sum")
    assert counted(b) == 0


@pytest.mark.slow
def test_who_holds_a_dead_owner_s_memory_counts_it(spawn: Any) -> None:
    a, b, c = row = row_of(spawn, 3)
    lend_along(row)
    for node in (b, c):
        node.ask("sum")
    child = int(a.ask("fork_all"))  # it was given all that the owner had open
    try:
        assert [counted(b), counted(c)] == [0, 0]
        a.kill()
        assert [counted(b), counted(c)] == [4, 4]
    finally:
        os.kill(child, signal.SIGKILL)
    b.ask("drop")
    assert counted(c) == 8
