# SPDX-License-Identifier: BSD-3-Clause
"""Active messages for handlers: lent data, rendezvous into chosen memory, replies."""

import gc
import signal
import sys
import time

import pytest
from tests.native.dlpack import DLPackArray

import weft

HANG_S = 20


@pytest.fixture
def context():
    """With it 1 MiB goes by rendezvous whatever the UCX: by its own choice 1.18 would send it eagerly."""
    yield weft.Context({"TLS": "posix,self", "RNDV_THRESH": "256k"})
    gc.collect()


@pytest.fixture
def arrived(worker):
    """Messages of id 3, as they arrive."""
    messages = []
    worker.set_am_recv_handler(3, messages.append)
    return messages


def crank(worker, until):
    deadline = time.monotonic() + HANG_S  # not a number of turns: what gets lost on the way comes again after a while
    while not until():
        assert time.monotonic() < deadline, "nothing came"
        worker.progress()


@pytest.mark.parametrize("nbytes", [0, 1, 100, 8000])
def test_eager_data_is_lent(worker, endpoint, arrived, nbytes):
    data = bytes(i % 251 for i in range(nbytes))
    endpoint.am_send(3, b"head", data).wait(100)
    crank(worker, lambda: arrived)
    (message,) = arrived
    assert (message.header, message.nbytes, message.rendezvous, message.reply) == (b"head", nbytes, False, None)
    view = memoryview(message)
    assert view.readonly
    assert view == data


def test_lent_data_is_not_overwritten(worker, endpoint, arrived):
    for i in range(600):
        endpoint.am_send(3, b"", bytes([i % 256]) * 1000)
        worker.progress()
    crank(worker, lambda: len(arrived) == 600)
    for i, message in enumerate(arrived):
        assert bytes(message) == bytes([i % 256]) * 1000


def test_rendezvous_into_memory_that_the_handler_chooses(worker, endpoint, arrived):
    data = bytes(range(256)) * 4096
    sent = endpoint.am_send(3, b"", data)
    crank(worker, lambda: arrived)
    message = arrived.pop()
    assert message.rendezvous
    with pytest.raises(BufferError, match="at its sender"):
        memoryview(message)
    with pytest.raises(weft.TruncatedError, match="do not fit"):
        message.recv(bytearray(10))
    with pytest.raises(weft.ReadOnlyError):
        message.recv(bytes(len(data)))
    chosen = bytearray(len(data) + 1)
    assert message.recv(chosen).wait(100) == len(data)
    assert chosen[:-1] == data
    sent.wait(100)
    with pytest.raises(weft.InvalidParamError, match="already been received"):
        message.recv(chosen)


# 100,000 B come eagerly, in several fragments
@pytest.mark.parametrize("nbytes", [0, 100, 100_000, 1 << 20])
def test_into_pooled_memory(worker, endpoint, arrived, nbytes):
    data = b"p" * nbytes
    sent = endpoint.am_send(3, b"", data)
    crank(worker, lambda: arrived)
    view = arrived.pop().recv().wait(100)
    assert not view.readonly
    assert view == data
    sent.wait(100)


@pytest.mark.parametrize("buffer", [None, bytearray(1 << 20)])
def test_eager_data_of_several_fragments(buffer):
    """UCX puts it together in memory of its own, which it gave back wrongly before 1.22."""
    data = bytes(range(256)) * 4096
    worker = weft.Worker(weft.Context({"TLS": "posix", "RNDV_THRESH": "inf"}))
    messages = []
    worker.set_am_recv_handler(3, messages.append)
    sent = worker.connect(worker.address).am_send(3, b"", data)
    crank(worker, lambda: messages)
    message = messages.pop()
    assert not message.rendezvous
    received = message.recv(buffer).wait(100)
    assert data == (received if buffer is None else buffer)
    sent.wait(100)
    worker.close()


def test_receiving_what_is_being_looked_at(worker, endpoint, arrived):
    endpoint.am_send(3, b"", b"data").wait(100)
    crank(worker, lambda: arrived)
    message = arrived.pop()
    view = memoryview(message)
    with pytest.raises(weft.InvalidParamError, match="memoryview"):
        message.recv(bytearray(4))
    view.release()
    buffer = bytearray(4)
    assert message.recv(buffer).wait(100) == 4
    assert buffer == b"data"
    with pytest.raises(BufferError):
        memoryview(message)


class Looking:
    """A destination that looks at the message while it is exported."""

    def __init__(self, message):
        self.message = message
        self.array = DLPackArray(bytearray(message.nbytes))
        self.views = []

    def __dlpack_device__(self):
        self.views.append(memoryview(self.message))
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)


def test_receiving_what_the_destination_looks_at(worker, endpoint, arrived):
    endpoint.am_send(3, b"", b"A" * 4096).wait(100)
    crank(worker, lambda: arrived)
    looking = Looking(arrived.pop())
    with pytest.raises(weft.InvalidParamError, match="memoryview"):
        looking.message.recv(looking)
    for _ in range(40):
        endpoint.am_send(3, b"", b"Z" * 4096).wait(100)
        worker.progress()
    assert looking.views.pop() == b"A" * 4096
    assert looking.message.recv().wait(100) == b"A" * 4096


def test_a_dropped_rendezvous_is_refused(worker, endpoint, arrived):
    sent = endpoint.am_send(3, b"", bytes(1 << 20))
    crank(worker, lambda: arrived)
    arrived.clear()
    gc.collect()
    sent.wait(100)


def test_a_handler_answers(worker, endpoint):
    worker.set_am_recv_handler(3, lambda message: message.reply.am_send(4, message.header, bytes(message)))
    answer = worker.am_recv(4)
    endpoint.am_send(3, b"echo", b"hello", reply=True).wait(100)
    header, data = answer.wait(100)
    assert (header, bytes(data)) == (b"echo", b"hello")


def test_a_reply_endpoint_is_the_senders(worker, endpoint, arrived):
    endpoint.am_send(3, b"", reply=True).wait(100)
    crank(worker, lambda: arrived)
    reply = arrived.pop().reply
    reply.close().wait(100)
    assert reply.closed
    with pytest.raises(weft.ClosedError):
        reply.am_send(3, b"")
    endpoint.am_send(3, b"again").wait(100)
    crank(worker, lambda: arrived)


def test_what_a_handler_raises_is_reported(worker, endpoint, monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)

    def fails(message):
        raise ValueError("in the handler")

    worker.set_am_recv_handler(3, fails)
    endpoint.am_send(3, b"").wait(100)
    crank(worker, lambda: reported)
    assert "in the handler" in str(reported[0].exc_value)
    assert reported[0].object is fails


def test_ctrl_c_in_a_handler_ends_the_wait(worker, endpoint):
    def interrupted(message):
        signal.raise_signal(signal.SIGINT)

    worker.set_am_recv_handler(3, interrupted)
    endpoint.am_send(3, b"").wait(100)
    never = worker.tag_recv(bytearray(1), 1)
    with pytest.raises(KeyboardInterrupt):
        never.wait(HANG_S)


def test_a_handler_may_not_wait(worker, endpoint):
    raised = []

    def waits(message):
        try:
            worker.tag_recv(bytearray(1), 1).wait(1)
        except weft.ThreadError as error:
            raised.append(error)
        endpoint.tag_send(b"x", 2)

    worker.set_am_recv_handler(3, waits)
    received = worker.tag_recv(bytearray(1), 2)
    endpoint.am_send(3, b"")
    received.wait(100)
    assert len(raised) == 1


def test_one_taker_for_each_id(worker, endpoint, arrived):
    with pytest.raises(weft.InvalidParamError, match="go to a handler"):
        worker.am_recv(3)
    worker.am_recv(5)
    with pytest.raises(weft.InvalidParamError, match="go to am_recv"):
        worker.set_am_recv_handler(5, print)
    with pytest.raises(weft.InvalidParamError, match="below 63"):
        worker.set_am_recv_handler(63, print)
    with pytest.raises(TypeError):
        worker.set_am_recv_handler(6, 5)


def test_what_is_no_handler_leaves_no_trace(spawn):
    """In a process of its own: the next cancellation crashed."""
    child = spawn("""
        import weft
        worker = weft.Worker(weft.Context({"TLS": "posix,self"}))
        try:
            worker.set_am_recv_handler(5, 42)
        except TypeError:
            pass
        assert worker.am_recv(6).cancel()
        worker.connect(worker.address).am_send(5, b"taken").wait(100)
        assert worker.am_recv(5).wait(100)[0] == b"taken"
        """)
    assert child.wait() == 0


def test_another_handler_and_none(worker, endpoint, arrived):
    others = []
    worker.set_am_recv_handler(3, others.append)
    endpoint.am_send(3, b"").wait(100)
    crank(worker, lambda: others)
    assert not arrived
    worker.set_am_recv_handler(3, None)
    worker.set_am_recv_handler(3, None)
    received = worker.am_recv(3)
    endpoint.am_send(3, b"pulled").wait(100)
    assert received.wait(100)[0] == b"pulled"


def test_lent_data_outlives_the_worker(context):
    worker = weft.Worker(context)
    arrived = []
    worker.set_am_recv_handler(3, arrived.append)
    worker.connect(worker.address).am_send(3, b"", b"lent").wait(100)
    crank(worker, lambda: arrived)
    view = memoryview(arrived.pop())
    worker.close()
    del worker
    gc.collect()
    assert view == b"lent"
    with pytest.raises(weft.InvalidParamError, match="still use the context"):
        context.close()
    view.release()
    del view
    gc.collect()
    context.close()


def test_what_nobody_took_goes_with_the_worker(context):
    worker = weft.Worker(context)
    arrived = []
    worker.set_am_recv_handler(3, arrived.append)
    endpoint = worker.connect(worker.address)
    endpoint.am_send(3, b"", bytes(1 << 20))
    endpoint.am_send(3, b"", b"x")
    crank(worker, lambda: len(arrived) == 2)
    worker.close()
    arrived.clear()
    gc.collect()
    context.close()


@pytest.mark.parametrize("handled", [True, False])
def test_what_arrives_while_the_worker_closes(context, handled):
    worker = weft.Worker(context)
    pending = [] if handled else [worker.am_recv(3), worker.am_recv(3)]
    if handled:
        worker.set_am_recv_handler(3, pending.append)
    endpoint = worker.connect(worker.address)
    endpoint.am_send(3, b"", bytes(1 << 20))
    endpoint.am_send(3, b"", b"x")
    worker.close()
    assert all(request.done() for request in pending)


@pytest.mark.parametrize("tls", ["posix", "tcp"])
def test_a_forked_child_refuses_no_message_of_its_parent(spawn, tls):
    child = spawn(
        """
        import gc, os, sys, weft
        context = weft.Context({"TLS": sys.argv[1], "RNDV_THRESH": "256k"})
        receiver, sender = weft.Worker(context), weft.Worker(context)
        receiver.am_recv(3).cancel()
        endpoint = sender.connect(receiver.address)
        data = [bytes([n]) * (1 << 20) for n in range(5)]
        sent = [endpoint.am_send(3, b"", each) for each in data]
        for _ in range(1000):
            receiver.progress(), sender.progress()
        if not (child := os.fork()):
            del receiver
            gc.collect()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        for _ in range(1000):
            receiver.progress(), sender.progress()
        assert not any(each.done() for each in sent)
        received = [receiver.am_recv(3) for _ in data]
        while not all(each.done() for each in received + sent):
            receiver.progress(), sender.progress()
        assert sorted(bytes(each.result()[1]) for each in received) == data
        """,
        tls,
    )
    assert child.wait() == 0
