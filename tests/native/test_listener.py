# SPDX-License-Identifier: BSD-3-Clause
"""UCP's own listener and connector."""

import asyncio
import gc
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest

import weft

HANG_S = 20


@pytest.fixture
def sides():
    """Two workers of which one listens on the loopback."""
    context = weft.Context({"TLS": "tcp"})
    server, client = weft.Worker(context), weft.Worker(context)
    yield server, client, server.listen_sockaddr("127.0.0.1:0")
    client.close()
    server.close()
    context.close()


def crank(workers, *requests):
    deadline = time.monotonic() + HANG_S  # not a number of turns: UCX's own thread and the kernel take part
    while not all(request.done() for request in requests):
        assert time.monotonic() < deadline, "nothing happened"
        for worker in workers:
            worker.progress()


def accept(server, client, listener):
    out = client.connect_sockaddr(listener.address)
    request = listener.accept()
    crank((server, client), request)
    return out, request.result()


def test_both_ways(sides):
    server, client, listener = sides
    assert listener.address.startswith("127.0.0.1:")
    out, back = accept(*sides)
    there, here = server.tag_recv(bytearray(4), 1), client.tag_recv(bytearray(4), 2)
    out.tag_send(b"ping", 1)
    back.tag_send(b"pong", 2)
    crank((server, client), there, here)
    assert (there.result(), here.result()) == ((4, 1), (4, 2))
    assert {lane.split("/")[0] for lane in out.transports} == {"tcp"}


def test_connections_wait_to_be_accepted(sides):
    server, client, listener = sides
    outs = [client.connect_sockaddr(listener.address) for _ in range(3)]
    sends = [out.tag_send(b"x", i) for i, out in enumerate(outs)]
    requests = [listener.accept() for _ in range(3)]
    crank((server, client), *requests)
    backs = [request.result() for request in requests]
    received = [server.tag_recv(bytearray(1), i) for i in range(3)]
    crank((server, client), *received, *sends)
    assert len(backs) == 3


def test_a_cancelled_accept_takes_no_connection(sides):
    _, _, listener = sides
    waiting = listener.accept()
    assert waiting.cancel()
    assert accept(*sides)


def test_an_accept_that_nobody_looked_at_gives_the_connection_back(sides):
    server, client, listener = sides
    out = client.connect_sockaddr(listener.address)
    request = listener.accept()
    crank((server, client), request)
    del request
    gc.collect()
    again = listener.accept()
    crank((server, client), again)
    back = again.result()
    received = server.tag_recv(bytearray(1), 1)
    out.tag_send(b"x", 1)
    crank((server, client), received)
    assert not back.closed


@pytest.mark.parametrize("elsewhere", [False, True], ids=["its thread", "another thread"])
def test_a_connection_that_comes_back_reaches_an_accept_that_waits(sides, elsewhere):
    server, client, listener = sides
    first, second = listener.accept(), listener.accept()
    out = client.connect_sockaddr(listener.address)
    crank((server, client), first)
    held = [first]
    del first
    if elsewhere:
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
    held.clear()
    crank((server, client), second)
    assert [end.closed for end in (second.result(), out)] == [False, False]


def test_a_failed_accept_fails_each_time(spawn):
    """In a process of its own: the second look at the result crashed.

    Whether UCX still makes an endpoint to who has gone is a matter of moments, so it is tried until it does not.
    """
    child = spawn("""
        import time, weft
        context = weft.Context({"TLS": "tcp"})
        server = weft.Worker(context)
        listener = server.listen_sockaddr("127.0.0.1:0")

        def looked_at(request):
            try:
                return request.wait(100)
            except weft.Error as error:
                assert "the connector has disconnected" in str(error), error
                return type(error), error.status

        deadline = time.monotonic() + 100
        first = None
        while not isinstance(first, tuple) and time.monotonic() < deadline:
            client = weft.Worker(context)
            out = client.connect_sockaddr(listener.address)
            request = listener.accept()
            while not request.done() and time.monotonic() < deadline:
                client.progress(), server.progress()
            client.close()
            for _ in range(100):
                server.progress()
            first = looked_at(request)
        assert isinstance(first, tuple), "each has an endpoint"
        assert looked_at(request) == first
        assert type(request.exception()) is first[0]
        """)
    assert child.wait() == 0


async def gathered(request):
    return await asyncio.wait_for(asyncio.gather(request, return_exceptions=True), HANG_S)


def test_gather_hears_of_a_failed_accept():
    context = weft.Context({"TLS": "tcp"})
    server = weft.Worker(context)
    listener = server.listen_sockaddr("127.0.0.1:0")
    until = time.monotonic() + HANG_S  # UCX may still make an endpoint to who has gone
    error = None
    while not isinstance(error, weft.Error):
        assert time.monotonic() < until, "each has an endpoint"
        client = weft.Worker(context)
        out = client.connect_sockaddr(listener.address)
        request = listener.accept()
        crank((server, client), request)
        client.close()
        for _ in range(100):
            server.progress()
        (error,) = asyncio.run(gathered(request))
    assert "the connector has disconnected" in str(error)
    assert request.exception().status == error.status
    assert out.closed
    server.close()
    context.close()


def test_gather_of_an_accept(sides):
    server, client, listener = sides
    out = client.connect_sockaddr(listener.address)
    request = listener.accept()
    crank((server, client), request)
    (back,) = asyncio.run(gathered(request))
    assert not back.closed
    assert not out.closed
    assert request.exception() is None
    assert request.result() is back


def test_closing_ends_who_waits(sides):
    server, client, listener = sides
    waiting = listener.accept()
    address = listener.address
    listener.close()
    listener.close()
    with pytest.raises(weft.ClosedError, match="the listener was closed"):
        waiting.wait(100)
    with pytest.raises(weft.ClosedError):
        listener.accept()
    with pytest.raises(weft.ClosedError):
        assert listener.address
    sent = client.connect_sockaddr(address).flush()
    crank((server, client), sent)
    with pytest.raises(weft.Error):
        sent.result()


def test_who_was_not_accepted_is_rejected(sides):
    server, client, listener = sides
    sent = client.connect_sockaddr(listener.address).flush()
    for _ in range(1000):
        server.progress()
        client.progress()
    listener.close()
    crank((server, client), sent)
    with pytest.raises(weft.Error):
        sent.result()


def test_a_listener_that_is_dropped(sides):
    server, client, listener = sides
    address = listener.address
    client.connect_sockaddr(address)
    for _ in range(1000):
        server.progress()
        client.progress()
    del listener
    gc.collect()
    server.progress()


def test_nobody_listens(sides):
    _, client, _ = sides
    with pytest.raises(weft.Error):
        client.connect_sockaddr("127.0.0.1:1").flush().wait(100)


def test_a_dropped_endpoint_that_fails(spawn):
    """UCX tells of the failure after the endpoint was dropped; it told memory that others had by then.

    In a process of its own, whose memory it may spoil.
    """
    child = spawn("""
        import socket, time, weft
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            address = "127.0.0.1:%d" % other.getsockname()[1]
        worker = weft.Worker(weft.Context({"TLS": "tcp"}))
        for _ in range(10):
            endpoint = worker.connect_sockaddr(address)
            del endpoint
            others = []
            others = [bytes([65]) * nbytes for nbytes in range(8, 120, 8) for _ in range(4000)]
            time.sleep(0.05)  # UCX's own thread learns of it meanwhile
            for _ in range(200):
                worker.progress()
            assert all(each.count(65) == len(each) for each in others), "memory changed"
        worker.close()
        """)
    assert child.wait(60) == 0


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:", "127.0.0.1:port", "127.0.0.1:65536", "127.0.0.1:-1"])
def test_addresses_that_are_none(sides, address):
    server, client, _ = sides
    for operation in (server.listen_sockaddr, client.connect_sockaddr):
        with pytest.raises(weft.InvalidParamError, match=r"has no port|is not a port between 0 and 65535"):
            operation(address)


def test_a_host_that_is_unknown(sides):
    server, client, _ = sides
    with pytest.raises(weft.AddressError):
        server.listen_sockaddr("nohost.invalid:1")
    with pytest.raises(weft.UnreachableError):
        client.connect_sockaddr("nohost.invalid:1")


def test_a_port_that_is_taken(sides):
    server, _, listener = sides
    with pytest.raises(weft.AddressError, match=r"Address already in use; .* a free port"):
        server.listen_sockaddr(listener.address)


def test_an_address_of_another_host(sides):
    server, _, _ = sides
    with pytest.raises(weft.AddressError, match="Cannot assign requested address; pass an address of this host"):
        server.listen_sockaddr("192.0.2.1:0")


def test_ipv6_is_refused(sides):
    server, client, _ = sides
    for operation in (server.listen_sockaddr, client.connect_sockaddr):
        with pytest.raises(weft.UnsupportedError, match="IPv4 address"):
            operation("[::1]:0")


@pytest.fixture(scope="module")
def echo(tmp_path_factory):
    """A program in C that speaks UCX and knows nothing of weft."""
    library = Path(weft.ucx_library().path)
    include = library.parents[1] / "include"
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("g++")
    if not (include / "ucp/api/ucp.h").exists() or not compiler:
        pytest.skip("UCX's headers or a C compiler are missing")
    program = tmp_path_factory.mktemp("echo") / "echo"
    libraries = [library, next(library.parent.glob("libucs.so*"))]
    flags = [f"-I{include}", f"-Wl,-rpath,{library.parent}", "-Wl,--allow-shlib-undefined"]
    subprocess.run(
        [compiler, "-x", "c", Path(__file__).with_name("echo.c"), "-x", "none", "-o", program, *flags, *libraries],
        check=True,
    )
    return program


def test_a_program_that_knows_only_ucx(sides, echo):
    server, _, listener = sides
    host, port = listener.address.split(":")
    environment = {**os.environ, "UCX_TLS": "tcp"}
    with subprocess.Popen([echo, host, port, "from C"], stdout=subprocess.PIPE, text=True, env=environment) as other:
        try:
            back = listener.accept().wait(100)
            buffer = bytearray(100)
            nbytes, _ = server.tag_recv(buffer, 1).wait(100)
            assert buffer[:nbytes] == b"from C"
            back.tag_send(b"from Python", 2).wait(100)
            until = time.monotonic() + 100
            while other.poll() is None and time.monotonic() < until:
                server.progress()  # its goodbye wants an answer
            assert other.stdout.read() == "from Python\n"
            assert other.returncode == 0
        finally:
            other.kill()
