# SPDX-License-Identifier: BSD-3-Clause
"""Tags, active messages, flush, close and lanes, cranked by hand on one worker."""

import sys

import numpy as np
import pytest

import weft


def test_tags_and_masks(worker, endpoint):
    first, second = bytearray(1), bytearray(1)
    any_low = worker.tag_recv(first, 0x100, mask=0xFF00)
    exact = worker.tag_recv(second, 0x205)
    endpoint.tag_send(b"b", 0x205).wait(100)
    endpoint.tag_send(b"a", 0x1FE).wait(100)
    assert any_low.wait(100) == (1, 0x1FE)
    assert exact.wait(100) == (1, 0x205)
    assert (first, second) == (b"a", b"b")


@pytest.mark.parametrize("tag", [0, 1, 2**63, 2**64 - 1])
def test_any_64_bit_tag(worker, endpoint, tag):
    received = worker.tag_recv(bytearray(1), tag)
    endpoint.tag_send(b"x", tag).wait(100)
    assert received.wait(100) == (1, tag)


@pytest.mark.parametrize("tag", [-1, 2**64, "tag", 1.5])
def test_other_tags_are_refused(endpoint, tag):
    with pytest.raises(TypeError):
        endpoint.tag_send(b"x", tag)


@pytest.mark.parametrize("nbytes", [0, 1, 100, 8191, 65536, 1 << 20, 5 << 20])
def test_active_messages_of_every_size(worker, endpoint, nbytes):
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, "u1")
    received = worker.am_recv(3)
    sent = endpoint.am_send(3, b"head", data)
    header, got = received.wait(100)
    sent.wait(100)
    assert header == b"head"
    assert bytes(got) == data.tobytes()
    assert not got.readonly


def test_active_message_without_data_or_header(worker, endpoint):
    received = worker.am_recv(3)
    endpoint.am_send(3, b"").wait(100)
    header, data = received.wait(100)
    assert (header, data.nbytes) == (b"", 0)


@pytest.mark.parametrize("sizes", [(1, 2, 3), (0, 10, 0), (70_000, 5, 300_000), tuple([100] * 500)])
def test_scatter_gather_arrives_as_one_piece(worker, endpoint, sizes):
    parts = [bytes([i % 251]) * size for i, size in enumerate(sizes)]
    received = worker.am_recv(3)
    sent = endpoint.am_send(3, b"h", parts)
    _, data = received.wait(100)
    sent.wait(100)
    assert bytes(data) == b"".join(parts)


def test_an_active_message_may_come_before_its_receive(worker, endpoint):
    worker.am_recv(3).cancel()  # registers the id
    sent = [endpoint.am_send(3, b"1", b"eager"), endpoint.am_send(3, b"2", bytes(1 << 20))]
    for _ in range(1000):
        worker.progress()
    assert worker.am_recv(3).wait(100)[0] == b"1"
    assert worker.am_recv(3).wait(100)[1].nbytes == 1 << 20
    for request in sent:
        request.wait(100)


def test_a_cancelled_receive_takes_no_message_along(worker, endpoint):
    cancelled, kept = worker.am_recv(3), worker.am_recv(3)
    assert cancelled.cancel()
    endpoint.am_send(3, b"only", b"x").wait(100)
    assert kept.wait(100)[0] == b"only"


def test_a_header_that_ucx_cannot_hold_is_refused(worker, endpoint):
    with pytest.raises(weft.InvalidParamError, match="header"):
        endpoint.am_send(3, bytes(worker.max_am_header + 1))
    received = worker.am_recv(3)
    endpoint.am_send(3, bytes(worker.max_am_header), b"x").wait(100)
    assert len(received.wait(100)[0]) == worker.max_am_header


def test_reserved_ids_are_refused(worker, endpoint):
    with pytest.raises(weft.InvalidParamError):
        endpoint.am_send(63, b"")
    with pytest.raises(weft.InvalidParamError):
        worker.am_recv(63)


def test_transports_tell_the_lanes_in_use(endpoint):
    assert endpoint.transports == ["posix/memory"]


def test_flush(worker, endpoint):
    received = worker.tag_recv(bytearray(8), 1)
    endpoint.tag_send(b"12345678", 1)
    endpoint.flush().wait(100)
    received.wait(100)


def test_close_is_idempotent_and_ends_use(endpoint):
    endpoint.close().wait(100)
    assert endpoint.closed
    endpoint.close().wait(100)
    with pytest.raises(weft.ClosedError, match="tag_send: the endpoint is closed"):
        endpoint.tag_send(b"x", 1)


def test_an_address_that_is_none_is_refused(worker):
    with pytest.raises(weft.InvalidParamError):
        worker.connect(b"")
    with pytest.raises(TypeError):
        worker.connect("text")


def test_methods_check_their_self(worker):
    with pytest.raises(TypeError):
        weft.Endpoint.tag_send(worker, b"x", 1)
    with pytest.raises(TypeError):
        weft.Worker.tag_recv(object(), bytearray(1), 1)
    with pytest.raises(TypeError):
        weft.Worker(object())


def test_an_immediate_send_allocates_no_blocks(worker, endpoint):
    data, into = b"12345678", bytearray(8)

    def once():
        endpoint.tag_send(data, 1)
        worker.tag_recv(into, 1).wait()

    def many(n):
        before = sys.getallocatedblocks()
        for _ in range(n):
            once()
        return sys.getallocatedblocks() - before

    many(1000)
    # What the measurement itself holds, and nothing for each send. The count is the process's: what other tests have
    # left running in it may allocate meanwhile.
    assert any(many(10_000) == many(1000) for _ in range(50))


def test_a_thousand_requests_leave_no_reference(worker, endpoint):
    data, into = bytearray(100_000), bytearray(100_000)
    counts = sys.getrefcount(data), sys.getrefcount(into), sys.getrefcount(worker), sys.getrefcount(endpoint)
    for _ in range(1000):
        received = worker.tag_recv(into, 1)
        sent = endpoint.tag_send(data, 1)
        received.wait(100)
        sent.wait(100)
    del received, sent
    assert (sys.getrefcount(data), sys.getrefcount(into), sys.getrefcount(worker), sys.getrefcount(endpoint)) == counts


def test_what_ucx_tells_of_an_endpoint(worker, endpoint):
    received = worker.tag_recv(bytearray(1), 1)
    endpoint.tag_send(b"x", 1).wait(100)  # UCX 1.23 chooses protocols when the first message is sent
    received.wait(100)
    text = endpoint.print_info()
    assert "lane[0]" in text
    assert "active message by ucp_am_send* from host memory" in text
    assert 0 < endpoint.evaluate_perf(8) < endpoint.evaluate_perf(1 << 30)
    endpoint.close(force=True)
    with pytest.raises(weft.ClosedError):
        endpoint.print_info()
    with pytest.raises(weft.ClosedError):
        endpoint.evaluate_perf(8)
