# SPDX-License-Identifier: BSD-3-Clause
"""Two containers of one pod: one network and one Unix socket's reach, but other namespaces or capabilities.

Rings need no more than the Unix socket. UCX's posix refuses a peer in another of those, so with UCX the network it is,
or a refusal that says why.
"""

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
import sys
import threading

import numpy
import pytest

import weft
from weft import _native
from weft._connect import admission, handshake

ALONE = [shutil.which("unshare") or "unshare", "--fork", "--kill-child"]
TIMEOUT_S = 20


def may_unshare():
    return subprocess.run([*ALONE, "--ipc", "--pid", "true"], capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not may_unshare(), reason="namespaces cannot be made here")

CONNECT = """
import sys, weft
try:
    if "no-rings" in sys.argv:
        weft._native.ring_error = lambda: "refused"
    with weft.connect(sys.argv[1], timeout=100) as peer:
        peer.send(b"x" * 1_000_000).wait(100)
        print(peer.same_host, *peer.transports, peer.recv().wait(100).nbytes)
except weft.UnreachableError as e:
    print(type(e).__name__, e)
"""


#: What keeps UCX's posix from the peer's memory. Who has a mount namespace alone reaches it by /proc.
APART = {
    "ipc": [*ALONE, "--ipc"],
    "pid": [*ALONE, "--pid"],
    "user": [*ALONE, "--user", "--map-root-user"],
    "capabilities": ["setpriv", "--bounding-set=-sys_ptrace"],
}


def connect_from(kind, address, *options, **env):
    command = [*APART[kind], sys.executable, "-c", CONNECT, address, *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | env)


@pytest.mark.parametrize("kind", APART)
def test_over_the_loopback_it_is_refused_with_the_reason(kind):
    async def main():
        async with weft.listen("127.0.0.1:0", lambda peer: peer.close()) as listener:
            other = connect_from(kind, listener.address, "no-rings")
            return (await asyncio.to_thread(other.communicate, timeout=TIMEOUT_S))[0]

    told = asyncio.run(main())
    assert told.startswith("NoRouteError")  # by which Dask knows that a retry cannot help
    assert "but not this user, its capabilities, or the IPC, PID or user namespace" in told


@pytest.mark.parametrize("kind", APART)
def test_by_rings_it_works(kind):
    with weft.listen("127.0.0.1:0") as listener:
        other = connect_from(kind, listener.address)
        with listener.accept(100) as peer:
            assert peer.same_host
            assert peer.recv().wait(TIMEOUT_S).nbytes == 1_000_000
            with weft.arrays_in_pool():
                data = numpy.ones(70_000, "u1")
            peer.lend(data).wait(TIMEOUT_S)
            assert peer.lent_nbytes == (70_000, 0)
        assert other.communicate(timeout=TIMEOUT_S)[0].split() == ["True", "ring/memory", "70000"]


@pytest.mark.parametrize("kind", APART)
def test_by_the_network_it_works(kind):
    with weft.listen("127.0.0.1:0", settings={"TLS": "tcp,self"}) as listener:
        other = connect_from(kind, listener.address, UCX_TLS="tcp,self")
        with listener.accept(100) as peer:
            assert not peer.same_host
            assert peer.recv().wait(TIMEOUT_S).nbytes == 1_000_000
            peer.send(b"y" * 70_000).wait(TIMEOUT_S)
        assert other.communicate(timeout=TIMEOUT_S)[0].split() == ["False", "tcp/lo", "70000"]


@pytest.mark.parametrize(("tls", "lane"), [("", "ring/memory"), ("posix,self", "posix/memory")])
def test_another_dev_shm_is_no_hindrance(tls, lane):
    """As with an emptyDir for each container: rings need none, and UCX opens the peer's memory by /proc."""
    code = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$0" -c "$1" "$2"'
    with weft.listen("127.0.0.1:0", settings={"TLS": tls} if tls else {}) as listener:
        command = [*ALONE, "--mount", "sh", "-c", code, sys.executable, CONNECT, listener.address]
        other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"UCX_TLS": tls})
        with listener.accept(100) as peer:
            assert peer.recv().wait(TIMEOUT_S).nbytes == 1_000_000
            peer.send(b"y" * 70_000).wait(TIMEOUT_S)
        assert other.communicate(timeout=TIMEOUT_S)[0].split() == ["True", lane, "70000"]


def test_without_proc_the_listener_says_so(monkeypatch, caplog):
    def refuse():
        raise weft.UnsupportedError("cannot read /proc/self/ns/ipc: /proc is not mounted")

    async def main():
        tcp = {"TLS": "tcp,self"}
        async with weft.listen("127.0.0.1:0", lambda peer: peer.close(), settings=tcp) as listener:
            await weft.connect(listener.address, settings=tcp)

    monkeypatch.setattr(handshake, "own_namespaces", refuse)
    why = "accept from 127.0.0.1:[0-9]+: cannot read /proc/self/ns/ipc: /proc is not mounted"
    with pytest.raises(weft.UnreachableError, match=f"the other side refused: {why}"):
        asyncio.run(main())
    [told] = caplog.messages
    assert re.fullmatch(f"rejected a connection: {why}", told)


@pytest.mark.parametrize("tls", [{}, {"TLS": "posix,self"}])
def test_what_fails_below_is_refused_by_the_side_that_accepts(monkeypatch, caplog, tls):
    prepare = _native.prepare_link

    def refuse(*arguments):
        if threading.current_thread() is accepting:
            raise weft.NoMemoryError("connect: cannot allocate memory for a ring: No space left on device")
        return prepare(*arguments)

    def accept():
        with contextlib.suppress(weft.ClosedError):
            listener.accept(100)

    monkeypatch.setattr(_native, "prepare_link", refuse)
    why = r"accept from [\w .:]+[0-9]: cannot allocate memory for a ring: No space left on device"
    with weft.listen("127.0.0.1:0", settings=tls) as listener:
        accepting = threading.Thread(target=accept)
        accepting.start()
        with pytest.raises(weft.UnreachableError, match=f"the other side refused: {why}"):
            weft.connect(listener.address, settings=tls).open()
    accepting.join()
    [told] = caplog.messages
    assert re.fullmatch(f"rejected a connection: {why}", told)


TRACE = 1 << 19


@pytest.mark.parametrize(
    ("mine", "theirs", "share"),
    [
        (0, 0, True),
        (0b101, 0b101, True),
        (0b101, 0b100, False),
        (0b100, 0b101, False),
        (TRACE, TRACE | 1, True),
        (TRACE | 1, 1, False),
        (1, TRACE | 1, False),
    ],
)
def test_who_may_open_whose_files(monkeypatch, mine, theirs, share):
    monkeypatch.setattr(admission, "own_namespaces", lambda: ["a b c", mine])
    assert admission.shares_memory(["a b c", theirs]) is share
    assert not admission.shares_memory(["a b d", theirs])


@pytest.mark.parametrize("noise", [None, "ipc:[1] pid:[2]", [], ["a b c"], ["a b c", "0"], [0, "a b c"], {"a": 1}])
def test_who_says_it_otherwise_is_elsewhere(noise):
    assert not admission.shares_memory(noise)
    assert admission.shares_memory(admission.own_namespaces())
