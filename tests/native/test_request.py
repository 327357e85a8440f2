# SPDX-License-Identifier: BSD-3-Clause
"""A request under everything asyncio does with futures, on asyncio's loop and on uvloop's."""

import asyncio
import contextlib
import gc
import signal
import threading
import weakref

import pytest
import uvloop

import weft
from weft import _native

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=LOOPS)
def run(request):
    """Run a coroutine in a fresh loop."""

    def run(coroutine):
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            return runner.run(asyncio.wait_for(coroutine, 100))

    return run


def test_await_gives_the_result(run, worker, endpoint):
    async def main():
        received = worker.tag_recv(bytearray(8), 1)
        assert await endpoint.tag_send(b"12345678", 1) is None
        return await received

    assert run(main()) == (8, 1)


def test_await_a_large_transfer(run, worker, endpoint):
    async def main():
        source, into = bytearray(b"z" * (8 << 20)), bytearray(8 << 20)
        received = worker.tag_recv(into, 1)
        await endpoint.tag_send(source, 1)
        await received
        return into == source

    assert run(main())


def test_await_what_comes_later(run, worker, endpoint):
    async def main():
        received = asyncio.ensure_future(asyncio.wait_for(worker.tag_recv(bytearray(8), 1), 10))
        await asyncio.sleep(0.02)
        assert not received.done()
        await endpoint.tag_send(b"12345678", 1)
        return await received

    assert run(main()) == (8, 1)


def test_gather_wait_and_shield(run, worker, endpoint):
    async def main():
        requests = [worker.tag_recv(bytearray(1), tag) for tag in range(10)]
        for tag in range(10):
            await endpoint.tag_send(b"x", tag)
        assert await asyncio.gather(*requests) == [(1, tag) for tag in range(10)]
        later = [worker.tag_recv(bytearray(1), tag) for tag in range(3)]
        sends = [endpoint.tag_send(b"x", tag) for tag in range(3)]
        done, pending = await asyncio.wait([*later, *sends])
        assert (len(done), len(pending)) == (6, 0)
        shielded = worker.tag_recv(bytearray(1), 50)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(shielded), 0.01)
        assert not shielded.done()
        await endpoint.tag_send(b"x", 50)
        assert await shielded == (1, 50)

    run(main())


def test_timeouts_withdraw_the_receive(run, worker, endpoint):
    async def main():
        into = bytearray(8)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(worker.tag_recv(into, 1), 0.005)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.005):
                    await worker.tag_recv(into, 1)
        received = worker.tag_recv(other := bytearray(8), 1)
        await endpoint.tag_send(b"12345678", 1)
        await received
        assert (into, other) == (bytearray(8), b"12345678")

    run(main())


def test_task_group_cancels_its_requests(run, worker):
    async def wait_for(request):
        await request

    async def main():
        requests = [worker.tag_recv(bytearray(1), tag) for tag in range(5)]
        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                for request in requests:
                    group.create_task(wait_for(request))
                await asyncio.sleep(0.01)
                raise ValueError
        assert all(request.cancelled() for request in requests)

    run(main())


def test_cancel_ends_the_waiter_once(worker):
    request = worker.tag_recv(bytearray(1), 1)
    assert request.cancel()
    assert not request.cancel()
    assert request.done()
    assert request.cancelled()
    with pytest.raises(weft.CanceledError):
        request.wait()
    with pytest.raises(asyncio.CancelledError):
        request.result()


def test_cancelling_a_send_leaves_the_transfer(worker, endpoint):
    source, into = bytearray(b"y" * (4 << 20)), bytearray(4 << 20)
    sent = endpoint.tag_send(source, 1)
    assert sent.cancel()
    with pytest.raises(BufferError):
        source.append(0)
    worker.tag_recv(into, 1).wait(100)
    endpoint.flush().wait(100)
    source.append(0)
    assert into == source[:-1]


def test_futures_protocol(run, worker, endpoint):
    async def main():
        request = worker.tag_recv(bytearray(1), 1)
        with pytest.raises(asyncio.InvalidStateError):
            request.result()
        with pytest.raises(asyncio.InvalidStateError):
            request.exception()
        assert asyncio.isfuture(request)
        assert request.get_loop() is asyncio.get_running_loop()
        called = []
        request.add_done_callback(called.append)
        request.add_done_callback(print)
        assert request.remove_done_callback(print) == 1
        await endpoint.tag_send(b"x", 1)
        await request
        await asyncio.sleep(0)
        assert called == [request]
        assert request.exception() is None
        assert request.result() == request.result() == (1, 1)
        request.add_done_callback(called.append)
        await asyncio.sleep(0)
        assert called == [request, request]

    run(main())


def test_two_tasks_may_await_one_request(run, worker, endpoint):
    async def wait_for(request):
        return await request

    async def main():
        request = worker.tag_recv(bytearray(1), 1)
        tasks = [asyncio.create_task(wait_for(request)) for _ in range(2)]
        await asyncio.sleep(0.01)
        await endpoint.tag_send(b"x", 1)
        return await asyncio.gather(*tasks)

    assert run(main()) == [(1, 1), (1, 1)]


def test_an_error_is_raised_by_wait_and_await(run, worker, endpoint):
    async def main():
        received = worker.tag_recv(bytearray(1), 1)
        await endpoint.tag_send(b"too long", 1)
        with pytest.raises(weft.TruncatedError) as caught:
            await received
        assert (caught.value.status, caught.value.op) == (-9, "tag_recv")
        assert isinstance(received.exception(), weft.TruncatedError)

    run(main())


def test_wait_that_times_out_leaves_the_request(worker, endpoint):
    request = worker.tag_recv(bytearray(8), 1)
    for timeout in (0, 0.001, 0.06):
        with pytest.raises(weft.TimedOutError) as caught:
            request.wait(timeout)
        assert isinstance(caught.value, TimeoutError)
    endpoint.tag_send(b"12345678", 1)
    assert request.wait(100) == (8, 1)
    assert request.wait(0) == (8, 1)


def test_ctrl_c_interrupts_wait_and_leaves_the_request(worker, endpoint):
    request = worker.tag_recv(bytearray(1), 1)
    timer = threading.Timer(0.05, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        request.wait(100)
    timer.join()
    assert not request.done()
    endpoint.tag_send(b"x", 1)
    request.wait(100)


def test_completed_awaits_never_hold_the_loop(run, worker, endpoint):
    """Count, not time: a ticker must get its turns while another task only awaits what is complete."""

    async def main():
        ticks = 0
        stop = False

        async def ticker():
            nonlocal ticks
            while not stop:
                await asyncio.sleep(0)
                ticks += 1

        task = asyncio.create_task(ticker())
        rounds = 0
        while ticks < 100 and rounds < 400_000:
            received = worker.tag_recv(bytearray(8), 1)
            await endpoint.tag_send(b"12345678", 1)
            await received
            rounds += 1
        stop = True
        await task
        return ticks

    # A millisecond each, which is some 400 rounds; fewer on a machine that is busy otherwise.
    assert run(main()) >= 100


def test_a_loop_closed_with_a_request_pending(worker, endpoint):
    async def main():
        request = worker.tag_recv(bytearray(1), 1)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(request), 0.01)
        return request

    request = asyncio.run(main())
    endpoint.tag_send(b"x", 1)
    assert request.wait(100) == (1, 1)


def test_one_worker_in_one_loop_after_another(worker, endpoint):
    async def main():
        received = asyncio.ensure_future(asyncio.gather(worker.tag_recv(bytearray(1), 1)))
        await asyncio.sleep(0.001)
        await endpoint.tag_send(b"x", 1)
        return await received

    for factory in (*LOOPS.values(), *LOOPS.values()):
        with asyncio.Runner(loop_factory=factory) as runner:
            assert runner.run(main()) == [(1, 1)]


def test_a_new_loop_after_one_that_an_exception_stopped(worker, endpoint):
    class StoppedError(BaseException):
        pass

    async def stops():
        endpoint.tag_send(b"x", 1)
        await worker.tag_recv(bytearray(1), 1)
        raise StoppedError

    async def waits():
        asyncio.get_running_loop().call_later(0.01, endpoint.tag_send, b"y", 2)
        return await worker.tag_recv(bytearray(1), 2)

    for factory in LOOPS.values():
        with asyncio.Runner(loop_factory=factory) as runner, pytest.raises(StoppedError):
            runner.run(stops())
        with asyncio.Runner(loop_factory=factory) as runner:
            assert runner.run(waits()) == (1, 2)


def test_awaiting_outside_a_loop_says_so(worker):
    request = worker.tag_recv(bytearray(1), 1)
    with pytest.raises(RuntimeError, match="no running event loop"):
        next(request.__await__())


def test_only_operations_make_requests(spawn):
    child = spawn("""
        from weft._native import Request
        try:
            Request.__new__(Request)
        except TypeError as error:
            print(error)
        try:
            class Other(Request): ...
            Other()
        except TypeError as error:
            print("no other type:", type(error).__name__)
    """)
    assert child.line() == "requests are made by operations only"
    assert child.line() == "no other type: TypeError"


# ---- requests are used again ------------------------------------------------------------------------------------


def test_a_request_that_was_dropped_is_used_again_as_new(worker, endpoint):
    into = bytearray(8)
    endpoint.tag_send(b"12345678", 1).wait()
    first = worker.tag_recv(into, 1)
    assert first.wait() == (8, 1)
    address = id(first)
    del first
    again = worker.tag_recv(into, 2)
    assert id(again) == address
    assert not again.done()
    assert (again.op, repr(again)) == ("tag_recv", "<weft.Request tag_recv of 8 B pending>")
    with pytest.raises(asyncio.InvalidStateError):
        again.result()
    endpoint.tag_send(b"87654321", 2).wait()
    assert again.wait() == (8, 2)


def test_a_request_that_somebody_holds_keeps_its_result(worker, endpoint):
    into = bytearray(8)
    held = []
    for tag in range(20):
        endpoint.tag_send(b"12345678", tag).wait()
        held.append(worker.tag_recv(into, tag))
        held[-1].wait()
    assert [r.result() for r in held] == [(8, tag) for tag in range(20)]


def test_weak_references_end_with_the_request(worker, endpoint):
    endpoint.tag_send(b"1", 1).wait()
    request = worker.tag_recv(bytearray(1), 1)
    request.wait()
    seen = []
    reference = weakref.ref(request, seen.append)
    del request
    assert reference() is None
    assert seen == [reference]


def test_the_last_request_may_be_the_last_to_hold_the_worker(context):
    worker = weft.Worker(context)
    gone = weakref.ref(worker)
    endpoint = worker.connect(worker.address)
    endpoint.tag_send(b"1", 1).wait()
    request = worker.tag_recv(bytearray(1), 1)
    request.wait()
    del worker, endpoint
    assert gone() is not None
    del request
    gc.collect()
    assert gone() is None


# ---- the quicker door, and the one behind it --------------------------------------------------------------------


def test_keywords_and_positions_mean_the_same(worker, endpoint):
    into = bytearray(1)
    endpoint.tag_send(b"1", tag=1).wait(timeout=100)
    assert worker.tag_recv(buffer=into, tag=1).wait(100) == (1, 1)
    endpoint.tag_send(buffer=b"2", tag=0xF1).wait(None)
    assert worker.tag_recv(into, 1, mask=0xF).wait() == (1, 0xF1)
    endpoint.tag_send(b"3", 0xF1).wait()
    assert worker.tag_recv(into, 1, 0xF).wait() == (1, 0xF1)
    endpoint.tag_send(b"4", 2**64 - 1).wait()
    assert worker.tag_recv(into, 2**64 - 1).wait() == (1, 2**64 - 1)


@pytest.mark.parametrize(
    "call",
    [
        lambda w, e: e.tag_send(),
        lambda w, e: e.tag_send(b""),
        lambda w, e: e.tag_send(b"", "x"),
        lambda w, e: e.tag_send(b"", -1),
        lambda w, e: e.tag_send(b"", 2**64),
        lambda w, e: e.tag_send(b"", 1, 2),
        lambda w, e: e.tag_send(b"", 1, colour=2),
        lambda w, e: w.tag_recv(bytearray(1), 1, 2**64),
        lambda w, e: w.tag_recv(*range(40)),
        lambda w, e: weft.Endpoint.tag_send(w, b"", 1),
        lambda w, e: _native.Request.wait(w),
    ],
)
def test_wrong_arguments_are_type_errors(worker, endpoint, call):
    with pytest.raises(TypeError):
        call(worker, endpoint)
