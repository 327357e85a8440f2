# SPDX-License-Identifier: BSD-3-Clause
"""No memfd, or no memory for one: a seccomp filter refuses it, as some containers' profiles do.

One of the two processes is under it.
"""

import json
import platform

import pytest

import weft

#: Numbers of the calls, and of the machine as seccomp has it. Source: Linux, unistd.h and audit.h.
CALLS, MACHINES = ["memfd_create", "fallocate"], {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
NUMBERS = {"x86_64": [319, 285], "aarch64": [279, 47]}.get(platform.machine(), [0, 0])
pytestmark = pytest.mark.skipif(
    platform.machine() not in MACHINES, reason="the system calls' numbers are not known here"
)

#: Puts this process under a filter that lets all pass but one call, which fails with EPERM. Source: seccomp(2).
FILTER = """
import ctypes, struct, sys
libc = ctypes.CDLL(None, use_errno=True)

def refuse(number, machine):
    LOAD, SAME, RETURN = 0x20, 0x15, 0x06
    program = [(LOAD, 0, 0, 4), (SAME, 1, 0, machine), (RETURN, 0, 0, 0x7fff0000),
               (LOAD, 0, 0, 0), (SAME, 0, 1, number), (RETURN, 0, 0, 0x00050000 | 1), (RETURN, 0, 0, 0x7fff0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in program))
    prog = struct.pack("@HP", len(program), ctypes.addressof(code))
    PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
    assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, prog, 0, 0) == 0, ctypes.get_errno()

refuse(*map(int, sys.argv[1:3]))
"""
CONNECT = (
    FILTER
    + """
import json, weft
with weft.connect(sys.argv[3], timeout=100) as peer:
    peer.send(bytes(100_000)).wait(100)
    peer.recv().wait(100)
    told = peer.explain()
    print(json.dumps([told.why_ucx, peer.transports]), flush=True)
    peer.send(b"explained").wait(100)
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


def refusing(spawn, code, call, *arguments):
    return spawn(code, str(NUMBERS[CALLS.index(call)]), str(MACHINES[platform.machine()]), *arguments)


@pytest.mark.parametrize("call", CALLS)
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


@pytest.mark.parametrize("call", CALLS)
def test_the_doctor_says_what_to_mend(spawn, call):
    child = refusing(spawn, DOCTOR, call)
    assert child.line() == f"{call}: Operation not permitted"
