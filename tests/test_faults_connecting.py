# SPDX-License-Identifier: BSD-3-Clause
"""Death, sleep and cancellation at every step of a handshake, of either side. The other side goes on with others."""

import asyncio
import contextlib
import os
import signal
import threading

import pytest

import weft
from weft._connect import handshake, local

HANG_S = 20
NOT_CONNECTED = (weft.HandshakeError, weft.UnreachableError, weft.PeerLostError)

#: One side, which stops in front of a step, says so, and goes on after a line.
PARTY = """
import os, sys, weft
from weft._connect import handshake, links, local
if os.environ.get("WEFT_TEST_FAR"):
    local.reach = lambda family, sockaddr: None
role, at, decides = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "here"
class Worker(links.ConnectionWorker):  # the one with the lower id decides
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.id = ("0" if decides else "f") * 32
links.ConnectionWorker = Worker
def stopping(make):
    def steps(*arguments):
        inner, answer, number = make(*arguments), None, 0
        while True:
            try:
                step = inner.send(answer)
            except StopIteration as stop:
                return stop.value
            if number == at:
                print("there", flush=True)
                sys.stdin.readline()
            number += 1
            try:
                answer = yield step
            except BaseException as e:
                inner.throw(e)
                raise
    return steps
try:
    if role == "listen":
        handshake.server, local.server = stopping(handshake.server), stopping(local.server)
        with weft.listen("127.0.0.1:0") as listener:
            print(listener.address, flush=True)
            peer = listener.accept(100)
    else:
        handshake.client, local.client = stopping(handshake.client), stopping(local.client)
        peer = weft.connect(role, timeout=30).open()
    with peer:
        peer.send(peer.recv().wait(100)).wait(100)
    print("done", flush=True)
except weft.Error as e:
    print(type(e).__name__, flush=True)
"""

#: Whether this side decides on the link, the carrier, and before what it stops. Rings: its hello, its route and all
#: else (it has knocked at the side door), the last word that it hears, and, if the other side decides, its address.
#: UCX: its hello, its route, its channel, its address (it has joined the link), and the last word that it hears.
#: "near" is the short way; "ring" and "ucx" go over TCP.
CONNECTOR_STEPS = [
    *[("here", "near", step) for step in (0, 1)],
    *[("here", "ring", step) for step in (0, 3, 5)],
    *[("there", "ring", step) for step in (0, 3, 5, 6)],
    *[("here", "ucx", step) for step in (0, 3, 6, 9, 10)],
]
#: The same of the listener. Rings: before it hears anything, says its hello, and its address. UCX: before it hears
#: anything, says its hello, its worker, its channel and address, and that it is ready.
LISTENER_STEPS = [
    *[("here", "near", step) for step in (0, 1)],
    *[(where, "ring", step) for where in ("here", "there") for step in (0, 2, 5)],
    *[("here", "ucx", step) for step in (0, 2, 5, 8, 11)],
]


@pytest.fixture
def by(monkeypatch):
    """Choose what carries the messages of this process and its children."""

    def choose(carrier):
        if carrier == "ucx":
            monkeypatch.setenv("UCX_TLS", "posix,self")
        if carrier == "ring":
            monkeypatch.setenv("WEFT_TEST_FAR", "1")
            monkeypatch.setattr(local, "reach", lambda family, sockaddr: None)

    return choose


async def echo(peer):
    with contextlib.suppress(weft.PeerClosedError):
        while True:
            await peer.send(await peer.recv())


async def works(address):
    async with weft.connect(address, timeout=HANG_S) as peer:
        await peer.send(b"another")
        assert await peer.recv() == b"another"


def run(coroutine):
    asyncio.run(asyncio.wait_for(coroutine, 2 * HANG_S))


async def until(condition):
    async with asyncio.timeout(HANG_S):
        while not condition():
            await asyncio.sleep(0.002)


@pytest.mark.parametrize(("decides", "carrier", "step"), CONNECTOR_STEPS)
def test_a_connector_killed_at_each_step(spawn, fds, caplog, by, decides, carrier, step):
    by(carrier)
    caplog.set_level("INFO", "weft")
    # Once it has said its address, the listener's side may be complete when it dies: its handler loses its peer.
    said_all = (decides, carrier, step) in {("here", "near", 1), ("here", "ring", 5), ("here", "ucx", 10)}
    told = ("a handler ended", "rejected a connection") if said_all else ("rejected a connection",)

    async def main():
        async with weft.listen("127.0.0.1:0", echo) as listener:
            await works(listener.address)
            before = fds()
            victim = spawn(PARTY, listener.address, str(step), decides)
            pipes = fds() - before
            assert await asyncio.to_thread(victim.line) == "there"
            victim.kill(reap=False)
            await until(lambda: any(text in caplog.text for text in told))
            loud = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
            assert carrier != "near" or not loud  # a process of this host that ended is nothing to warn of
            await works(listener.address)
            # Its call at the side door is heard to have ended when the next one comes.
            await until(lambda: fds() <= before + pipes)

    run(main())


@pytest.mark.parametrize(("decides", "carrier", "step"), LISTENER_STEPS)
@pytest.mark.parametrize("face", ["blocking", "asyncio"])
def test_a_listener_killed_at_each_step(spawn, by, face, decides, carrier, step):
    by(carrier)
    victim = spawn(PARTY, "listen", str(step), decides)
    address = victim.line()

    def kill():
        if victim.line() == "there":
            victim.kill(reap=False)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(NOT_CONNECTED):
        if face == "blocking":
            weft.connect(address, timeout=HANG_S).open()
        else:
            run(works(address))
    killer.join()


@pytest.mark.parametrize(
    ("carrier", "step"), [("near", 0), ("near", 1), ("ring", 0), ("ring", 3), ("ring", 5), ("ucx", 6), ("ucx", 10)]
)
def test_a_connector_stopped_at_a_step_delays_nobody(spawn, by, carrier, step):
    by(carrier)

    async def greet(peer):
        await peer.send(b"welcome")
        await peer.recv()

    async def main():
        async with weft.listen("127.0.0.1:0", greet) as listener:
            sleeper = spawn(PARTY, listener.address, str(step), "here")
            assert await asyncio.to_thread(sleeper.line) == "there"
            os.kill(sleeper.pid, signal.SIGSTOP)
            sleeper.say()
            async with weft.connect(listener.address) as peer:
                assert await peer.recv() == b"welcome"
                await peer.send(b"thanks")
            os.kill(sleeper.pid, signal.SIGCONT)
            assert await asyncio.to_thread(sleeper.line) == "done"

    run(main())


@pytest.mark.parametrize(("carrier", "step"), [("near", 1), ("ring", 2), ("ring", 5), ("ucx", 8)])
def test_a_listener_stopped_at_a_step(spawn, by, carrier, step):
    """The connector gives up in its time; the listener, once awake, takes the next."""
    by(carrier)
    sleeper = spawn(PARTY, "listen", str(step), "here")
    address = sleeper.line()
    stopper = threading.Thread(target=lambda: (sleeper.line(), os.kill(sleeper.pid, signal.SIGSTOP)))
    stopper.start()
    with pytest.raises(weft.TimedOutError, match="no answer within 4 s"):  # it has to reach the step by then
        weft.connect(address, timeout=4).open()
    stopper.join()
    waker = threading.Timer(0.05, os.kill, [sleeper.pid, signal.SIGCONT])
    sleeper.say()
    waker.start()
    sleeper.say()  # the second handshake stops there as well
    with weft.connect(address, timeout=HANG_S) as peer:
        peer.send(b"x").wait(HANG_S)
        assert peer.recv().wait(HANG_S) == b"x"
    waker.join()
    assert [sleeper.line(), sleeper.line()] == ["there", "done"]


def cancelling(make, at):
    """Have the steps end, in front of step `at`, as they do when their task is cancelled there."""

    def steps(*arguments):
        inner, answer = make(*arguments), None
        for number in range(100):
            try:
                step = inner.send(answer) if number != at else inner.throw(asyncio.CancelledError())
            except StopIteration as stop:
                return stop.value
            answer = yield step
        raise AssertionError

    return steps


#: How many steps a handshake has at least.
STEPS = {"near": 2, "ring": 6, "ucx": 13}


@pytest.mark.parametrize("carrier", STEPS)
def test_a_connect_cancelled_at_each_step(spawn, fds, monkeypatch, by, carrier):
    by(carrier)
    module = local if carrier == "near" else handshake
    client = module.client
    child = spawn(
        """
        import asyncio, weft
        async def echo(peer):
            try:
                while True:
                    await peer.send(await peer.recv())
            except weft.PeerLostError:
                pass
        async def main():
            async with weft.listen("127.0.0.1:0", echo) as listener:
                print(listener.address, flush=True)
                await asyncio.to_thread(input)
        asyncio.run(main())
        """
    )
    address = child.line()

    async def main():
        for step in range(1, STEPS[carrier]):
            monkeypatch.setattr(module, "client", cancelling(client, step))
            with pytest.raises(asyncio.CancelledError):
                await weft.connect(address, timeout=HANG_S)
            monkeypatch.setattr(module, "client", client)
            await works(address)
            if step == 1:
                before = fds()
        await until(lambda: fds() <= before)

    run(main())


@pytest.mark.parametrize("carrier", STEPS)
def test_an_accept_cancelled_at_each_step(spawn, monkeypatch, by, carrier):
    """As leaving the listener does with handshakes that are under way."""
    by(carrier)
    module = local if carrier == "near" else handshake
    server = module.server

    async def main():
        async with weft.listen("127.0.0.1:0", echo) as listener:
            for step in range(1, STEPS[carrier]):
                monkeypatch.setattr(module, "server", cancelling(server, step))
                with pytest.raises(NOT_CONNECTED):  # connected and lost, if it was about to say that it is ready
                    await works(listener.address)
                monkeypatch.setattr(module, "server", server)
                await works(listener.address)

    run(main())
