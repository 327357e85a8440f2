# SPDX-License-Identifier: BSD-3-Clause
"""What a program does to its own connections: wrong threads, forks, loops and interpreters that end, garbage."""

import asyncio
import contextlib
import gc
import itertools
import os
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import weft

HANG_S = 20

ECHO = """
import weft
with weft.listen("127.0.0.1:0") as listener:
    print(listener.address, flush=True)
    peer = listener.accept(100)
    try:
        while True:
            peer.send(peer.recv().wait(100)).wait(100)
    except weft.PeerLostError as e:
        print(type(e).__name__, flush=True)
"""


#: The same, but it receives nothing before it is told to.
IDLE = ECHO.replace("    try:", "    input()\n    try:")


@pytest.fixture
def other(spawn):
    """Another process that echoes, and this one's connection to it."""
    child = spawn(ECHO)
    peer = weft.connect(child.line()).open()
    yield child, peer
    peer.abort()


def echoes(peer):
    peer.send(b"x").wait(HANG_S)
    assert peer.recv().wait(HANG_S) == b"x"


def in_thread(function):
    outcome = []

    def run():
        try:
            outcome.append(function())
        except Exception as e:
            outcome.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(HANG_S)
    return outcome[0]


# ---- threads and forks ----------------------------------------------------------------------------------------


def test_a_peer_refuses_another_thread(other):
    _, peer = other
    waiting = peer.recv()
    uses = (lambda: peer.send(b"x"), lambda: peer.lend(b"x"), peer.recv, peer.close, lambda: waiting.wait(1))
    for use in (*uses, waiting.cancel):
        assert isinstance(in_thread(use), weft.ThreadError)
    assert not peer.closed
    peer.send(b"x").wait(HANG_S)
    assert waiting.wait(HANG_S) == b"x"


def test_any_thread_may_abort(other):
    child, peer = other
    waiting = peer.recv()
    assert in_thread(peer.abort) is None
    with pytest.raises(weft.ClosedError):  # at the owner's next turn
        waiting.wait(HANG_S)
    assert child.line() == "PeerLostError"


def test_a_forked_child_is_refused_and_its_parent_goes_on(other):
    _, peer = other
    address = peer.remote_address
    listener, opened = weft.listen("127.0.0.1:0"), weft.listen("127.0.0.1:0").__enter__()
    waiting = peer.recv()
    pid = os.fork()
    if pid == 0:
        refused = 0
        uses = (
            lambda: peer.send(b"x"),
            peer.recv,
            peer.close,
            lambda: waiting.wait(1),
            lambda: weft.connect(address).open(),
            lambda: listener.__enter__().accept(1),
            lambda: opened.address,
            lambda: opened.bound_address,
            lambda: asyncio.run(weft.connect(address)._open()),
        )
        for use in uses:
            try:
                use()
            except weft.ThreadError as e:
                refused += "forked from one that uses weft and cannot use weft itself" in str(e)
            except BaseException:
                pass
        peer.abort()
        del peer, waiting
        gc.collect()
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    opened.stop()
    peer.send(b"x").wait(HANG_S)
    assert waiting.wait(HANG_S) == b"x"


SENDER = """
import sys, weft
settings = {"TLS": sys.argv[2]} if len(sys.argv) > 2 else None
with weft.connect(sys.argv[1], settings=settings) as peer:
    sent = [peer.send(bytes([number]) * (1 << 20)) for number in range(40)]
    for each in sent:
        each.wait(100)
print("sent", flush=True)
"""

#: More than a connection takes in unread, so that the rest waits at its sender. A child forks, and forgets it all.
FORKING = """
import gc, os, sys, time, weft
from weft._connect import links
settings = {"TLS": sys.argv[2]} if len(sys.argv) > 2 else None
def main():
    with weft.listen("127.0.0.1:0", settings=settings) as listener:
        print(listener.address, flush=True)
        peer = listener.accept(100)
    workers = links.workers_of_thread()
    while peer._channel.unread_nbytes < 16 << 20:
        workers.progress()
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        workers.progress()
    if not (child := os.fork()):
        links._thread.workers.drop()
        links._thread.workers = None
        del peer, workers, listener
        gc.collect()
        if sys.argv[1] == "exits":
            sys.exit()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for number in range(40):
        assert peer.recv().wait(20) == bytes([number]) * (1 << 20)
    peer.close().wait(20)
main()
"""


@pytest.mark.parametrize("how", ["forgets", "exits"])
@pytest.mark.parametrize("settings", [(), ("posix,self",), ("tcp,self",)], ids=["ring", "posix", "tcp"])
def test_a_forked_child_refuses_nothing_that_its_parent_has_not_read(spawn, settings, how):
    receiver = spawn(FORKING, how, *settings)
    sender = spawn(SENDER, receiver.line(), *settings)
    assert receiver.wait() == 0
    assert sender.line() == "sent"
    assert sender.wait() == 0


# ---- loops ----------------------------------------------------------------------------------------------------


def test_a_loop_that_ends_takes_its_connections_along(spawn):
    child = spawn(IDLE)

    async def main():
        peer = await weft.connect(child.line())
        return peer, [peer.recv(), peer.send(bytes(64 << 20))]

    peer, requests = asyncio.run(main())
    for request in requests:
        assert request.done()
        with pytest.raises(weft.ClosedError, match="the worker was closed"):
            request.result()
    with pytest.raises(weft.ClosedError):
        peer.send(b"x")
    child.say()
    assert child.line() == "PeerLostError"


def test_connections_of_a_loop_closed_outright_end_with_the_next_loop(spawn):
    """``loop.close()`` alone tells weft nothing: the other side sees the end when this thread's next loop connects."""
    child = spawn(ECHO)

    async def main():
        peer = await weft.connect(child.line())
        return peer, peer.recv()

    loop = asyncio.new_event_loop()
    _, request = loop.run_until_complete(main())
    loop.close()
    assert not request.done()

    async def later():
        with pytest.raises(weft.UnreachableError):
            await weft.connect("127.0.0.1:1", timeout=HANG_S)  # nothing listens there

    asyncio.run(later())
    assert request.done()
    assert child.line() == "PeerLostError"


# ---- interpreters ---------------------------------------------------------------------------------------------

PENDING = """
import asyncio, sys, threading, weft
def use(peer):
    peer.send(b"ready").wait(100)
    return [peer, peer.recv(), peer.recv(), peer.send(bytes(64 << 20)), peer.send(bytes(64 << 20))]
def blocking():
    global kept
    kept = use(weft.connect(sys.argv[2]).open())
async def connected():
    peer = await weft.connect(sys.argv[2])
    return peer, peer.send(b"ready"), peer.recv(), peer.send(bytes(64 << 20))
async def leaves():
    global kept
    kept = await connected()
    asyncio.ensure_future(kept[2])
    await asyncio.sleep(0.01)
    sys.exit(0)
"""

WAYS = {
    "held by the module": "blocking()",
    "held by a cycle": "kept = use(weft.connect(sys.argv[2]).open()); kept.append(kept); del kept",
    "sys.exit in a coroutine": "asyncio.run(leaves())",
    "a loop that is left open": "loop = asyncio.new_event_loop(); kept = loop.run_until_complete(connected())",
    "a daemon thread that waits": """
ready = threading.Event()
def wait():
    peer, request, *_ = use(weft.connect(sys.argv[2]).open())
    ready.set()
    request.wait(60)
threading.Thread(target=wait, daemon=True).start()
ready.wait(100)
""",
}


@pytest.mark.parametrize("way", WAYS)
def test_an_interpreter_that_exits_with_requests_pending(way):
    """It ends at once and without a word but UCX's warnings, and the other side has lost its peer."""
    code = textwrap.dedent(PENDING) + WAYS[way]
    with weft.listen("127.0.0.1:0") as listener:
        child = subprocess.Popen([sys.executable, "-c", code, way, listener.address], stderr=subprocess.PIPE, text=True)
        try:
            peer = listener.accept(100)
            assert peer.recv().wait(HANG_S) == b"ready"
            _, said = child.communicate(timeout=HANG_S)
        finally:
            child.kill()
            child.wait(100)
    # UCX warns of requests that end with their worker; nothing of them outlives the process.
    noise = [line for line in said.splitlines() if not line.startswith("UCX WARN")]
    assert (child.returncode, noise) == (0, [])
    with pytest.raises(weft.PeerLostError):
        for _ in range(3):  # what had arrived comes first
            peer.recv().wait(HANG_S)
    peer.abort()


# ---- garbage --------------------------------------------------------------------------------------------------


def low_level():
    context = weft.Context({"TLS": "posix,self"})
    worker = weft.Worker(context)
    endpoint = worker.connect(worker.address)
    receiving = worker.tag_recv(bytearray(8), 1)
    sending = endpoint.tag_send(bytes(8), 1)
    return {"context": context, "worker": worker, "endpoint": endpoint, "receiving": receiving, "sending": sending}


@pytest.mark.parametrize("collected", [False, True], ids=["counted", "in a cycle"])
def test_low_level_objects_may_be_dropped_in_any_order(fds, collected):
    names = ("context", "worker", "endpoint", "receiving", "sending")

    def once(order):
        held = low_level()
        held["receiving"].wait(HANG_S)
        if collected:
            held["itself"] = held
        for name in order:
            del held[name]
        del held
        gc.collect()

    once(names)
    before = fds()
    for order in itertools.islice(itertools.permutations(names), 0, None, 4):
        once(order)
    assert fds() <= before


@pytest.mark.xfail(strict=True, reason="a request that is pending holds its worker, and nobody is left to end it")
@pytest.mark.parametrize("cancelled", [False, True], ids=["pending", "cancelled"])
def test_a_worker_that_is_dropped_with_a_receive_pending_goes(fds, cancelled):
    before = fds()
    worker = weft.Worker(weft.Context({"TLS": "posix,self"}))
    request = worker.tag_recv(bytearray(8), 1)
    if cancelled:
        request.cancel()
    del worker, request
    assert fds() <= before


def test_connections_may_be_dropped_in_any_order(fds):
    names = ("one", "other", "receiving", "sending", "listener")

    async def main(order):
        accepted = asyncio.get_running_loop().create_future()

        async def handler(peer):
            accepted.set_result(peer)
            await asyncio.sleep(HANG_S)

        listener = weft.listen("127.0.0.1:0", handler)
        await listener.start()
        one = await weft.connect(listener.address)
        held = {"listener": listener, "one": one, "other": await accepted}
        held |= {"receiving": one.recv(), "sending": one.send(bytes(1 << 20))}
        listener.stop()
        for task in listener._tasks:
            task.cancel()
        accepted = asyncio.Future()
        del one, listener
        for name in order:
            del held[name]
            await asyncio.sleep(0)

    asyncio.run(main(names))
    before = fds()
    for order in itertools.islice(itertools.permutations(names), 0, None, 4):
        asyncio.run(main(order))
    assert fds() <= before


# ---- ends in mid-transfer -------------------------------------------------------------------------------------


READER = """
import sys, weft
peer = weft.connect(sys.argv[1]).open()
try:
    peer.recv().wait(100)
    if sys.argv[2] == "receiver":
        waiting = peer.recv()
        peer.abort()
        waiting.wait(100)
    while True:
        peer.recv().wait(100)
except weft.Error as e:
    print(type(e).__name__, flush=True)
"""


@pytest.mark.parametrize("aborts", ["sender", "receiver"])
def test_an_abort_in_mid_rendezvous(spawn, other, aborts):
    """Who aborts has ClosedError, the other side PeerLostError; the buffer is free once nothing reads it."""
    _, bystander = other
    data = bytearray(64 << 20)
    with weft.listen("127.0.0.1:0") as listener:
        child = spawn(READER, listener.address, aborts)
        peer = listener.accept(100)
    sends = [peer.send(data) for _ in range(4)]
    sends[0].wait(HANG_S)
    if aborts == "sender":
        peer.abort()
    mine, theirs = (weft.ClosedError, "PeerLostError") if aborts == "sender" else (weft.PeerLostError, "ClosedError")
    with pytest.raises(mine):
        for request in sends[1:]:
            request.wait(HANG_S)
    assert child.line() == theirs
    peer.abort()
    assert child.wait() == 0
    deadline = time.monotonic() + HANG_S
    while time.monotonic() < deadline:
        echoes(bystander)  # turns of this thread's worker: 192 were seen, in 11 ms
        with contextlib.suppress(BufferError):
            data.append(0)
            break
    else:
        pytest.fail("the buffer is still exported")


def test_a_close_in_mid_transfer_waits_for_what_was_sent_before(spawn):
    """And so does the other side's, at the same time."""
    code = """
        import sys, weft
        peer = weft.connect(sys.argv[1]).open()
        sent = [peer.send(bytes(4 << 20)) for _ in range(4)]
        got = [peer.recv().wait(100).nbytes for _ in range(4)]
        peer.close().wait(100)
        print(*got, flush=True)
    """
    with weft.listen("127.0.0.1:0") as listener:
        child = spawn(code, listener.address)
        peer = listener.accept(100)
    sent = [peer.send(bytes(3 << 20)) for _ in range(4)]
    got = [peer.recv() for _ in range(4)]
    assert [request.wait(HANG_S).nbytes for request in got] == [4 << 20] * 4
    closing = peer.close()
    closing.wait(HANG_S)
    assert all(request.done() for request in sent)
    assert child.line() == " ".join([str(3 << 20)] * 4)
