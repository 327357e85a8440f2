# SPDX-License-Identifier: BSD-3-Clause
"""Synchronous sends, probes and what they take, and many messages with one request."""

import gc

import pytest

import weft


def crank(worker, turns=50):
    for _ in range(turns):
        worker.progress()


@pytest.mark.parametrize("nbytes", [8, 100_000, 1 << 20])
def test_a_synchronous_send_ends_with_its_match(worker, endpoint, nbytes):
    sent = endpoint.tag_send_sync(bytes(nbytes), 1)
    crank(worker)
    assert not sent.done()
    received = worker.tag_recv(bytearray(nbytes), 1)
    assert received.wait(100) == (nbytes, 1)
    sent.wait(100)


@pytest.mark.parametrize("nbytes", [0, 8, 1 << 20])
def test_a_probe_tells_of_a_message_and_leaves_it(worker, endpoint, nbytes):
    sent = endpoint.tag_send(bytes(nbytes), 0x12)
    crank(worker)
    assert worker.tag_probe(0x13) is None
    assert worker.tag_probe(0x10, 0xF0) == (nbytes, 0x12)
    assert worker.tag_recv(bytearray(nbytes), 0x12).wait(100) == (nbytes, 0x12)
    assert worker.tag_probe(0x12) is None
    sent.wait(100)


@pytest.mark.parametrize("nbytes", [0, 8, 1 << 20])
def test_a_probe_that_removes_takes_the_message(worker, endpoint, nbytes):
    data = bytes(i % 251 for i in range(nbytes))
    sent = endpoint.tag_send(data, 7)
    crank(worker)
    message = worker.tag_probe(7, remove=True)
    assert (message.nbytes, message.tag) == (nbytes, 7)
    assert worker.tag_probe(7) is None
    buffer = bytearray(nbytes)
    assert worker.tag_msg_recv(buffer, message).wait(100) == (nbytes, 7)
    assert buffer == data
    sent.wait(100)
    with pytest.raises(weft.InvalidParamError, match="already been received"):
        worker.tag_msg_recv(buffer, message)


def test_a_refused_destination_leaves_the_message(worker, endpoint):
    endpoint.tag_send(b"data", 7).wait(100)
    crank(worker)
    message = worker.tag_probe(7, remove=True)
    with pytest.raises(weft.ReadOnlyError):
        worker.tag_msg_recv(b"four", message)
    assert worker.tag_msg_recv(bytearray(4), message).wait(100) == (4, 7)


def test_a_message_that_does_not_fit(worker, endpoint):
    endpoint.tag_send(b"data", 7).wait(100)
    crank(worker)
    request = worker.tag_msg_recv(bytearray(3), worker.tag_probe(7, remove=True))
    with pytest.raises(weft.TruncatedError):
        request.wait(100)


def test_a_message_of_another_worker(context, worker, endpoint):
    endpoint.tag_send(b"data", 7).wait(100)
    crank(worker)
    message = worker.tag_probe(7, remove=True)
    other = weft.Worker(context)
    with pytest.raises(weft.InvalidParamError, match="another worker"):
        other.tag_msg_recv(bytearray(4), message)
    other.close()


@pytest.mark.parametrize("nbytes", [8, 1 << 20])
def test_a_message_that_is_dropped_is_gone(worker, endpoint, nbytes):
    sent = endpoint.tag_send(bytes(nbytes), 7)
    crank(worker)
    message = worker.tag_probe(7, remove=True)
    del message
    gc.collect()
    sent.wait(100)
    assert worker.tag_probe(7) is None


def test_a_message_outlives_its_worker(context):
    worker = weft.Worker(context)
    worker.connect(worker.address).tag_send(b"x", 7).wait(100)
    crank(worker)
    message = worker.tag_probe(7, remove=True)
    worker.close()
    del worker
    with pytest.raises(weft.ClosedError):
        message_worker = weft.Worker(context)
        message_worker.close()
        message_worker.tag_msg_recv(bytearray(1), message)


# ---- many ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [8, 100_000])
def test_many_messages_with_one_request(worker, endpoint, nbytes):
    count = 1000 if nbytes == 8 else 50
    sources = [i.to_bytes(8, "little") + bytes(nbytes - 8) for i in range(count)]
    buffers = [bytearray(nbytes) for _ in range(count)]
    received = worker.tag_recv_many(buffers, 3)
    sent = endpoint.tag_send_many(sources, 3)
    assert received.wait(100) == [(nbytes, 3)] * count
    assert sent.wait(100) is None
    assert buffers == sources


def test_many_and_single_messages_mix(worker, endpoint):
    endpoint.tag_send_many((b"a", b"bc"), 3).wait(100)
    one, two = bytearray(2), bytearray(2)
    assert worker.tag_recv(one, 3).wait(100) == (1, 3)
    assert worker.tag_recv_many([two], 0, 0).wait(100) == [(2, 3)]
    assert (one, two) == (b"a\0", b"bc")


def test_none_at_all(worker, endpoint):
    assert endpoint.tag_send_many([], 3).wait(100) is None
    assert worker.tag_recv_many([], 3).wait(100) == []


def test_one_bad_buffer_and_nothing_is_sent(worker, endpoint):
    with pytest.raises(weft.NotContiguousError):
        endpoint.tag_send_many([b"good", memoryview(b"12345678")[::2]], 3)
    with pytest.raises(weft.ReadOnlyError):
        worker.tag_recv_many([bytearray(4), b"read"], 3)
    with pytest.raises(TypeError):
        endpoint.tag_send_many(5, 3)
    crank(worker)
    assert worker.tag_probe(3) is None


def test_one_failure_fails_all_but_all_end(worker, endpoint):
    buffers = [bytearray(4), bytearray(1), bytearray(4)]
    received = worker.tag_recv_many(buffers, 3)
    endpoint.tag_send_many([b"1111", b"2222", b"3333"], 3).wait(100)
    with pytest.raises(weft.TruncatedError):
        received.wait(100)
    assert (buffers[0], buffers[2]) == (b"1111", b"3333")


def test_buffers_of_many_are_locked_until_they_all_ended(worker, endpoint):
    buffers = [bytearray(1), bytearray(1)]
    received = worker.tag_recv_many(buffers, 3)
    endpoint.tag_send(b"x", 3).wait(100)
    crank(worker)
    for buffer in buffers:
        with pytest.raises(BufferError):
            buffer.append(0)
    endpoint.tag_send(b"y", 3).wait(100)
    received.wait(100)
    for buffer in buffers:
        buffer.append(0)


def test_cancelling_many_withdraws_what_has_not_matched(worker, endpoint):
    buffers = [bytearray(1), bytearray(1), bytearray(1)]
    received = worker.tag_recv_many(buffers, 3)
    endpoint.tag_send(b"x", 3).wait(100)
    crank(worker)
    assert received.cancel()
    crank(worker)
    for buffer in buffers:
        buffer.append(0)
    endpoint.tag_send(b"z", 3).wait(100)
    assert worker.tag_recv(bytearray(1), 3).wait(100) == (1, 3)


def test_closing_with_many_under_way(context):
    worker = weft.Worker(context)
    buffers = [bytearray(1) for _ in range(10)]
    received = worker.tag_recv_many(buffers, 3)
    worker.close()
    with pytest.raises(weft.CanceledError):
        received.wait(1)
    buffers[0].append(0)


def test_a_list_that_changes_while_its_buffers_are_taken(spawn):
    """In a process of its own: what followed in the list was used after it was freed."""
    child = spawn("""
        import weft
        worker = weft.Worker(weft.Context({"TLS": "posix,self"}))
        endpoint = worker.connect(worker.address)

        class Clears:
            def __dlpack_device__(self):
                buffers.clear()
                return (1, 0)

            def __dlpack__(self, **options):
                raise BufferError("nothing here")

        for operation in (endpoint.tag_send_many, worker.tag_recv_many):
            buffers = [bytearray(8), *(bytearray(8) for _ in range(50))]
            buffers.insert(1, Clears())
            try:
                operation(buffers, 1)
            except BufferError as error:
                assert "nothing here" in str(error)
        worker.close()
        """)
    assert child.wait() == 0


def test_a_message_that_is_received_while_its_destination_is_exported(spawn):
    """In a process of its own: it crashed."""
    child = spawn("""
        import weft
        from tests.native.dlpack import DLPackArray
        worker = weft.Worker(weft.Context({"TLS": "posix,self"}))
        worker.connect(worker.address).tag_send(b"data", 7).wait(100)
        while not (message := worker.tag_probe(7, remove=True)):
            worker.progress()

        class Receives(DLPackArray):
            def __dlpack_device__(self):
                self.request = worker.tag_msg_recv(self.memory, message)
                return super().__dlpack_device__()

        receives = Receives(bytearray(4))
        try:
            worker.tag_msg_recv(receives, message)
        except weft.InvalidParamError as error:
            assert "already been received" in str(error)
        else:
            raise AssertionError
        assert receives.request.wait(100) == (4, 7)
        """)
    assert child.wait() == 0
