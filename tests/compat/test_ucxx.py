# SPDX-License-Identifier: BSD-3-Clause
"""UCXX's drop-in: what it does not share with ucx-py's."""

import asyncio
import contextlib
import gc
import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest

from weft.compat import PATH, ucxx
from weft.compat.ucxx._lib import libucxx
from weft.compat.ucxx.exceptions import (
    UCXCanceledError,
    UCXCloseError,
    UCXConnectionResetError,
    UCXError,
    UCXInvalidParamError,
    UCXUnsupportedError,
)
from weft.compat.ucxx.types import Tag


@pytest.fixture(autouse=True)
def shared_memory_for_ucxx(shared_memory):
    ucxx.init({"TLS": "posix,self"})
    yield
    ucxx.reset()


@contextlib.asynccontextmanager
async def pair():
    accepted = asyncio.get_running_loop().create_future()
    listener = ucxx.create_listener(accepted.set_result)
    here = await ucxx.create_endpoint("127.0.0.1", listener.port)
    there = await accepted
    listener.close()
    try:
        yield here, there
    finally:
        here.abort()
        there.abort()


async def until(condition):
    async with asyncio.timeout(100):
        while not condition():
            await asyncio.sleep(0)


def python(code, **env):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=env or None)


USES = """
import ucxx, ucxx.exceptions
from ucxx._lib.libucxx import UCXContext
from ucxx.types import Tag
from ucxx._lib_async.utils import get_event_loop
assert ucxx.exceptions.UCXCanceledError is ucxx.exceptions.UCXCanceled
assert ucxx.__name__ == "weft.compat.ucxx"
import distributed_ucxx
from weft.dask.comm import UCXBackend
assert distributed_ucxx.UCXXBackend is UCXBackend
import dask.config
assert dask.config.get("distributed-ucxx")["tcp"] is None
assert distributed_ucxx.config.get_ucx_config("environment") == {}
"""


def test_a_program_runs_unchanged_by_its_path():
    assert python(USES, PYTHONPATH=str(PATH)).stderr == ""


def test_the_alias_of_distributed_ucxx_leaves_the_scheme_to_weft_wherever_it_lies(tmp_path):
    pytest.importorskip("distributed")
    shutil.copy(PATH / "distributed_ucxx.py", tmp_path)
    code = "import distributed; from distributed.comm.registry import get_backend; print(type(get_backend('ucx')))"
    assert "'weft.dask.comm" in python(code, PYTHONPATH=str(tmp_path)).stdout


def test_a_program_runs_after_one_call():
    done = python("import weft.compat as c; c.install_ucxx(); c.install_distributed_ucxx()" + USES)
    assert done.returncode == 0, done.stderr


def test_importing_loads_no_ucx_and_changes_no_environment():
    code = """
import os
import shutil
before = dict(os.environ)
import weft.compat.ucxx
assert dict(os.environ) == before
assert "libucp" not in open("/proc/self/maps").read()
"""
    assert python(code).stderr == ""


def test_its_benchmark_is_wefts():
    command = [sys.executable, "-m", "ucxx.benchmarks.send_recv", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={"PYTHONPATH": str(PATH)})
    assert "--reuse-alloc" in done.stdout, done.stderr


def test_every_name_exists_and_is_documented():
    for name in ucxx.__all__:
        assert getattr(ucxx, name).__doc__, name
    assert ucxx.__ucx_version__ == ".".join(map(str, ucxx.get_ucx_version()))


@pytest.mark.parametrize("count", [0, 1, 32, 33, 70])
def test_several_buffers_go_as_one(count):
    async def run():
        async with pair() as (here, there):
            sent = [np.arange(n * 100, dtype="u4") for n in range(count)]
            _, received = await asyncio.gather(here.send_multi(sent, tag="t"), there.recv_multi(tag="t"))
            assert len(received) == count
            for one, other in zip(sent, received, strict=True):
                np.testing.assert_array_equal(one, other.view("u4"))

    asyncio.run(run())


def test_several_buffers_must_be_in_a_list():
    async def run():
        async with pair() as (here, _):
            with pytest.raises(ValueError, match="must be a `list` or `tuple`"):
                await here.send_multi(b"abc")

    asyncio.run(run())


def test_active_messages_come_as_numpy_arrays():
    async def run():
        async with pair() as (here, there):
            await here.am_send(b"abc")
            message = await there.am_recv()
            assert isinstance(message, np.ndarray)
            assert message.tobytes() == b"abc"

    asyncio.run(run())


@pytest.mark.parametrize("remove", [False, True])
def test_a_probe_finds_what_was_sent(remove):
    async def run():
        async with pair() as (here, there):
            assert not there.tag_probe().matched
            await here.send(b"abc")
            await here.close()
            await until(lambda: there.closed)
            found = there.tag_probe(remove=remove)
            assert found
            assert (found.length, found.sender_tag) == (3, Tag(there._tags["msg_recv"]))
            assert (found.handle is not None) == remove
            received = bytearray(3)
            await (there.recv_with_handle(received, found) if remove else there.recv(received))
            assert received == b"abc"
            with pytest.raises(UCXConnectionResetError):
                await there.recv(received)

    asyncio.run(run())


def test_what_was_not_taken_has_no_handle():
    async def run():
        async with pair() as (here, there):
            with pytest.raises(AttributeError, match="No message"):
                _ = there.tag_probe().length
            await here.send(b"a")
            await until(there.tag_probe)
            with pytest.raises(ValueError, match="remove=True"):
                await there.recv_with_handle(bytearray(1), there.tag_probe())

    asyncio.run(run())


@pytest.mark.parametrize("who", ["this side", "the other"])
def test_close_is_told_at_once(who):
    calls = []

    async def run():
        async with pair() as (here, there):
            here.set_close_callback(lambda *args, **kwargs: calls.append((args, kwargs)), (1,), {"two": 2})
            waiting = asyncio.create_task(here.recv_multi())
            await asyncio.sleep(0)
            await (here if who == "this side" else there).close()
            with pytest.raises(UCXCanceledError):
                await waiting
            assert here.closed
            assert not here.alive
            with pytest.raises(UCXCloseError if who == "this side" else UCXConnectionResetError):
                await here.send_multi([b"x"])

    asyncio.run(run())
    assert calls == [((1,), {"two": 2})]


def test_listeners_count_their_clients(caplog):
    async def run():
        release = asyncio.Event()

        async def serve(_ep):
            await release.wait()
            raise RuntimeError("the program's own")

        listener = ucxx.create_listener(serve)
        ep = await ucxx.create_endpoint("127.0.0.1", listener.port)
        assert listener.active_clients == 1
        release.set()
        await until(lambda: listener.active_clients == 0)
        assert "the program's own" in caplog.text
        assert not listener.closed
        listener.close()
        assert listener.closed
        ep.abort()

    asyncio.run(run())


def test_settings_and_modes_are_checked(monkeypatch):
    ucxx.reset()
    with pytest.raises(UCXInvalidParamError, match="SEG_SIZE"):
        ucxx.init({"SEG_SIZE": "large"})
    with pytest.raises(ValueError, match="progress mode"):
        ucxx.init(progress_mode="often")
    with pytest.raises(ValueError, match="Delayed submission"):
        ucxx.init(progress_mode="polling", enable_delayed_submission=True)
    monkeypatch.setenv("UCXPY_ENABLE_PYTHON_FUTURE", "1")
    ucxx.init({"TLS": "posix,self"})
    worker = ucxx.core._get_ctx().worker
    assert (worker.enable_delayed_submission, worker.enable_python_future) == (True, True)


def test_pointers_to_objects_of_cpp_are_refused():
    async def run():
        async with pair() as (here, _):
            assert here.ucp_worker == ucxx.get_ucp_worker() > 0
            assert here.ucp_endpoint > 0
            for pointer in (lambda: here.ucxx_endpoint, lambda: here.ucxx_worker, ucxx.get_ucxx_worker):
                with pytest.raises(UCXUnsupportedError, match="need UCXX itself"):
                    pointer()

    asyncio.run(run())


def test_tags_are_numbers():
    assert Tag(5) == 5 == libucxx.UCXXTag(5)
    assert Tag(5) != 6
    assert repr(Tag(5)) == "UCXXTag(5)"
    assert {Tag(5): 1}[Tag(5)] == 1
    assert Tag(5) != libucxx.UCXXTagMask(5)
    with pytest.raises(OverflowError):
        Tag(-1)


def test_an_address_goes_through_pickle_without_a_copy():
    address = ucxx.get_worker_address()
    buffers = []
    text = pickle.dumps(address, protocol=5, buffer_callback=buffers.append)
    assert buffers[0].raw().obj is address
    assert pickle.loads(text, buffers=buffers) == address == pickle.loads(pickle.dumps(address))


# ---- the core


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, pickle.PickleBuffer, libucxx.UCXAddress])
def test_an_address_of_the_core_is_made_of_any_buffer_and_of_a_worker(kind):
    worker = libucxx.UCXWorker(libucxx.UCXContext({"TLS": "posix,self"}))
    address = worker.address
    again = libucxx.UCXAddress.create_from_buffer(kind(address))
    assert again == address == libucxx.UCXAddress.create_from_worker(worker)
    assert hash(again) == hash(address)
    assert type(again.tobytes()) is bytes


@contextlib.contextmanager
def core_pair(**options):
    """Two workers of one thread, and a connection between them."""
    context = libucxx.UCXContext({"TLS": "posix,self"}, **options)
    here, there = libucxx.UCXWorker(context), libucxx.UCXWorker(context)
    accepted = []
    listener = libucxx.UCXListener.create(there, 0, lambda *got: accepted.append(got), ("extra",))
    out = libucxx.UCXEndpoint.create(here, "127.0.0.1", listener.port, endpoint_error_handling=True)
    while not accepted:
        there.progress()
    number, extra = accepted[0]
    assert extra == "extra"
    back = listener.create_endpoint_from_conn_request(number, True)
    with pytest.raises(UCXInvalidParamError, match="not a connection request"):
        listener.create_endpoint_from_conn_request(number, True)
    try:
        yield here, out, there, back
    finally:
        out.close()
        back.close()


def ended(*requests):
    for request in requests:
        request_worker, request = request
        while not request.completed:
            request_worker.progress_worker_event()
        request.check_error()


def test_the_core_sends_and_receives():
    with core_pair() as (here, out, there, back):
        received = bytearray(3)
        recv = there.tag_recv(received, libucxx.UCXXTag(0x17), libucxx.UCXXTagMask(0x0F))
        ended((here, out.tag_send(b"abc", libucxx.UCXXTag(7))), (there, recv))
        assert received == b"abc"
        message = back.am_recv()
        ended((here, out.am_send(b"de")), (there, message))
        assert bytes(message.recv_buffer) == b"de"
        several = back.tag_recv_multi(libucxx.UCXXTag(1))
        ended((here, out.tag_send_multi((b"f", b"gh"), libucxx.UCXXTag(1))), (there, several))
        assert [bytes(buffer) for buffer in several.py_buffers] == [b"f", b"gh"]


def test_the_core_tells_of_a_request():
    with core_pair() as (here, out, there, back):
        received = bytearray(1)
        recv, send = back.tag_recv(received, libucxx.UCXXTag(7)), out.tag_send(b"a", libucxx.UCXXTag(7))
        assert recv.status == 1
        ended((here, send), (there, recv))
        assert (recv.status, recv.future.done()) == (0, True)
        short = back.tag_recv(received, libucxx.UCXXTag(8))
        out.tag_send(b"abc", libucxx.UCXXTag(8))
        while not short.completed:
            here.progress()
        assert short.status == -9
        listener = libucxx.UCXListener.create(there, 0, print, deliver_endpoint=True)
        assert listener.enable_python_future is False


def test_a_worker_of_the_core_makes_endpoints():
    context = libucxx.UCXContext({"TLS": "posix,self"})
    here, there = libucxx.UCXWorker(context), libucxx.UCXWorker(context)
    accepted = []
    listener = libucxx.UCXListener.create(there, 0, accepted.append, deliver_endpoint=True)
    near = here.create_endpoint_from_hostname("127.0.0.1", listener.port, True)
    far = here.create_endpoint_from_worker_address(there.address, True)
    while not accepted:
        there.progress()
    assert near.alive
    assert far.alive
    for each in (near, far, *accepted):
        each.close()


def test_an_error_that_nobody_asks_for_is_not_logged(caplog):
    with core_pair() as (_here, _out, there, back):
        request = back.tag_recv(bytearray(1), libucxx.UCXXTag(0))
        there.progress()
        back.close()
        while not request.completed:
            there.progress()
        there.progress()  # its callbacks
        del request
        gc.collect()
    assert "never retrieved" not in caplog.text


def test_the_core_tells_of_the_end():
    with core_pair() as (here, out, _, back):
        closed = []
        out.set_close_callback(closed.append, (1,))
        waiting = out.tag_recv(bytearray(1), libucxx.UCXXTag(0))
        here.progress()
        assert out.alive
        back.close()
        while out.alive:
            here.progress()
        while not waiting.completed:
            here.progress()
        assert closed == [1]
        with pytest.raises(UCXCanceledError):
            waiting.check_error()
        with pytest.raises(UCXConnectionResetError):
            out.raise_on_error()


def test_the_core_refuses_what_it_has_not():
    with core_pair(feature_flags=(libucxx.Feature.TAG, libucxx.Feature.STREAM)) as (here, out, _, _back):
        with pytest.raises(ValueError, match=r"Feature\.AM"):
            out.am_send(b"x")
        with pytest.raises(UCXUnsupportedError, match="no streams"):
            out.stream_send(b"x")
        with pytest.raises(UCXUnsupportedError, match="no progress thread"):
            here.start_progress_thread()
        for pointer in (lambda: out.ucxx_ptr, lambda: here.ucxx_ptr):
            with pytest.raises(UCXUnsupportedError, match="need UCXX itself"):
                pointer()
        with pytest.raises(TypeError):
            libucxx.UCXEndpoint()


def test_the_core_in_a_running_loop():
    with core_pair() as (here, out, there, back):

        async def run():
            received = bytearray(3)
            requests = [out.tag_send(b"abc", libucxx.UCXXTag(7)), back.tag_recv(received, libucxx.UCXXTag(7))]
            here.context.continuous_ucx_progress()
            there.context.continuous_ucx_progress()
            await asyncio.gather(*(request.wait() for request in requests))
            assert received == b"abc"
            with pytest.raises(UCXUnsupportedError, match=r"use ucxx\.create_endpoint there"):
                libucxx.UCXEndpoint.create(here, "127.0.0.1", 1, True)

        asyncio.run(run())


def test_all_exceptions_are_one_family():
    for name in ucxx.exceptions.__all__:
        assert issubclass(getattr(ucxx.exceptions, name), UCXError)
