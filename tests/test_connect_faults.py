# SPDX-License-Identifier: BSD-3-Clause
"""Making connections that cannot be made: everything that can be wrong with the other side, or with the call."""

import asyncio
import contextlib
import errno
import gc
import logging
import math
import os
import re
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
import warnings
from concurrent import futures

import pytest

import weft
from weft._connect import local, message

#: How a message of the handshake begins.
WEFT = message.MAGIC + message.VERSION.to_bytes(2, "little")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_nobody_listens():
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(
        weft.UnreachableError, match=f"connect to {address}: connection refused: nothing listens there"
    ) as caught:
        weft.connect(address).open()
    assert isinstance(caught.value, ConnectionError)

    async def main():
        with pytest.raises(weft.UnreachableError, match="nothing listens"):
            await weft.connect(address)

    asyncio.run(main())


@contextlib.contextmanager
def stranger(answer):
    """A TCP server that is no weft listener; `answer` gets each connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    thread.join(100)


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (
            lambda c: (c.recv(9), c.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")),
            weft.HandshakeError,
            "does not speak weft.*HTTP",
        ),
        (lambda c: None, weft.HandshakeError, "closed the socket|socket failed"),
        (lambda c: c.sendall(b"WEFT\x63\0\x05\0\0\0hello"), weft.HandshakeError, "version 99"),
        (lambda c: c.sendall(WEFT + b"\xff\xff\xff\x7f"), weft.HandshakeError, "at most"),
        (lambda c: c.sendall(WEFT + b"\x05\0\0\0hello"), weft.HandshakeError, "JSON"),
        (lambda c: c.sendall(WEFT + b"\x02\0\0\0[]"), weft.HandshakeError, "not an object"),
        (lambda c: c.recv(1 << 20) and c.recv(1 << 20), weft.TimedOutError, "no answer within 0.3 s"),
    ],
)
def test_something_else_listens(answer, error, text):
    with stranger(answer) as address:
        # Short where the time is to run out; what is answered is answered in the stranger's own time.
        timeout = 0.3 if error is weft.TimedOutError else 20
        with pytest.raises(error, match=text):
            weft.connect(address, timeout=timeout).open()

        async def main():
            with pytest.raises(error):
                await weft.connect(address, timeout=timeout)

        asyncio.run(main())


@pytest.mark.parametrize(
    "garbage", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100_000, b"WEFT", WEFT + b"\x02\0\0\0{}" * 5]
)
def test_a_listener_survives_garbage(garbage, caplog):
    async def main():
        async def handler(peer):
            await peer.send(await peer.recv())

        async with weft.listen("127.0.0.1:0", handler) as listener:
            host, port = listener.address.split(":")
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(garbage)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            async with weft.connect(listener.address) as peer:
                await peer.send(b"legitimate")
                assert await peer.recv() == b"legitimate"
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    asyncio.run(asyncio.wait_for(main(), 100))


def test_a_blocking_listener_survives_garbage(spawn, caplog):
    with weft.listen("127.0.0.1:0") as listener:
        host, port = listener.address.split(":")
        with socket.create_connection((host, int(port))) as s:
            s.sendall(b"GET / HTTP/1.1\r\n\r\n")
            client = spawn(
                "import sys, weft\nwith weft.connect(sys.argv[1]) as peer: peer.send(b'x').wait(100)", listener.address
            )
            with listener.accept(100) as peer:
                assert peer.recv().wait(100) == b"x"
                with pytest.raises(weft.PeerClosedError):
                    peer.recv().wait(100)
        assert client.wait() == 0
    assert "does not speak weft" in caplog.text


def test_asyncio_does_not_hide_why_a_host_is_not_reached():
    """The loop puts a text of its own in place of the kernel's."""

    class Loop(asyncio.SelectorEventLoop):
        async def sock_connect(self, _sock, address):
            raise OSError(errno.EHOSTUNREACH, f"Connect call failed {address}")

    async def main():
        why = r"connect to 192\.0\.2\.1:1: No route to host; check the address and the route to it$"
        with pytest.raises(weft.UnreachableError, match=why):
            await weft.connect("192.0.2.1:1")

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(main())


def test_a_port_in_use():
    with (
        weft.listen("127.0.0.1:0") as listener,
        pytest.raises(weft.AddressError, match="already in use; choose another"),
    ):
        weft.listen(listener.address).__enter__()


def test_an_address_of_another_host():
    with pytest.raises(weft.AddressError, match=r"192\.0\.2\.1"):
        weft.listen("192.0.2.1:0").__enter__()


@pytest.mark.parametrize("name", ["no-such-host.invalid", "a" * 300, "a..b"])
def test_a_name_that_is_none(name):
    with pytest.raises(weft.UnreachableError, match=r"no such host: [^[]*$"):
        weft.connect(f"{name}:1").open()
    with pytest.raises(weft.AddressError):
        weft.listen(f"{name}:1").__enter__()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"info": {"x": "x" * 50_000}}, "info has 50009 B as JSON, and the limit is 49152"),
        ({"info": {"x": {1, 2}}}, "info must be JSON-able"),
        ({"info": {"x": math.nan}}, "info must be JSON-able"),
        ({"info": 5}, "info=5 is not a dict"),
        ({"settings": {"TLS": 5}}, "TLS=5 is int"),
        ({"settings": {5: "tcp"}}, "the name 5 is int"),
        ({"settings": {"TLS": "tcp\0"}}, "'TLS': 'tcp.x00' has characters that cannot be printed"),
        ({"settings": {"TLS\ud800": "tcp"}}, "has characters that cannot be printed"),
        ({"settings": "TLS=tcp"}, "'TLS=tcp' is not a mapping"),
        ({"ssl": True}, "ssl=True is not an ssl.SSLContext"),
    ],
)
def test_what_would_fail_in_every_handshake_is_refused_at_once(options, why):
    with pytest.raises(weft.InvalidParamError, match=why):
        weft.listen("127.0.0.1:0", **options)
    with pytest.raises(weft.InvalidParamError, match=why):
        weft.connect("127.0.0.1:1", **options)


@pytest.mark.parametrize("settings", [{}, {"TLS": "tcp,self"}])
def test_as_much_as_may_be_told_reaches_the_other_side(settings):
    told = {"x": "x" * 49_000}

    async def main():
        async def handler(peer):
            assert peer.remote == told
            await peer.send(b"heard")

        async with (
            weft.listen("127.0.0.1:0", handler, info=told, settings=settings) as listener,
            weft.connect(listener.address, info=told, settings=settings) as peer,
        ):
            assert peer.remote == told
            assert bytes(await peer.recv()) == b"heard"

    asyncio.run(asyncio.wait_for(main(), 100))


@pytest.mark.parametrize("timeout", [math.inf, 1e10])
def test_a_timeout_beyond_what_the_kernel_takes(timeout):
    def accept(listener):
        with listener.accept(timeout) as peer:
            peer.send(peer.recv().wait(timeout)).wait(timeout)

    with weft.listen("127.0.0.1:0") as listener, futures.ThreadPoolExecutor(1) as thread:
        accepted = thread.submit(accept, listener)
        with weft.connect(listener.address, timeout=timeout) as peer:
            peer.send(b"here").wait(timeout)
            assert bytes(peer.recv().wait(timeout)) == b"here"
        accepted.result()


@pytest.mark.parametrize("timeout", [math.nan, "5"])
def test_a_timeout_that_is_none(timeout):
    with pytest.raises(weft.InvalidParamError, match=f"timeout={timeout!r} is not a number of seconds"):
        weft.connect("127.0.0.1:1", timeout=timeout)
    with weft.listen("127.0.0.1:0") as listener, pytest.raises(weft.InvalidParamError, match="not a number of seconds"):
        listener.accept(timeout)


@pytest.mark.parametrize("flow", [-1, "x", None])
def test_a_flow_that_is_none(flow):
    with pytest.raises(weft.InvalidParamError, match=f"flow={flow!r} is not a number from 0 up"):
        weft.connect("127.0.0.1:1", flow=flow)


def test_no_port_and_no_sense():
    for address in ("127.0.0.1", "", "127.0.0.1:http"):
        with pytest.raises(weft.InvalidParamError):
            weft.connect(address)


def test_nobody_connects():
    with weft.listen("127.0.0.1:0") as listener, pytest.raises(weft.TimedOutError, match="no connection within"):
        listener.accept(0.02)


def test_the_wrong_face_is_named():
    async def handler(peer):
        pass

    with pytest.raises(weft.InvalidParamError, match="accept"):
        weft.listen("127.0.0.1:0", handler).__enter__()

    async def main():
        with pytest.raises(weft.InvalidParamError, match="handler"):
            async with weft.listen("127.0.0.1:0"):
                pass

    asyncio.run(main())


def open_files():
    """Say what this process's descriptors are, each with its number."""
    names = {}
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            names[number] = os.readlink(f"/proc/self/fd/{number}")
    return names


def test_a_cancelled_connect_leaves_nothing():
    def silent(connection):
        connection.recv(1 << 16)
        time.sleep(0.05)

    async def main(address):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(weft.connect(address)._open(), 0.02)

    with stranger(silent) as address:
        asyncio.run(main(address))
        before = open_files()
        for _ in range(3):
            asyncio.run(main(address))
        for _ in range(10_000):  # the stranger closes its ends in its own time
            if len(open_files()) <= len(before):
                break
            time.sleep(0.01)
        after = open_files()
        assert len(after) <= len(before), sorted(after.items() - before.items())


@pytest.mark.parametrize("handler", [5, "echo"])
def test_a_handler_that_cannot_be_called_is_refused_at_once(handler):
    with pytest.raises(weft.InvalidParamError, match=r"handler=.* is not callable; pass a coroutine function"):
        weft.listen("127.0.0.1:0", handler)


def test_a_handler_that_is_no_coroutine_function_says_so(caplog):
    async def main():
        async with weft.listen("127.0.0.1:0", lambda _: 5) as listener, weft.connect(listener.address) as peer:
            with pytest.raises(weft.PeerLostError):
                await peer.recv()

    asyncio.run(asyncio.wait_for(main(), 100))
    assert "listen: the handler must be an `async def` function; it returned 5" in caplog.text


def test_what_a_connection_has_only_when_it_is_open():
    connecting = weft.connect("127.0.0.1:1")
    for name in ("send", "transports"):
        with pytest.raises(AttributeError, match=f"{name}: the connection is not open: enter it with `with`"):
            getattr(connecting, name)
    with pytest.raises(AttributeError, match="'Connecting' object has no attribute 'nosuch'"):
        _ = connecting.nosuch
    with pytest.raises(AttributeError, match="no attribute 'wait'; `with` or `open` connects and blocks"):
        _ = connecting.wait


def test_handlers_end_with_the_listener():
    ended = []

    async def main():
        begun = asyncio.Event()

        async def handler(peer):
            begun.set()
            try:
                await asyncio.sleep(60)
            finally:
                ended.append(peer)

        async with weft.listen("127.0.0.1:0", handler) as listener:
            peer = await weft.connect(listener.address)
            await begun.wait()
        assert ended
        with pytest.raises(weft.PeerLostError):
            await peer.recv()

    asyncio.run(asyncio.wait_for(main(), 100))


def test_a_handler_that_raises_aborts_its_peer_only(caplog):
    async def main():
        async def handler(peer):
            if await peer.recv() == b"bad":
                raise ValueError("on purpose")
            await peer.send(b"fine")
            await peer.recv()

        async with weft.listen("127.0.0.1:0", handler) as listener:
            good, bad = await weft.connect(listener.address), await weft.connect(listener.address)
            await bad.send(b"bad")
            with pytest.raises(weft.PeerLostError):
                await bad.recv()
            await good.send(b"good")
            assert await good.recv() == b"fine"
            good.abort()

    asyncio.run(asyncio.wait_for(main(), 100))
    assert "on purpose" in caplog.text


def test_a_refusal_after_the_link_was_made_reaches_the_caller_as_one(monkeypatch):
    """Both ends are on this host, in two threads; the next connection makes the link anew."""
    encode, refusals = local.encode, [1]

    def refusing(**message):
        if "address" in message and "listens" not in message and refusals:
            refusals.pop()
            raise weft.InvalidParamError("no such luck")
        return encode(**message)

    monkeypatch.setattr(local, "encode", refusing)
    with futures.ThreadPoolExecutor(1) as pool, weft.listen("127.0.0.1:0") as listener:

        def call():
            with pytest.raises(weft.UnreachableError, match=r"the other side refused: accept from .*: no such luck"):
                weft.connect(listener.address, timeout=20).open()
            with weft.connect(listener.address, timeout=20) as peer:
                peer.send(b"x").wait(20)

        calling = pool.submit(call)
        with listener.accept(timeout=20) as peer:
            assert peer.recv().wait(20) == b"x"
        calling.result(20)
    assert not refusals


def test_a_caller_that_resets_before_it_is_looked_at_does_not_end_the_wait(caplog):
    with weft.listen("127.0.0.1:0") as listener:
        host, _, port = listener.address.rpartition(":")
        with socket.create_connection((host, int(port))) as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with pytest.raises(weft.TimedOutError):
            listener.accept(0.1)
    assert "rejected a connection: accept from an unknown address" in caplog.text


def test_a_caller_that_was_accepted_when_the_listener_ends_is_hung_up_on():
    async def main():
        async with weft.listen("127.0.0.1:0", lambda _: None) as listener:
            loop = asyncio.get_running_loop()
            host, _, port = listener.address.rpartition(":")
            with socket.create_connection((host, int(port))) as s:
                s.setblocking(False)
                listener._take(loop, listener._sockets[0], listener._workers)
                await listener.__aexit__()  # the task that serves the caller has not begun
                assert await asyncio.wait_for(loop.sock_recv(s, 1), 100) == b""

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        asyncio.run(main())
        gc.collect()
    assert not warned


def test_a_blocking_listener_keeps_nothing_of_callers_that_are_gone(fds):
    """It aborts each connection, so nothing but the next accept can notice that the caller has ended."""

    def call(address):
        weft.connect(address).open().abort()

    with weft.listen("127.0.0.1:0") as listener:
        counts = []
        for _ in range(6):
            caller = threading.Thread(target=call, args=(listener.address,))
            caller.start()
            listener.accept(20).abort()
            caller.join()
            counts.append(fds())
        assert counts[-1] == counts[1]
        with pytest.raises(weft.TimedOutError):
            listener.accept(0)
        assert fds() < counts[-1]


@contextlib.contextmanager
def descriptors_left(count):
    """Take all descriptors but `count`."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, open_files())) + 20, limits[1]))
    taken = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(count):
            os.close(taken.pop())
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("left", [0, 1])
def test_a_listen_without_descriptors_is_refused_and_leaves_nothing(left, fds):
    listener = weft.listen(f"127.0.0.1:{free_port()}")
    before = fds()
    with descriptors_left(left), pytest.raises(weft.NoMemoryError, match=r"^listen on 127.*ulimit -n"):
        listener.__enter__()
    assert fds() == before
    with listener:
        pass


def test_a_name_that_cannot_be_looked_up_without_descriptors_is_not_called_absent():
    with contextlib.suppress(OSError):
        socket.getaddrinfo("localhost", 1)  # what is imported for this is there now
    connecting = weft.connect("localhost:1")
    with descriptors_left(0), pytest.raises(weft.Error) as caught:
        connecting.open()
    assert isinstance(caught.value, weft.NoMemoryError) or "no such host" not in str(caught.value)


@pytest.mark.parametrize(
    ("number", "error", "text"),
    [
        (errno.EMFILE, weft.NoMemoryError, "Too many open files; is the limit of open files (ulimit -n) reached?"),
        (errno.ENFILE, weft.NoMemoryError, "Too many open files in system; is the limit"),
        (errno.EACCES, weft.UnreachableError, "the name cannot be looked up: Permission denied"),
    ],
)
def test_a_failure_of_the_resolver_is_no_absent_host(number, error, text, monkeypatch):
    def fails(*_args, **_options):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket, "getaddrinfo", fails)
    with pytest.raises(error, match=re.escape(f"connect to some-host:1: {text}")):
        weft.connect("some-host:1").open()

    async def main():
        with pytest.raises(error, match=re.escape(f"connect to some-host:1: {text}")):
            await weft.connect("some-host:1")

    asyncio.run(main())


def test_a_connect_without_descriptors_is_refused(monkeypatch):
    with weft.listen("127.0.0.1:0") as listener:
        address = listener.address
        with descriptors_left(0), pytest.raises(weft.NoMemoryError, match=r"^connect to 127.*ulimit -n"):
            weft.connect(address).open()
        monkeypatch.delitem(sys.modules, "ipaddress")
        with descriptors_left(0), pytest.raises(weft.NoMemoryError, match=r"^the address of .*ulimit -n"):
            _ = listener.address


def test_connections_from_one_process_to_threads_that_share_a_listener_raise_no_warning(caplog):
    """The caller offers the link that it has, which may be another thread's, and then connects again."""

    def serve(count):
        for _ in range(count):
            with listener.accept(30) as peer:
                peer.send(peer.recv().wait(30)).wait(30)

    code = """
import sys, weft
for i in range(40):
    with weft.connect(sys.argv[1], timeout=30) as peer:
        peer.send(b"x").wait(30)
        peer.recv().wait(30)
"""
    caplog.set_level(logging.INFO, "weft")
    with weft.listen("127.0.0.1:0") as listener, futures.ThreadPoolExecutor(2) as threads:
        served = [threads.submit(serve, 20) for _ in range(2)]
        subprocess.run([sys.executable, "-c", code, listener.address], check=True, timeout=60)
        for each in served:
            each.result(30)
    assert [r.getMessage() for r in caplog.records if r.levelno > logging.INFO] == []


@pytest.mark.parametrize("make", [lambda: weft.connect("127.0.0.1:1"), lambda: weft.listen("127.0.0.1:0", print)])
def test_outside_asyncio_it_says_what_to_do(make):
    async def main():
        async with make():
            pass

    with pytest.raises(RuntimeError, match=r"no asyncio event loop runs in this thread, .* use `with` and .wait\(\)"):
        main().send(None)
