# SPDX-License-Identifier: BSD-3-Clause
"""How the drop-in's connections end, and who is told."""

import asyncio
import gc
import logging
import os
import resource
import socket

import pytest
from tests.compat.pairs import pair

from weft.compat import ucp
from weft.compat._core.listener import Listener
from weft.compat.ucp.exceptions import (
    UCXCanceled,
    UCXCloseError,
    UCXConnectionReset,
    UCXError,
    UCXMsgTruncated,
    UCXUnreachable,
)


async def until(condition):
    async with asyncio.timeout(100):
        while not condition():
            await asyncio.sleep(0)


def test_close_lets_the_peer_receive_what_was_sent():
    async def run():
        async with pair() as (here, there):
            await here.send(b"1")
            await here.am_send(b"2")
            await here.close()
            assert here.closed()
            await until(lambda: there._ep.goodbye)
            assert not there.closed()
            received = bytearray(1)
            await there.recv(received)
            assert received == b"1"
            assert await there.am_recv() == b"2"
            assert there.closed()

    asyncio.run(run())


@pytest.mark.parametrize("api", ["tag", "am"])
@pytest.mark.parametrize("who", ["this side", "the other"])
def test_close_cancels_what_waits(api, who):
    async def run():
        async with pair() as (here, there):
            waiting = asyncio.create_task(here.recv(bytearray(1)) if api == "tag" else here.am_recv())
            await asyncio.sleep(0)
            await (here if who == "this side" else there).close()
            with pytest.raises(UCXCanceled, match=r"Recv #000" if api == "tag" else r"AM Recv #000.*am_recv"):
                await waiting
            assert here.closed()

    asyncio.run(run())


async def does_not_fit(here, there, api):
    await here.send(b"12345")
    with pytest.raises(UCXMsgTruncated):
        await there.recv(bytearray(4 if api == "shorter" else 6))


async def cannot_be_sent(here, there, api):
    with pytest.raises(ValueError, match="not contiguous"):
        await (here.send if api == "tag" else here.am_send)(memoryview(bytes(10))[::2])


async def no_memory(here, there, api):
    ucp.register_am_allocator(lambda nbytes: {}[nbytes], "host")
    await here.am_send(b"1")
    with pytest.raises(KeyError):
        await there.am_recv()


async def for_the_worker(here, there, api):
    await here.send(b"1", tag=5, force_tag=True)
    await ucp.recv(bytearray(1), tag=5)


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize(
    ("transfer", "api"),
    [
        (does_not_fit, "shorter"),
        (does_not_fit, "longer"),
        (cannot_be_sent, "tag"),
        (cannot_be_sent, "am"),
        (no_memory, "am"),
        (for_the_worker, "tag"),
    ],
)
def test_close_reaches_a_peer_that_lacks_a_message(transfer, api, waits):
    calls = []

    async def run():
        async with pair() as (here, there):
            await transfer(here, there, api)
            there.set_close_callback(lambda: calls.append(1))
            receiving = [there.recv(bytearray(1)), there.am_recv()] if waits else []
            tasks = [asyncio.create_task(each) for each in receiving]
            await asyncio.sleep(0)
            await here.close()
            await until(there.closed)
            for task in tasks:
                with pytest.raises(UCXCanceled):
                    await task
            with pytest.raises(UCXCloseError):
                await there.recv(bytearray(1))

    asyncio.run(run())
    assert calls == [1]


@pytest.mark.parametrize("api", ["tag", "am"])
def test_a_receive_after_the_last_message_ends(api):
    """The peer has closed, and one of its messages is for nobody."""

    async def run():
        async with pair() as (here, there):
            await here.send(b"1", tag="nobody's")
            await here.close()
            await until(lambda: there._ep.goodbye)
            assert not there.closed()
            with pytest.raises(UCXCanceled):
                await (there.recv(bytearray(1)) if api == "tag" else there.am_recv())
            assert there.closed()
            received = bytearray(1)
            await there.recv(received, tag="nobody's")
            assert received == b"1"

    asyncio.run(run())


def test_a_message_with_a_forced_tag_outlasts_the_goodbye():
    async def run():
        async with pair() as (here, there):
            await here.send(b"1", tag=5, force_tag=True)
            await here.close()
            await until(there.closed)
            received = bytearray(1)
            await there.recv(received, tag=5, force_tag=True)
            assert received == b"1"
            with pytest.raises(UCXCloseError):
                await there.recv(received, tag=5, force_tag=True)

    asyncio.run(run())


@pytest.mark.parametrize("transports", ["posix,self", "tcp,self"])
@pytest.mark.parametrize("api", ["tag", "forced", "am"])
@pytest.mark.parametrize("waits", [True, False])
def test_large_messages_before_a_goodbye_arrive(transports, api, waits, spawn):
    code = """
import asyncio, sys
from weft.compat import ucp

async def main(transports, api, port):
    ucp.init({"TLS": transports})
    ep = await ucp.create_endpoint("127.0.0.1", int(port))
    forced = {"tag": 5, "force_tag": True} if api == "forced" else {}
    data = [bytes([i]) * 10_000_000 for i in range(3)]
    sending = [asyncio.create_task(ep.am_send(d) if api == "am" else ep.send(d, **forced)) for d in data]
    await asyncio.sleep(0)
    await ep.close()
    await asyncio.gather(*sending, return_exceptions=True)
    await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main(*sys.argv[1:]))
"""

    async def run():
        ucp.reset()
        ucp.init({"TLS": transports})
        accepted = asyncio.get_running_loop().create_future()
        listener = ucp.create_listener(accepted.set_result)
        child = spawn(code, transports, api, str(listener.port))
        there = await accepted
        forced = {"tag": 5, "force_tag": True} if api == "forced" else {}

        async def receive():
            if api == "am":
                return await there.am_recv()
            received = bytearray(10_000_000)
            await there.recv(received, **forced)
            return received

        if not waits:
            await until(lambda: there._ep.goodbye)
        tasks = [asyncio.create_task(receive()) for _ in range(3)]
        for i, task in enumerate(tasks):
            received = await task
            assert received == bytes([i]) * 10_000_000
        await until(there.closed)
        child.say()
        child.wait()
        listener.close()

    asyncio.run(run())


def test_a_task_that_is_cancelled_stays_cancelled():
    async def run():
        async with pair() as (here, _):
            waiting = asyncio.create_task(here.recv(bytearray(1)))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    asyncio.run(run())


@pytest.mark.parametrize("api", ["tag", "am"])
def test_what_arrived_before_an_abort_can_be_received(api):
    async def run():
        async with pair() as (here, there):
            await (here.send(b"1") if api == "tag" else here.am_send(b"1"))
            here.abort()
            await until(there.closed)
            received = bytearray(1)
            if api == "tag":
                await there.recv(received)
            else:
                assert there._ep.am_probe() is True
                received = await there.am_recv()
            assert received == b"1"
            with pytest.raises(UCXConnectionReset):
                await (there.recv(received) if api == "tag" else there.am_recv())
            with pytest.raises(UCXConnectionReset):
                await there.send(b"2")

    asyncio.run(run())


def test_a_closed_endpoint_says_so():
    async def run():
        async with pair() as (here, _):
            await here.close()
            await here.close()
            for transfer in (here.send(b"1"), here.am_send(b"1"), here.recv(bytearray(1)), here.am_recv()):
                with pytest.raises(UCXCloseError):
                    await transfer

    asyncio.run(run())


def test_a_deleted_endpoint_is_aborted():
    async def run():
        accepted = asyncio.get_running_loop().create_future()
        listener = ucp.create_listener(accepted.set_result)
        here = await ucp.create_endpoint("127.0.0.1", listener.port)
        there = await accepted
        assert not there.closed()
        del here
        gc.collect()
        await until(there.closed)
        there.abort()
        del listener

    asyncio.run(run())


@pytest.mark.parametrize("who", ["this side", "the other", "deleted"])
def test_the_close_callback_is_called_once(who):
    calls = []

    async def run():
        async with pair() as (here, there):
            here.set_close_callback(lambda: calls.append(1))
            if who == "deleted":
                here.abort()
            else:
                await (here if who == "this side" else there).close()
                await until(here.closed)

    asyncio.run(run())
    assert calls == [1]


def test_a_close_callback_is_called_though_the_goodbye_came_before_the_endpoint(monkeypatch):
    make = ucp.core.ApplicationContext.endpoint
    early, calls = [], []

    def endpoint(self, joined):
        self.core.progress()
        early.append(joined.connection.goodbye is not None)
        return make(self, joined)

    async def run():
        listener = ucp.create_listener(lambda ep: ep.set_close_callback(lambda: calls.append(1)))
        here = await ucp.create_endpoint("127.0.0.1", listener.port)
        await here.close()
        await asyncio.wait_for(until(lambda: calls), 5)
        listener.close()

    monkeypatch.setattr(ucp.core.ApplicationContext, "endpoint", endpoint)
    asyncio.run(run())
    assert early == [False, True]
    assert calls == [1]


def fail():
    raise ValueError("the program's own")


def test_a_close_callback_that_fails_is_logged_and_stops_no_other_endpoint(caplog):
    async def run():
        async with pair() as (here, there), pair() as (sender, receiver):
            there.set_close_callback(fail)
            here.abort()
            await until(there.closed)
            await sender.am_send(b"x")
            assert await asyncio.wait_for(receiver.am_recv(), 10) == b"x"
            sender.set_close_callback(fail)
            sender.abort()

    asyncio.run(run())
    assert caplog.text.count("ValueError: the program's own") == 2
    assert "Exception in callback" not in caplog.text  # the loop's words


def test_a_lost_peer_is_told_to_each_endpoint_though_a_callback_fails():
    async def run():
        async with pair() as (here, there), pair() as (other, another):
            ends = here, there, other, another
            for ep in ends:
                ep.set_close_callback(fail)
            here.connection.wire.lose()
            assert all(ep.closed() for ep in ends)

    asyncio.run(run())


def test_close_after_n_recv():
    async def run():
        async with pair() as (here, there):
            for _ in range(3):
                await here.send(b"x")
            received = bytearray(1)
            await there.recv(received)
            there.close_after_n_recv(2)
            with pytest.raises(UCXError, match="has already been set to: 3"):
                there.close_after_n_recv(1)
            await there.recv(received)
            assert not there.closed()
            await there.recv(received)
            assert there.closed()

    asyncio.run(run())


def test_close_after_fewer_than_were_received_is_refused():
    async def run():
        async with pair() as (here, there):
            await here.am_send(b"x")
            await there.am_recv()
            with pytest.raises(UCXError, match="cannot be less than current recv_count"):
                there.close_after_n_recv(0, count_from_ep_creation=True)
            there.close_after_n_recv(1, count_from_ep_creation=True)
            assert there.closed()

    asyncio.run(run())


PEER = """
import asyncio, sys
from weft.compat import ucp

async def main():
    ucp.init({"TLS": "posix,self"})
    ep = await ucp.create_endpoint("127.0.0.1", int(sys.argv[1]))
    await ep.send(b"1")
    print("sent", flush=True)
    await ep.recv(bytearray(1))

asyncio.run(main())
"""


def test_a_killed_peer_is_noticed_by_who_waits(spawn):
    async def run():
        accepted = asyncio.get_running_loop().create_future()
        listener = ucp.create_listener(accepted.set_result)
        child = spawn(PEER, str(listener.port))
        there = await accepted
        received = bytearray(1)
        await there.recv(received)
        waiting = [asyncio.create_task(t) for t in (there.recv(received), there.am_recv())]
        await asyncio.sleep(0)
        child.kill(reap=False)
        for task in waiting:
            with pytest.raises(UCXCanceled):
                await task
        assert there.closed()
        with pytest.raises(UCXConnectionReset):
            await there.send(b"2")
        assert not ucp.core._ctx.core.wires
        there.abort()
        listener.close()

    asyncio.run(run())


def test_a_killed_peer_is_noticed_by_the_next_send(spawn):
    async def run():
        accepted = asyncio.get_running_loop().create_future()
        listener = ucp.create_listener(accepted.set_result)
        child = spawn(PEER, str(listener.port))
        there = await accepted
        child.kill()
        with pytest.raises(UCXConnectionReset):  # the loop had no turn to look at the socket
            await there.send(b"2")
        there.abort()
        listener.close()

    asyncio.run(run())


def test_without_error_handling_an_endpoint_keeps_up_appearances(spawn, caplog):
    async def run():
        accepted = asyncio.get_running_loop().create_future()
        listener = ucp.create_listener(accepted.set_result, endpoint_error_handling=False)
        child = spawn(PEER, str(listener.port))
        there = await accepted
        child.kill()
        assert there._ep.is_alive()
        assert not there.closed()
        with caplog.at_level(logging.WARNING):
            await there.close()
        assert "Send shutdown" in caplog.text
        listener.close()

    asyncio.run(run())


def test_connections_come_and_go_on_one_wire(spawn, fds):
    code = """
import asyncio, sys
from weft.compat import ucp

async def main():
    ucp.init({"TLS": "posix,self"})
    port = int(sys.argv[1])
    for _ in range(20):
        ep = await ucp.create_endpoint("127.0.0.1", port)
        await ep.send(b"x")
        await ep.close()
    print(len(ucp.core._ctx.core.wires), flush=True)
    sys.stdin.readline()

asyncio.run(main())
"""

    async def run():
        count = 0

        async def serve(ep):
            nonlocal count
            await ep.recv(bytearray(1))
            count += 1

        listener = ucp.create_listener(serve)
        child = spawn(code, str(listener.port))
        await until(lambda: count >= 1)
        before = fds()
        await until(lambda: count == 20)
        assert len(ucp.core._ctx.core.wires) == 1
        assert fds() <= before + 1  # a socket that was just taken
        assert child.line() == "1"
        child.say()
        assert child.wait() == 0
        await until(lambda: not ucp.core._ctx.core.wires)
        listener.close()

    asyncio.run(run())


def test_nobody_listens():
    async def run():
        listener = ucp.create_listener(print)
        port = listener.port
        listener.close()
        assert listener.closed()
        with pytest.raises(UCXUnreachable, match="Destination is unreachable"):
            await ucp.create_endpoint("127.0.0.1", port)

    asyncio.run(run())


def test_strangers_are_turned_away(caplog):
    async def run():
        listener = ucp.create_listener(lambda _: pytest.fail("a stranger became an endpoint"))
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(b"?" * 37)  # as long as the head of a hello
        assert await reader.read() == b""
        writer.close()
        listener.close()

    with caplog.at_level(logging.WARNING, "ucx"):
        asyncio.run(run())
    assert "rejected a connection" in caplog.text


@pytest.mark.slow
def test_a_listener_out_of_descriptors_waits_for_room(monkeypatch, caplog):
    """Its loop must not spin while a caller waits."""
    asked = []
    accept = Listener.accept
    monkeypatch.setattr(Listener, "accept", lambda self: [asked.append(None), accept(self)][1])

    async def run():
        accepted = asyncio.get_running_loop().create_future()
        listener = ucp.create_listener(accepted.set_result)
        connecting = asyncio.create_task(ucp.create_endpoint("127.0.0.1", listener.port))
        await asyncio.sleep(0)  # its socket exists
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        os.close(free := os.dup(0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        try:
            await until(lambda: asked)
            await asyncio.sleep(0.3)  # in which it would spin
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert len(asked) <= 2  # a busy machine may take longer than the pause
        here, there = await connecting, await accepted
        await here.send(b"1")
        received = bytearray(1)
        await there.recv(received)
        assert received == b"1"
        await here.close()
        await there.close()
        listener.close()

    with caplog.at_level(logging.WARNING, "ucx"):
        asyncio.run(run())
    assert "Too many open files" in caplog.text


def test_a_silent_listener_is_given_up():
    async def run():
        with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(TimeoutError, match="no answer within"):
            await ucp.create_endpoint("127.0.0.1", silent.getsockname()[1])

    ucp.reset()
    ucp.init({"TLS": "posix,self"}, connect_timeout=0.02)
    asyncio.run(run())


@pytest.mark.parametrize("who", ["this side", "the other"])
def test_a_send_that_nobody_receives_ends_with_the_connection(who):
    async def run():
        async with pair() as (here, there):
            sending = asyncio.create_task(here.send(bytearray(1 << 23)))
            await asyncio.sleep(0)
            assert not sending.done()
            (here if who == "this side" else there).abort()
            with pytest.raises(UCXCanceled if who == "this side" else UCXConnectionReset):
                await sending

    asyncio.run(run())


def test_reset_does_not_wait_for_a_close_that_has_said_goodbye(monkeypatch):
    """A loop may have stopped before a handler's close got its last turn."""

    async def run():
        serving = []
        listener = ucp.create_listener(serving.append)
        client = await ucp.create_endpoint(ucp.get_address(), listener.port)
        await until(lambda: serving)
        sleeps = asyncio.Event()

        async def sleep(_):
            sleeps.set()
            await asyncio.Event().wait()

        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "sleep", sleep)
            closing = asyncio.create_task(serving[0].close())
            await sleeps.wait()
        client.abort()
        listener.close()
        ucp.reset()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert serving[0].closed()

    asyncio.run(run())
