# SPDX-License-Identifier: BSD-3-Clause
"""Streams: bytes in order, without borders."""

import pytest

import weft


@pytest.fixture
def endpoint():
    context = weft.Context({"TLS": "posix"}, features=["stream"])
    worker = weft.Worker(context)
    yield worker.connect(worker.address)
    worker.close()
    context.close()


def test_bytes_without_borders(endpoint):
    for part in (b"one", b"two", b"three"):
        endpoint.stream_send(part).wait(100)
    first, rest = bytearray(4), bytearray(7)
    assert endpoint.stream_recv(first, wait_all=True).wait(100) == 4
    assert endpoint.stream_recv(rest, wait_all=True).wait(100) == 7
    assert first + rest == b"onetwothree"


def test_some_bytes_are_enough_unless_all_are_waited_for(endpoint):
    buffer = bytearray(100)
    some, all_of_them = endpoint.stream_recv(buffer), bytearray(6)
    endpoint.stream_send(b"abc").wait(100)
    assert some.wait(100) == 3
    request = endpoint.stream_recv(all_of_them, wait_all=True)
    endpoint.stream_send(b"123").wait(100)
    with pytest.raises(weft.TimedOutError):
        request.wait(0.01)
    endpoint.stream_send(b"456").wait(100)
    assert request.wait(100) == 6
    assert all_of_them == b"123456"


def test_a_large_piece(endpoint):
    data = bytes(range(256)) * 20_000
    buffer = bytearray(len(data))
    received = endpoint.stream_recv(buffer, wait_all=True)
    sent = endpoint.stream_send(data)
    assert received.wait(100) == len(data)
    sent.wait(100)
    assert buffer == data


@pytest.mark.parametrize("tls", ["posix,self", "tcp"])
@pytest.mark.parametrize("size", [0, 1 << 20])
def test_what_ended_another_receive_does_not_end_a_stream_s(tls, size):
    """UCX ends a receive whose bytes are all there with the status that its request's former use has left."""
    data = bytes(range(256)) * (size // 256)
    context = weft.Context({"TLS": tls}, features=["tag", "stream"])
    a, b = weft.Worker(context), weft.Worker(context)
    there, here = a.connect(b.address), b.connect(a.address)

    def turn(times):
        for _ in range(times):
            a.progress(), b.progress()

    b.tag_recv(bytearray(9_000), 1).cancel()
    turn(100)
    for _ in range(20):
        if data:
            there.stream_send(data)
            turn(5_000)  # all is there when the receive is posted
        buffer = bytearray(len(data))
        received = here.stream_recv(buffer, wait_all=True)
        turn(10)
        assert received.result() == len(data)
        assert buffer == data
    pending = [b.tag_recv(bytearray(100), n) for n in range(100)]  # with requests of UCX's that are all different
    for each in (a, b, context):
        each.close()
    assert all(each.done() for each in pending)


def test_a_cancelled_receive_still_takes_its_bytes(endpoint):
    buffer = bytearray(4)
    request = endpoint.stream_recv(buffer)
    assert request.cancel()
    with pytest.raises(BufferError):
        buffer.append(0)
    endpoint.stream_send(b"lostkept").wait(100)
    later = bytearray(4)
    assert endpoint.stream_recv(later, wait_all=True).wait(100) == 4
    assert (buffer, later) == (b"lost", b"kept")
    buffer.append(0)


def test_closing_with_a_receive_pending(endpoint):
    request = endpoint.stream_recv(bytearray(4))
    endpoint.close(force=True).wait(100)
    with pytest.raises(weft.Error):
        request.wait(100)


def test_without_the_feature(worker):
    endpoint = worker.connect(worker.address)
    for operation in (endpoint.stream_send, endpoint.stream_recv):
        with pytest.raises(weft.UnsupportedError, match=r'features=\["stream"\]'):
            operation(bytearray(1))
