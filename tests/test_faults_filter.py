# SPDX-License-Identifier: BSD-3-Clause
"""A seccomp filter refuses a system call, as some containers' profiles do: one of the two processes is under it."""

import errno
import json
import os
import platform
import socket

import pytest

import weft

#: Numbers of the calls, and of the machine as seccomp has it. Source: Linux, unistd.h and audit.h.
CALLS = ["memfd_create", "fallocate", "socket", "eventfd2"]
MEMFD = CALLS[:2]
MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
NUMBERS = {"x86_64": [319, 285, 41, 290], "aarch64": [279, 47, 198, 19]}.get(platform.machine(), [0] * 4)
pytestmark = pytest.mark.skipif(
    platform.machine() not in MACHINES, reason="the system calls' numbers are not known here"
)

#: Puts this process under a filter that lets all pass but one call, which fails with EPERM. Source: seccomp(2).
FILTER = """
import ctypes, struct, sys
libc = ctypes.CDLL(None, use_errno=True)

def refuse(number, machine, error=1, first=None):
    LOAD, SAME, RETURN = 0x20, 0x15, 0x06
    with_first = [] if first is None else [(LOAD, 0, 0, 16), (SAME, 0, 1, first)]
    program = [(LOAD, 0, 0, 4), (SAME, 1, 0, machine), (RETURN, 0, 0, 0x7fff0000),
               (LOAD, 0, 0, 0), (SAME, 0, 1 + len(with_first), number), *with_first,
               (RETURN, 0, 0, 0x00050000 | error), (RETURN, 0, 0, 0x7fff0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in program))
    prog = struct.pack("@HP", len(program), ctypes.addressof(code))
    PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
    assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, prog, 0, 0) == 0, ctypes.get_errno()

refuse(*map(int, sys.argv[1].split(",")))
"""
CONNECT = (
    FILTER
    + """
import json, weft
with weft.connect(sys.argv[2], timeout=100) as peer:
    peer.send(bytes(100_000)).wait(100)
    peer.recv().wait(100)
    told = peer.explain()
    print(json.dumps([told.why_ucx, peer.transports]), flush=True)
    peer.send(b"explained").wait(100)
"""
)
NO_UNIX = (
    FILTER
    + """
import weft
for make in (weft.listen("127.0.0.1:0").__enter__, weft.connect(sys.argv[2], timeout=100).open):
    try:
        make()
    except weft.Error as e:
        print(type(e).__name__, e, flush=True)
"""
)
NO_EVENTFD = (
    FILTER
    + """
import weft
try:
    weft.Context()
except weft.Error as e:
    print(type(e).__name__, e, flush=True)
"""
)
DOCTOR = (
    FILTER
    + """
from weft.doctor import checks, here
print(checks.examine(here.files())["memfd"].evidence[0])
"""
)


@pytest.fixture(autouse=True)
def as_weft_has_it(monkeypatch):
    monkeypatch.delenv("UCX_TLS", raising=False)


def refusing(spawn, code, call, *arguments, error=errno.EPERM, first=None):
    numbers = [NUMBERS[CALLS.index(call)], MACHINES[platform.machine()], error, *([] if first is None else [first])]
    return spawn(code, ",".join(map(str, numbers)), *arguments)


@pytest.mark.parametrize("call", MEMFD)
def test_ucx_takes_over_and_both_sides_can_tell_why(spawn, call):
    with weft.listen("127.0.0.1:0") as listener:
        child = refusing(spawn, CONNECT, call, listener.address)
        with listener.accept(100) as peer:
            peer.send(peer.recv().wait(100)).wait(100)
            assert peer.recv().wait(100) == b"explained"
            told = peer.explain()
    refused = "memfd_create or fallocate was refused: Operation not permitted"
    assert json.loads(child.line()) == [refused, ["posix/memory"]]
    assert (told.why_ucx, told.same_host) == (f"the other side: {refused}", True)
    [ring] = [each for each in told.transports if each.transport == "ring"]
    assert (ring.chosen, ring.reason) == (False, told.why_ucx)
    assert told.lines[1].endswith(f"tag(posix/memory), not weft's ring: the other side: {refused}")


@pytest.mark.parametrize("call", MEMFD)
def test_the_doctor_says_what_to_mend(spawn, call):
    child = refusing(spawn, DOCTOR, call)
    assert child.line() == f"{call}: Operation not permitted"


@pytest.mark.parametrize("error", [errno.EAFNOSUPPORT, errno.EPERM], ids=["as systemd", "as a seccomp profile"])
def test_unix_sockets_that_are_refused_are_named(spawn, error):
    # As by systemd's RestrictAddressFamilies=AF_INET AF_INET6.
    with weft.listen("127.0.0.1:0") as listener:
        refused = {"error": error, "first": int(socket.AF_UNIX)}
        child = refusing(spawn, NO_UNIX, "socket", listener.address, **refused)
        why = f"{os.strerror(error)}; weft needs sockets of AF_UNIX and of AF_INET or AF_INET6"
        assert child.line().startswith(f"UnsupportedError listen on 127.0.0.1:0: {why}")
        assert child.line().startswith(f"UnsupportedError connect to {listener.address}: {why}")


def test_an_eventfd_that_is_refused_is_named(spawn):
    child = refusing(spawn, NO_EVENTFD, "eventfd2")
    assert child.line() == "NoMemoryError Context: eventfd: Operation not permitted"
