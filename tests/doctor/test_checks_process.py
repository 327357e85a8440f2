# SPDX-License-Identifier: BSD-3-Clause
import itertools
import os

import pytest
from tests.machines import hosts

import weft
from weft.config import BORROWED_DESCRIPTORS, LINK_DESCRIPTORS, RING_DESCRIPTORS
from weft.doctor import checks_process
from weft.doctor.finding import Level


def test_a_container(machine):
    found = checks_process.namespaces(machine("container"))
    assert found.what.startswith("a container, with ipc, pid, cgroup of its own")
    assert "/.dockerenv" in found.evidence


def test_the_marks_of_an_image_do_not_make_a_container(machine):
    assert checks_process.namespaces(machine(files={".dockerenv": ""})).level is Level.OK


@pytest.mark.parametrize(
    ("tls", "scope", "level"),
    [
        (None, 3, Level.NOT_APPLICABLE),
        ("^sysv,cma", 3, Level.NOT_APPLICABLE),
        ("posix,cma", 0, Level.OK),
        ("all", 1, Level.NOTE),
    ],
)
def test_ptrace_matters_to_who_asks_for_cma(machine, tls, scope, level):
    environ = {} if tls is None else {"UCX_TLS": tls}
    made = machine(files={"proc/sys/kernel/yama/ptrace_scope": scope}, environ=environ)
    assert checks_process.ptrace(made).level is level


@pytest.mark.parametrize(
    ("limit", "level", "remedy"),
    [
        ("128", Level.WARNING, "raise nofile"),
        ("1024/524288", Level.NOTE, "ulimit -n 524288"),
        ("1024/unlimited", Level.NOTE, "ulimit -n unlimited"),
        ("65536", Level.OK, ""),
        ("unlimited", Level.OK, ""),
    ],
)
def test_open_files(machine, limit, level, remedy):
    found = checks_process.open_files(machine(files={"proc/self/limits": hosts.limits(files=limit)}))
    assert (found.level, found.remedy[: len(remedy)]) == (level, remedy)


def test_open_files_where_ucx_carries_messages_within_the_host(machine):
    files = {"proc/self/limits": hosts.limits(files="1064")}
    assert "room for 500 peers on this host, at 1 for each and 1 for memory borrowed from it" in (
        checks_process.open_files(machine(files=files)).what
    )
    found = checks_process.open_files(machine(files=files, memfd="memfd_create: Operation not permitted"))
    assert found.what.endswith(
        "room for 142 peers on this host, at 7 for each with UCX, beside 64 for the rest of the process"
    )
    assert found.evidence[1].endswith("of this host: no memfd: memfd_create: Operation not permitted")
    assert (found.level, found.source) == (Level.NOTE, "weft's docs, design: a ucp_worker for each link; getrlimit(2)")


@pytest.mark.parametrize(
    ("limit", "level", "remedy"),
    [
        ("1048576", Level.ERROR, "allow larger files: fsize in /etc/security/limits.d"),
        ("1048576/unlimited", Level.ERROR, "ulimit -f unlimited"),
        (str(8 << 20), Level.WARNING, "allow larger files"),
        (str(1 << 40), Level.NOTE, "allow larger files"),
        ("unlimited", Level.OK, ""),
    ],
)
def test_file_size(machine, limit, level, remedy):
    found = checks_process.file_size(machine(files={"proc/self/limits": hosts.limits(size=limit)}))
    assert (found.level, found.remedy[: len(remedy)]) == (level, remedy)


def test_file_size_where_ucx_carries_messages_within_the_host(machine):
    """Each of its files is a link's, and smaller."""
    files = {"proc/self/limits": hosts.limits(size=str(1 << 20))}
    found = checks_process.file_size(machine(files=files, environ={"UCX_TLS": "posix,self"}))
    assert (found.level, found.what) == (
        Level.NOTE,
        "files of at most 1 MiB, and a link of UCX's between processes of this host takes 668 KiB",
    )


def test_a_limit_that_is_not_there(machine):
    assert checks_process.file_size(machine(files={"proc/self/limits": ""})).level is Level.NOTE


LIMITED = """
import resource, sys, weft

resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
try:
    with weft.connect(sys.argv[1]) as peer:
        print(*peer.transports, flush=True)
except weft.NoMemoryError as e:
    print(e, flush=True)
"""


@pytest.mark.parametrize("room", [1, 0.5])
def test_the_smallest_file_of_a_link(room, spawn):
    with weft.listen("127.0.0.1:0") as listener:
        child = spawn(LIMITED, listener.address, str(int(room * checks_process.RING_NBYTES)))
        if room == 1:
            listener.accept(100).close()
        refused = (
            "connect: cannot allocate memory for a ring: File too large; raise the limit of file sizes (ulimit -f)"
        )
        assert child.line() == ("ring/memory" if room == 1 else refused)
        assert child.wait() == 0


HOLDING = """
import asyncio, os, weft

async def hold(peer):
    print(len(os.listdir("/proc/self/fd")), flush=True)
    await peer.recv()

async def main():
    async with weft.listen("127.0.0.1:0", hold) as listener:
        print(listener.address, flush=True)
        await asyncio.get_running_loop().create_future()

asyncio.run(main())
"""
CALLING = """
import sys, weft

peer = weft.connect(sys.argv[1], timeout=100).open()
sys.stdin.read()
"""


#: What a peer takes, by the transports that are asked of UCX.
TAKEN = [(None, RING_DESCRIPTORS), ("posix,self", LINK_DESCRIPTORS)]


@pytest.fixture
def asked(monkeypatch):
    """Ask for transports in this process and, by the environment returned, in its children."""

    def ask(tls):
        monkeypatch.delenv("UCX_TLS", raising=False)
        if tls is not None:
            monkeypatch.setenv("UCX_TLS", tls)
        return dict(os.environ)

    return ask


@pytest.mark.slow
@pytest.mark.parametrize(("tls", "taken"), TAKEN)
def test_descriptors_of_a_peer_are_those_that_one_takes(tls, taken, asked, spawn, fds):
    env, peers, counts = asked(tls), [], []
    for holder in [spawn(HOLDING, env=env) for _ in range(3)]:
        peers.append(weft.connect(holder.line(), timeout=100).open())
        counts.append(fds())
    assert [after - before for before, after in itertools.pairwise(counts)] == [taken] * 2
    for peer in peers:
        peer.close()


@pytest.mark.slow
@pytest.mark.parametrize(("tls", "taken"), TAKEN)
def test_descriptors_of_a_peer_that_called_are_as_many(tls, taken, asked, spawn):
    env = asked(tls)
    holder, counts = spawn(HOLDING, env=env), []
    address = holder.line()
    for _ in range(3):
        spawn(CALLING, address, env=env)
        counts.append(int(holder.line()))
    assert [after - before for before, after in itertools.pairwise(counts)] == [taken] * 2


LENDING = """
import asyncio, numpy, weft

async def lend(peer):
    with weft.arrays_in_pool():
        array = numpy.ones(1 << 20, "u1")
    await peer.lend(array)
    await peer.recv()

async def main():
    async with weft.listen("127.0.0.1:0", lend) as listener:
        print(listener.address, flush=True)
        await asyncio.get_running_loop().create_future()

asyncio.run(main())
"""


@pytest.mark.slow
def test_descriptors_of_a_peer_whose_memory_is_borrowed(asked, spawn, fds):
    env, peers, borrowed, counts = asked(None), [], [], []
    for lender in [spawn(LENDING, env=env) for _ in range(3)]:
        peers.append(weft.connect(lender.line(), timeout=100).open())
        borrowed.append(peers[-1].recv().wait(100))
        counts.append(fds())
    assert [peer.lent_nbytes[1] for peer in peers] == [1 << 20] * 3
    assert [after - before for before, after in itertools.pairwise(counts)] == [
        RING_DESCRIPTORS + BORROWED_DESCRIPTORS
    ] * 2
    for peer in peers:
        peer.abort()


@pytest.mark.parametrize(("synchronised", "level"), [(True, Level.OK), (False, Level.NOTE), (None, Level.NOTE)])
def test_clock(machine, synchronised, level):
    assert checks_process.clock(machine(synchronised=synchronised)).level is level


@pytest.mark.parametrize(("available", "remedy"), [("tsc hpet", "echo tsc > "), ("hpet", "the kernel gave up tsc")])
def test_a_slow_clock_source(machine, available, remedy):
    folder = "sys/devices/system/clocksource/clocksource0"
    made = machine(files={f"{folder}/current_clocksource": "hpet", f"{folder}/available_clocksource": available})
    assert checks_process.clock_source(made).remedy.startswith(remedy)
