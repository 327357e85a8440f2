# SPDX-License-Identifier: BSD-3-Clause
"""One kind of request: every operation returns one that can be waited for and awaited alike, over UCX and over TLS."""

import asyncio
import contextlib
import contextvars
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest
from tests.certificates import authority
from tests.placed import NOISE, Allocator, on

import weft
from weft import _native
from weft.peer import Pending

LOOPBACK = "127.0.0.1:0"
#: Long enough never to be over where something is to come, short where nothing does.
LONG_S, SHORT_S = 60, 0.01
TCP = {"TLS": "tcp,self"}  # leads off this host, so messages go over TLS


class Ends:
    """Two peers; `receive` posts a receive of one kind, and `arrive` sends its message.

    One with device memory is sent only when the receiver has made room for it, so its request is awaited after that.
    """

    def __init__(self, kind, a, b):
        self.kind, self.a, self.b = kind, a, b

    def receive(self):
        match self.kind.split()[0]:
            case "one":
                return self.b.recv()
            case "frames":
                return self.b.recv_frames()
            case "object":
                return self.b.recv_obj()
            case "placed":
                return self.b.recv_frames(Allocator())
        raise AssertionError

    def arrive(self, word=b"word"):
        match self.kind.split()[0]:
            case "one":
                return self.a.send(word)
            case "frames":
                return self.a.send_frames([word])
            case "object":
                return self.a.send_obj(word)
            case "placed":
                return self.a.send_frames([word, on(0, NOISE)])
        raise AssertionError

    @staticmethod
    def word(result):
        return bytes(result[0] if isinstance(result, list) else result)


KINDS = ["one", "frames", "object", "placed", "one tls", "frames tls", "object tls"]


@pytest.fixture(params=KINDS)
def run(request):
    """Run a coroutine function with a pair of peers, both in one loop."""
    kind = request.param
    ours, theirs = {}, {}
    if kind.endswith("tls"):
        ours = {"ssl": authority().connector(), "payload": "tls", "settings": TCP}
        theirs = {"ssl": authority().listener(), "payload": "tls", "settings": TCP}

    def run(work):
        async def main():
            accepted = asyncio.get_running_loop().create_future()
            over = asyncio.Event()

            async def handler(peer):
                accepted.set_result(peer)
                await over.wait()

            async with weft.listen(LOOPBACK, handler, **theirs) as listener:
                peer = await weft.connect(listener.address, **ours)
                async with asyncio.timeout(LONG_S):
                    await work(Ends(kind, peer, await accepted))
                peer.abort()
                over.set()

        asyncio.run(main())

    return run


def test_it_is_a_request(run):
    async def work(ends):
        received, sent = ends.receive(), ends.arrive()
        for request in (received, sent):
            assert isinstance(request, weft.Request)
            assert weakref.ref(request)() is request
        await received
        await sent

    run(work)


def test_what_is_none():
    for other in (None, object(), b"", threading.Event(), asyncio.sleep):
        assert not isinstance(other, weft.Request)


def test_its_type_takes_the_results(run):
    assert weft.Request[memoryview]


def test_await(run):
    async def work(ends):
        request = ends.receive()
        assert not request.done()
        with pytest.raises(asyncio.InvalidStateError):
            request.result()
        with pytest.raises(asyncio.InvalidStateError):
            request.exception()
        sent = ends.arrive()
        assert ends.word(await request) == b"word"
        await sent
        assert request.done()
        assert not request.cancelled()
        assert request.exception() is None
        assert ends.word(request.result()) == ends.word(await request) == b"word"
        assert not request.cancel()
        assert "done" in repr(request)

    run(work)


def test_asyncio_wait(run):
    async def work(ends):
        first, second = ends.receive(), ends.receive()
        done, pending = await asyncio.wait({first, second}, timeout=SHORT_S)
        assert (done, pending) == (set(), {first, second})
        await ends.arrive(b"1")
        done, pending = await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)
        assert (done, pending) == ({first}, {second})
        await ends.arrive(b"2")
        assert (await asyncio.wait({first, second}))[0] == {first, second}
        assert [ends.word(request.result()) for request in (first, second)] == [b"1", b"2"]

    run(work)


def test_gather(run):
    async def work(ends):
        both = asyncio.gather(ends.receive(), ends.receive())
        await asyncio.gather(ends.arrive(b"1"), ends.arrive(b"2"))
        assert [ends.word(result) for result in await both] == [b"1", b"2"]

    run(work)


@pytest.mark.parametrize("exceptions", [False, True])
def test_gather_of_what_is_cancelled(run, exceptions):
    async def work(ends):
        request = ends.receive()
        gathered = asyncio.gather(request, return_exceptions=exceptions)
        await asyncio.sleep(0)
        assert request.cancel()
        if exceptions:
            [error] = await gathered
            assert isinstance(error, asyncio.CancelledError)
        else:
            with pytest.raises(asyncio.CancelledError):
                await gathered

    run(work)


def test_wait_for(run):
    async def work(ends):
        gone = ends.receive()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(gone, SHORT_S)
        assert gone.cancelled()
        sent = ends.arrive()
        assert ends.word(await asyncio.wait_for(ends.receive(), LONG_S)) == b"word"
        await sent

    run(work)


def test_shield(run):
    async def work(ends):
        request = ends.receive()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(request), SHORT_S)
        assert not request.done()
        await ends.arrive()
        assert ends.word(await asyncio.shield(request)) == b"word"

    run(work)


def test_timeout_and_a_task_around_it(run):
    async def work(ends):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SHORT_S):
                await ends.receive()

        async def receive():
            return await ends.receive()

        task = asyncio.create_task(receive())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        sent = ends.arrive()
        assert ends.word(await ends.receive()) == b"word"
        await sent

    run(work)


def test_two_tasks_await_one(run):
    async def work(ends):
        request = ends.receive()

        async def receive():
            return await request

        tasks = [asyncio.create_task(receive()) for _ in range(2)]
        await asyncio.sleep(0)
        await ends.arrive()
        assert [ends.word(await task) for task in tasks] == [b"word", b"word"]

    run(work)


def test_callbacks(run):
    number = contextvars.ContextVar("number", default=0)

    async def work(ends):
        request, called = ends.receive(), []
        loop = asyncio.get_running_loop()
        assert request.get_loop() is loop
        context = contextvars.copy_context()
        context.run(number.set, 7)
        came = asyncio.Event()

        def removed(_):
            called.append("removed")

        request.add_done_callback(lambda r: called.append((r is request, number.get())), context=context)
        request.add_done_callback(removed)
        request.add_done_callback(removed)
        request.add_done_callback(lambda _: came.set())
        assert request.remove_done_callback(removed) == 2
        assert request.remove_done_callback(removed) == 0
        await ends.arrive()
        await came.wait()
        assert called == [(True, 7)]
        request.add_done_callback(called.append)  # when it is done already: soon, not at once
        assert called == [(True, 7)]
        await asyncio.sleep(0)
        assert called == [(True, 7), request]

    run(work)


def test_who_is_not_told_because_of_a_signal_is_told_later(run):
    """A signal handler may raise in the loop's `call_soon`."""

    async def work(ends):
        loop, request = asyncio.get_running_loop(), ends.receive()
        reported, came = [], [asyncio.Event(), asyncio.Event()]
        loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
        for event in came:
            request.add_done_callback(lambda _, event=event: event.set())

        def interrupted(callback, *args, context=None):
            if request in args:
                del loop.call_soon
                raise InterruptedError
            return type(loop).call_soon(loop, callback, *args, context=context)

        loop.call_soon = interrupted
        try:
            await ends.arrive()
        except InterruptedError as e:
            reported.append(e)
        for event in came:
            await event.wait()
        assert [type(e) for e in reported] == [InterruptedError]
        assert request.done()

    run(work)


def test_cancel(run):
    async def work(ends):
        request, called = ends.receive(), []
        request.add_done_callback(called.append)
        assert request.cancel(msg="not needed")
        assert not request.cancel()
        assert request.done()
        assert request.cancelled()
        with pytest.raises(asyncio.CancelledError):
            await request
        with pytest.raises(asyncio.CancelledError):
            request.result()
        with pytest.raises(asyncio.CancelledError):
            request.exception()
        with pytest.raises(weft.CanceledError):
            request.wait()
        await asyncio.sleep(0)
        assert called == [request]
        assert "cancelled" in repr(request)
        sent = ends.arrive()
        assert ends.word(await ends.receive()) == b"word"
        await sent

    run(work)


@pytest.mark.parametrize("message", ["why", ("a", "pair"), None])
def test_a_cancelled_task_gets_the_message_as_from_a_future(run, message):
    """Cancel scopes recognise their own cancellations by it."""
    args = () if message is None else (message,)

    async def work(ends):
        for make in (asyncio.get_running_loop().create_future, ends.receive):
            request = make()
            task = asyncio.ensure_future(awaited(request))
            await asyncio.sleep(0)
            task.cancel(message)
            with pytest.raises(asyncio.CancelledError) as caught:
                await task
            assert caught.value.args == args
            assert request.cancelled()
            request = make()
            task = asyncio.ensure_future(awaited(request))
            await asyncio.sleep(0)
            assert request.cancel(msg=message)
            for read in (task, request):
                with pytest.raises(asyncio.CancelledError) as caught:
                    await read
                assert caught.value.args == args
            for read in (request.result, request.exception):
                with pytest.raises(asyncio.CancelledError) as caught:
                    read()
                assert caught.value.args == args
            assert request._cancel_message == message
            assert request._make_cancelled_error().args == args
            assert not request.cancel("again")
            assert request._cancel_message == message

    run(work)


def test_a_complete_request_has_no_message(run):
    async def work(ends):
        request, sent = ends.receive(), ends.arrive(b"word")
        await request
        await sent
        assert not request.cancel("why")
        assert request._cancel_message is None
        assert request._make_cancelled_error().args == ()
        assert ends.word(request.result()) == b"word"

    run(work)


def test_a_wait_that_expires_and_is_waited_again(run):
    async def work(ends):
        request = ends.receive()
        for timeout in (SHORT_S, 0, -1):
            with pytest.raises(weft.TimedOutError):
                request.wait(timeout)
        assert not request.done()
        with pytest.raises(weft.InvalidParamError, match="NaN"):
            request.wait(float("nan"))
        sent = ends.arrive()
        while not request.done():  # both ends are here
            with contextlib.suppress(weft.TimedOutError):
                request.wait(SHORT_S)
            if not sent.done():
                with contextlib.suppress(weft.TimedOutError):
                    sent.wait(SHORT_S)
        assert ends.word(request.wait()) == b"word"
        await sent

    run(work)


class Part:
    """A request of a message: complete from the beginning, or never."""

    def __init__(self, complete):
        self._complete = complete

    def done(self):
        return self._complete

    def wait(self, timeout):
        if not self._complete:
            raise weft.TimedOutError(f"part: not complete after {timeout} s")


def test_a_wait_that_expires_in_a_later_part_names_the_time_of_its_caller():
    request = Pending(Part(True), None, None, [Part(False)])
    for _ in range(2):
        with pytest.raises(weft.TimedOutError, match=r"^message: not complete after 0\.01 s$"):
            request.wait(SHORT_S)
    assert not request.done()


def outcome(work):
    """Call `work` in another thread; return what it raises."""
    raised = []

    def call():
        try:
            work()
        except BaseException as e:
            raised.append(e)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    return raised


async def awaited(request):
    await request


async def watched(request):
    request.add_done_callback(print)


@pytest.mark.parametrize("use", [awaited, watched])
def test_another_threads_loop_is_refused_without_effect(run, use):
    async def work(ends):
        request = ends.receive()
        errors = outcome(lambda: asyncio.run(use(request)))
        assert [type(e) for e in errors] == [weft.ThreadError]
        assert not request.done()
        assert request.get_loop() is asyncio.get_running_loop()
        sent = ends.arrive()
        [result] = await asyncio.gather(request)
        assert ends.word(result) == b"word"
        await sent

    run(work)


def test_an_await_without_asyncio_is_refused_without_effect(run):
    """Another framework's task, as trio's, calls `send` as this does."""

    async def work(ends):
        async def dropped():
            await ends.receive()

        request, kept = ends.receive(), []
        loop = asyncio.get_running_loop()
        asyncio._set_running_loop(None)
        try:
            for task in (awaited(request), dropped()):
                with pytest.raises(RuntimeError, match="no running event loop") as caught:
                    task.send(None)
                kept.append(caught.value)
        finally:
            asyncio._set_running_loop(loop)
        assert not request.done()
        sent = [ends.arrive(b"1"), ends.arrive(b"2")]
        assert [ends.word(await each) for each in (request, ends.receive())] == [b"1", b"2"]
        await asyncio.gather(*sent)

    run(work)


def test_it_fails(run):
    async def work(ends):
        request, called = ends.receive(), []
        request.add_done_callback(called.append)
        ends.a.abort()
        with pytest.raises(weft.PeerLostError):
            await request
        assert isinstance(request.exception(), weft.PeerLostError)
        with pytest.raises(weft.PeerLostError):
            request.wait()
        [error] = await asyncio.gather(request, return_exceptions=True)
        assert isinstance(error, weft.PeerLostError)
        await asyncio.sleep(0)  # from CPython 3.12 on gather passes no turn of the loop for a request that is done
        assert called == [request]
        assert not request.cancelled()
        assert "failed" in repr(request)

    run(work)


def test_what_cannot_be_converted_fails_it():
    """A message that is no object of the other side's `send_obj`; the connection goes on."""

    async def work(ends):
        for receive in (ends.b.recv_obj, ends.b.recv_frames):
            request = receive()
            await ends.a.send(b"no table")
            done, _ = await asyncio.wait({request})
            assert done == {request}
            for _ in range(2):
                with pytest.raises(weft.HandshakeError):
                    request.result()
        await ends.a.send(b"word")
        assert bytes(await ends.b.recv()) == b"word"

    async def main():
        accepted = asyncio.get_running_loop().create_future()
        over = asyncio.Event()

        async def handler(peer):
            accepted.set_result(peer)
            await over.wait()

        async with weft.listen(LOOPBACK, handler) as listener, weft.connect(listener.address) as peer:
            await work(Ends("one", peer, await accepted))
            over.set()

    asyncio.run(main())


def test_another_thread_may_not_cancel_it(run):
    async def work(ends):
        request, errors = ends.receive(), []

        def cancel():
            with pytest.raises(weft.ThreadError) as caught:
                request.cancel()
            errors.append(caught.value)

        thread = threading.Thread(target=cancel)
        thread.start()
        thread.join(LONG_S)
        assert errors
        assert not request.done()
        sent = ends.arrive()
        await request
        await sent

    run(work)


# ---- what type checkers see -----------------------------------------------------------------------------------

STATIC = Path(__file__).parent / "request_types.py"


def test_every_kind_has_the_protocols_methods():
    methods = {name for name in vars(weft.Request) if not name.startswith("_") and callable(vars(weft.Request)[name])}
    assert {"wait", "cancel", "done", "result", "add_done_callback"} <= methods
    assert methods <= set(dir(_native.Request))


@pytest.mark.slow
@pytest.mark.parametrize("checker", [["mypy", "--strict"], ["basedpyright", "--level", "error"]], ids=lambda c: c[0])
def test_type_checkers_know_the_results(checker):
    module, *options = checker
    pytest.importorskip(module)
    command = [sys.executable, "-m", module, *options, str(STATIC)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=STATIC.parent.parent)
    assert done.returncode == 0, done.stdout
