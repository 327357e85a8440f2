# SPDX-License-Identifier: BSD-3-Clause
"""Replies to active messages: kept for as long as their sender lives, refused afterwards.

In processes of their own: a reply to who had gone crashed.
"""

import textwrap

import pytest

SERVER = """
import sys, time, weft
worker = weft.Worker(weft.Context({"TLS": sys.argv[1]}, features=sys.argv[2:]))
kept = []
worker.set_am_recv_handler(1, lambda message: (message.reply.am_send(2, b"", b"first"), kept.append(message)))
print(worker.address.hex(), flush=True)

def crank(until, seconds=20):
    deadline = time.monotonic() + seconds
    while not until() and time.monotonic() < deadline:
        worker.progress()
    assert until(), "it did not happen"

crank(lambda: kept)
late = kept[0].reply
"""

CLIENT = """
import sys, weft
worker = weft.Worker(weft.Context({"TLS": sys.argv[1]}))
endpoint = worker.connect(bytes.fromhex(sys.argv[2]))
answer = worker.am_recv(2)
endpoint.am_send(1, b"", b"question", reply=True).wait(100)
answer.wait(100)
"""

REFUSED = """
crank(lambda: late.closed)
for operation in (lambda: late.am_send(2, b"", b"late"), lambda: late.transports, lambda: kept[0].reply.flush(),
                  lambda: late.handle):
    try:
        operation()
    except weft.PeerLostError as error:
        assert "the sender of the message is gone" in str(error), error
    else:
        raise AssertionError("it was not refused")
late.close().wait(100)
worker.close()
print("refused", flush=True)
"""


@pytest.mark.parametrize("end", ["worker.close()", "endpoint.close().wait(100)", "endpoint.close(force=True)", "kill"])
@pytest.mark.parametrize("features", [(), ("amo", "rma")], ids=["plain", "amo"])
def test_a_reply_to_who_has_gone_is_refused(spawn, end, features):
    server = spawn(SERVER + REFUSED, "tcp", *features)
    gone = "import os; os.kill(os.getpid(), 9)" if end == "kill" else end
    client = spawn(CLIENT + gone, "tcp", server.line())
    assert client.wait() == (-9 if end == "kill" else 0)
    assert server.line() == "refused"
    assert server.wait() == 0


@pytest.mark.parametrize("tls", ["tcp", "posix"])
def test_a_reply_may_be_late(spawn, tls):
    late = """
        sys.stdin.readline()
        late.am_send(2, b"", b"second").wait(100)
        crank(lambda: len(kept) == 2)
        assert not late.closed
        print("thanked", flush=True)
        sys.stdin.readline()
        worker.close()
        """
    server = spawn(SERVER + textwrap.dedent(late), tls)
    second = """
print("answered", flush=True)
assert bytes(worker.am_recv(2).wait(100)[1]) == b"second"
endpoint.am_send(1, b"", b"thanks", reply=True).wait(100)
worker.am_recv(2).wait(100)
sys.stdin.readline()
"""
    client = spawn(CLIENT + second, tls, server.line())
    assert client.line() == "answered"
    server.say()
    assert server.line() == "thanked"
    server.say()
    assert server.wait() == 0
    client.say()
    assert client.wait() == 0


def test_with_streams_a_reply_ends_with_its_handler(spawn):
    refused = """
        for operation in (lambda: late.am_send(2, b""), kept[0].reply.flush):
            try:
                operation()
            except weft.ClosedError as error:
                assert "inside the handler" in str(error), error
            else:
                raise AssertionError("it was not refused")
        print("refused", flush=True)
        sys.stdin.readline()
        worker.close()
        """
    server = spawn(SERVER + textwrap.dedent(refused), "tcp", "stream")
    client = spawn(CLIENT + "sys.stdin.readline()", "tcp", server.line())
    assert server.line() == "refused"
    client.say()
    assert client.wait() == 0
    server.say()
    assert server.wait() == 0


def test_a_reply_ends_with_an_endpoint_of_ones_own(spawn):
    """A worker's messages to itself come over its own endpoint."""
    child = spawn("""
        import time, weft
        worker = weft.Worker(weft.Context({"TLS": "posix,self"}))
        kept = []
        worker.set_am_recv_handler(1, kept.append)
        endpoint = worker.connect(worker.address)
        endpoint.am_send(1, b"", reply=True).wait(100)
        deadline = time.monotonic() + 100
        while not kept and time.monotonic() < deadline:
            worker.progress()
        reply = kept[0].reply
        reply.flush().wait(100)
        endpoint.close().wait(100)
        try:
            reply.am_send(2, b"")
        except weft.Error:
            print("refused", flush=True)
        """)
    assert child.line() == "refused"
    assert child.wait() == 0
