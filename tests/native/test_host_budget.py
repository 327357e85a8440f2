# SPDX-License-Identifier: BSD-3-Clause
"""All pools of a host keep little more idle memory than their processes had in use at once."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMBER = """
import os, sys
import numpy as np
from weft import _native

def joins():
    fd = os.open(sys.argv[1], os.O_RDWR)
    try:
        return _native.pool_join(fd)
    finally:
        os.close(fd)

def counted(key):
    return _native.pool_statistics()[key] >> 20

def other():
    with open("/proc/self/statm") as statm:
        _, resident, shared, *_ = map(int, statm.read().split())
    return (resident - shared) * os.sysconf("SC_PAGESIZE") >> 20

_native.pool_set_cap(0)
_native.pool_set_hold(1000)
assert joins() or "refused" in sys.argv
block = None
while True:
    _native.pool_settle()
    print(counted("live_nbytes"), counted("idle_nbytes"), other(), flush=True)
    what = input()
    if what == "take":
        block = _native.pool_allocate(256 << 20)
        np.frombuffer(block, "u1")[::4096] = 1
    elif what == "free":
        block = None
    elif what == "join":
        print(joins(), flush=True)
"""
BUDGET_NBYTES = 16 * 1024
#: MiB that a process may hold after it had 256 in use: less by what it has come to have beside the pool.
ALL = range(240, 257)


@pytest.fixture
def file() -> Iterator[int]:
    fd = os.memfd_create("budget")
    yield fd
    os.close(fd)


def path(fd: int) -> str:
    return f"/proc/{os.getpid()}/fd/{fd}"


class Member:
    """A process with a pool."""

    def __init__(self, spawn, fd: int, *arguments: str) -> None:
        self.child = spawn(MEMBER, path(fd), *arguments)
        self.idle()

    def idle(self) -> int:
        self.live_mib, idle_mib, self.other_mib = map(int, self.child.line().split())
        return idle_mib

    def does(self, what: str) -> int:
        """Return the MiB that are idle afterwards."""
        self.child.say(what)
        return self.idle()


def an_eighth(*members: Member) -> range:
    """Return the MiB that members may hold while one of them has 256 in use, which is the most so far."""
    most = (256 + sum(member.other_mib for member in members)) // 8
    return range(most // 2, most + 8)


def test_what_one_keeps_makes_room_for_what_another_uses(spawn, file):
    first, second = Member(spawn, file), Member(spawn, file)
    first.does("take")
    assert first.does("free") in ALL
    second.does("take")
    assert first.does("look") in an_eighth(first, second)
    idle = second.does("free")
    assert 0 < idle < 256
    assert idle + first.does("look") < 256 + an_eighth(first, second).stop


def test_below_their_low_water_they_keep_it_for_longer_than_the_hold(spawn, file):
    code = MEMBER.replace("pool_set_hold(1000)", "pool_set_hold(1e-9, low_water_nbytes=256 << 20)", 1)
    first, second = (Member(lambda _, *arguments: spawn(code, *arguments), file) for _ in range(2))
    first.does("take")
    first.does("free")
    second.does("look")  # what the two have is known to both
    rest = 512 - first.other_mib - second.other_mib
    assert first.does("look") in range(rest // 2 - 16, rest // 2 + 16)
    second.does("take")
    assert first.does("look") in range((rest - 256) // 2 - 16, (rest - 256) // 2 + 16)
    second.does("free")
    assert second.does("look") in range(rest // 2 - 16, rest // 2 + 16)


def test_above_its_ceiling_a_process_keeps_nothing_of_the_others_low_water(spawn, file):
    low, high = (
        MEMBER.replace("pool_set_hold(1000)", f"pool_set_hold(1e-9, {ceiling} << 20, {low_water} << 20)", 1)
        for ceiling, low_water in [(100, 100), (1000, 400)]
    )
    first, _ = (Member(lambda _, *arguments, code=code: spawn(code, *arguments), file) for code in (low, high))
    first.does("take")
    first.does("free")
    idle = first.does("look")
    assert idle + first.other_mib <= 102


def test_without_a_budget_each_keeps_what_it_had_in_use(spawn, file):
    with Path(os.devnull).open("r+b") as none:
        first, second = Member(spawn, file), Member(spawn, none.fileno(), "refused")
    first.does("take")
    assert first.does("free") in ALL
    second.does("take")
    assert first.does("look") in ALL


@pytest.mark.parametrize("then", ["another takes its entry", "time passes"])
def test_a_process_that_was_killed_ceases_to_count(spawn, file, then):
    first, killed = Member(spawn, file), Member(spawn, file)
    first.does("take")
    first.does("free")
    killed.does("take")
    assert first.does("look") in an_eighth(first, killed)
    killed.does("free")  # what it would keep now would be half of what both may
    killed.child.kill()
    if then == "time passes":
        os.pwrite(file, bytes(8), 2 * 64 + 16)  # its entry was last written long ago
    else:
        Member(spawn, file)
    first.does("take")
    assert first.does("free") in ALL


@pytest.mark.parametrize("garbage", [b"\xff" * BUDGET_NBYTES, os.urandom(BUDGET_NBYTES)], ids=["ones", "random"])
def test_a_file_of_garbage_does_no_more_than_change_what_is_kept(spawn, file, garbage):
    first = Member(spawn, file)
    os.pwrite(file, garbage, 0)
    for _ in range(3):
        first.does("take")
        assert first.live_mib == 256
        assert first.does("free") <= 256


def test_a_full_file_is_refused_until_somebody_leaves(spawn, file):
    other = os.open(path(file), os.O_RDWR)
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    fcntl.fcntl(other, fcntl.F_OFD_SETLK, lock)
    member = Member(spawn, file, "refused")
    member.child.say("join")
    assert member.child.line() == "False"
    member.idle()
    os.close(other)
    member.child.say("join")
    assert member.child.line() == "True"


def test_a_forked_child_does_not_join_in_its_parent_s_place(spawn, file):
    first = Member(spawn, file)
    code = MEMBER.replace(
        "block = None",
        """
pid = os.fork()
if not pid:
    os._exit(joins())
assert os.waitpid(pid, 0)[1] == 0
block = None""",
        1,
    )
    second = Member(lambda _, *arguments: spawn(code, *arguments), file)
    first.does("take")
    assert first.does("free") in ALL
    second.does("take")
    assert first.does("look") in an_eighth(first, second)


def test_joining_ten_thousand_times_leaves_no_descriptor(spawn, file):
    code = """
    import os, sys
    from weft import _native

    fd = os.open(sys.argv[1], os.O_RDWR)
    assert _native.pool_join(fd)
    before = len(os.listdir("/proc/self/fd"))
    assert all(_native.pool_join(fd) for _ in range(10_000))
    reading, _ = os.pipe()
    assert not any(_native.pool_join(wrong) for wrong in [-1, reading, 1 << 30] * 1000)
    assert len(os.listdir("/proc/self/fd")) <= before + 2
    print("done", flush=True)
    """
    assert spawn(code, path(file)).line() == "done"
