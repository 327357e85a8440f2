# SPDX-License-Identifier: BSD-3-Clause
"""The drop-in's names, settings, and small functions."""

import array
import asyncio
import concurrent.futures
import functools
import subprocess
import sys
import types

import numpy as np
import pytest
from tests.compat.pairs import connected, pair

import weft
from weft.compat import PATH, ucp
from weft.compat.ucp._libs import utils
from weft.compat.ucp._libs.arr import Array, asarray
from weft.compat.ucp.exceptions import UCXBaseException, UCXConfigError, UCXError
from weft.compat.ucxx.exceptions import UCXBusyError

USES = """
import ucp, ucp.exceptions
from ucp._libs.utils import get_address
from ucp.utils import hash64bits
assert ucp.Endpoint is ucp.core.Endpoint and ucp.exceptions.UCXError is ucp.UCXError
assert ucp.__name__ == "weft.compat.ucp"
print(hash64bits("a", 1))
"""


def python(code, **env):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, env=env or None
    )


def test_a_program_runs_unchanged_by_its_path():
    done = python(USES, PYTHONPATH=str(PATH))
    assert done.stdout == f"{ucp.utils.hash64bits('a', 1)}\n", done.stderr


def test_a_program_runs_after_one_call():
    done = python("import weft.compat; weft.compat.install_ucp(); weft.compat.install_ucp()" + USES)
    assert done.returncode == 0, done.stderr


def test_another_ucp_is_not_covered_up(tmp_path):
    (tmp_path / "ucp.py").write_text("__version__ = '0.45'\n")
    done = python("import ucp, weft.compat; weft.compat.install_ucp()", PYTHONPATH=str(tmp_path))
    assert "call install_ucp before that" in done.stderr


def test_importing_loads_no_ucx_and_changes_no_environment():
    code = """
import os
before = dict(os.environ)
import weft.compat.ucp
assert dict(os.environ) == before
assert "libucp" not in open("/proc/self/maps").read()
assert "numpy" not in __import__("sys").modules
"""
    done = python(code)
    assert done.returncode == 0, done.stderr


def test_every_name_exists_and_is_documented():
    for name in ucp.__all__:
        assert getattr(ucp, name).__doc__, name


def test_versions():
    assert ucp.get_ucx_version() == weft.ucx_library().version
    assert ucp.__ucx_version__ == ".".join(map(str, ucp.get_ucx_version()))
    with pytest.raises(AttributeError):
        _ = ucp.no_such_name


def test_names_of_other_packages_are_found_when_they_are_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "dask.utils", None)
    monkeypatch.setitem(sys.modules, "nvtx", None)
    from weft.compat.ucp._libs.utils import nvtx_annotate, parse_bytes

    assert parse_bytes is None
    with nvtx_annotate("name", color="red"):
        pass
    dask_utils = types.SimpleNamespace(parse_bytes=int)
    monkeypatch.setitem(sys.modules, "dask.utils", dask_utils)
    assert utils.parse_bytes is int
    monkeypatch.setitem(sys.modules, "nvtx", types.SimpleNamespace(annotate=print))
    assert utils.nvtx_annotate is print
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = utils.no_such_name


def test_init_twice_is_refused():
    with pytest.raises(RuntimeError, match="reset"):
        ucp.init()


def test_settings_by_argument_and_environment(monkeypatch):
    monkeypatch.setenv("UCX_SEG_SIZE", "2M")
    ucp.reset()
    assert ucp.get_config()["SEG_SIZE"] == "2M"
    assert ucp.get_config()["TLS"] == "all"
    options = {"TLS": "posix,self", "SEG_SIZE": "3M"}
    ucp.init(options)
    assert ucp.get_config()["SEG_SIZE"] == "3M"
    assert ucp.get_config()["TLS"] == "posix,self"
    ucp.reset()
    ucp.init(options, env_takes_precedence=True)
    assert ucp.get_config()["SEG_SIZE"] == "2M"
    assert options["SEG_SIZE"] == "3M"


def test_a_wrong_setting_is_refused():
    ucp.reset()
    with pytest.raises(UCXConfigError, match="SEG_SIZE"):
        ucp.init({"SEG_SIZE": "large"})


def test_what_ucx_tells_of_itself():
    assert ucp.get_active_transports() == {"posix", "self"}
    assert "UCP context" in ucp.get_ucp_context_info()
    assert "UCP worker" in ucp.get_ucp_worker_info()


def test_an_endpoint_describes_itself():
    async def run():
        async with pair() as (here, _):
            assert "posix/memory" in here.ucx_info()
            assert here.cuda_support() is False
            here.abort()
            assert "closed" in here.ucx_info()

    asyncio.run(run())


def test_handles_are_addresses_of_what_ucx_has():
    async def run():
        async with pair() as (here, _):
            assert here.get_ucp_worker() == ucp.get_ucp_worker() > 0
            assert here.get_ucp_endpoint() > 0
            here.abort()
            with pytest.raises(ucp.UCXCloseError):
                here.get_ucp_endpoint()

    asyncio.run(run())


def test_reset_with_open_objects_is_refused():
    async def run():
        listener = ucp.create_listener(print)
        with pytest.raises(UCXError, match="another thread"):
            in_another_thread(ucp.reset)
        with pytest.raises(UCXError, match="Trying to reset UCX but not all Endpoints and/or Listeners are closed"):
            ucp.reset()
        listener.close()

    asyncio.run(run())


def test_what_a_refused_reset_left_goes_with_a_later_one(fds):
    """As in ucx-py, the next use has a new context, whatever is still open in the old one."""

    async def run():
        async with pair():
            with pytest.raises(UCXError, match="not all Endpoints"):
                ucp.reset()
            ucp.reset()  # there is no context
            ucp.get_worker_address()
            ucp.reset()

    asyncio.run(run())  # what UCX keeps for the process
    ucp.reset()
    before = fds()
    for _ in range(3):
        asyncio.run(run())
    ucp.reset()
    assert fds() == before


def test_two_loops_one_after_the_other():
    async def run():
        async with pair() as (here, there):
            await here.am_send(b"x")
            assert await there.am_recv() == b"x"

    asyncio.run(run())
    asyncio.run(run())


@pytest.mark.parametrize("api", ["am", "tag"])
def test_endpoints_of_an_ended_loop_receive_in_the_next(api):
    here, there = asyncio.run(connected())

    async def run():
        receive = there.am_recv if api == "am" else functools.partial(there.recv, bytearray(1))
        waiting = asyncio.create_task(receive())
        await asyncio.sleep(0)
        await (here.am_send if api == "am" else here.send)(b"x")
        await asyncio.wait_for(waiting, 10)
        waiting = asyncio.create_task(receive())
        await asyncio.sleep(0)
        here.abort()
        with pytest.raises(UCXError):
            await asyncio.wait_for(waiting, 10)
        there.abort()

    asyncio.run(run())


def test_a_message_that_arrived_between_two_loops_is_received():
    here, there = asyncio.run(connected())
    worker = here.connection.worker
    here.connection.am_send(b"x")
    while not worker._incoming.done():
        worker.native.progress()

    async def run():
        assert await asyncio.wait_for(there.am_recv(), 10) == b"x"
        here.abort()
        there.abort()

    asyncio.run(run())


def test_an_address_of_this_host(monkeypatch):
    assert ucp.get_address("lo") == "127.0.0.1"
    monkeypatch.setenv("UCXPY_IFNAME", "lo")
    assert ucp.get_address() == "127.0.0.1"
    with pytest.raises(OSError, match="no-such-device"):
        ucp.get_address("no-such-device")


def test_errors_of_weft_become_ucx_pys():
    for error in (weft.CanceledError, weft.ClosedError, weft.UnreachableError, weft.TimedOutError):
        assert isinstance(ucp.exceptions.translated(error("why"), "what"), UCXBaseException)
    assert isinstance(ucp.exceptions.translated(weft.ReadOnlyError("why"), "what"), ValueError)


@pytest.mark.parametrize(
    "buffer",
    [b"", b"abc", bytearray(3), array.array("d", [1, 2]), np.zeros((2, 3), order="F"), np.zeros((4, 4))[::2]],
)
def test_array_describes_a_buffer(buffer):
    view, described = memoryview(buffer), Array(buffer)
    assert described.obj is view.obj
    for name in ("nbytes", "itemsize", "ndim", "shape", "strides", "readonly"):
        assert getattr(described, name) == getattr(view, name), name
    for name in ("c_contiguous", "f_contiguous", "contiguous"):
        assert getattr(described, name) == getattr(view, name), name
    assert asarray(described) is described


def test_array_knows_where_it_lies():
    numbers = np.zeros(3)
    assert Array(numbers).ptr == numbers.ctypes.data


class OnTheGpu:
    def __init__(self, **interface):
        self.__cuda_array_interface__ = {"data": (4096, False), "typestr": "<f4", "shape": (2, 3), **interface}


def test_array_describes_device_memory():
    described = Array(OnTheGpu())
    assert (described.cuda, described.nbytes, described.ptr) == (True, 24, 4096)
    assert described.strides == (12, 4)
    assert not Array(OnTheGpu(strides=(24, 8))).contiguous
    with pytest.raises(NotImplementedError):
        Array(OnTheGpu(mask=object()))
    with pytest.raises(ValueError, match="type string"):
        Array(OnTheGpu(typestr=""))


def test_how_sizes_and_times_are_written():
    assert [utils.format_bytes(n) for n in (5, 2048, 3 << 20)] == ["5 B", "2.00 KiB", "3.00 MiB"]
    assert [utils.format_time(t) for t in (2e-8, 2e-5, 0.02, 2)] == ["20.000 ns", "20.000 us", "20.000 ms", "2.000 s"]
    assert ucp.utils.hmean([1, 2, 2]) == pytest.approx(1.5)
    assert ucp.utils.hmean([]) == 0


def in_another_thread(function):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def test_another_thread_cannot_receive():
    async def run():
        async with pair() as (here, _):
            with pytest.raises(UCXError, match="another thread"):
                in_another_thread(lambda: asyncio.run(asyncio.wait_for(here.am_recv(), 10)))

    asyncio.run(run())


def test_another_thread_is_refused_and_the_context_stays(fds):
    async def run():
        ucp.create_listener(print).close()

    address = ucp.get_worker_address()
    before = fds()
    for use in (ucp.reset, ucp.progress, lambda: asyncio.run(run())):
        with pytest.raises(UCXError, match=r"another thread; .* call reset\(\) there before it ends"):
            in_another_thread(use)
    assert ucp.get_worker_address() == address
    assert fds() == before
    asyncio.run(run())


FORKED = """
import os
from weft.compat import ucp
ucp.get_worker_address()
ucp.reset()
if os.fork():
    os.wait()
else:
    try:
        ucp.get_worker_address()
    except ucp.UCXError as e:
        print(e, flush=True)
    os._exit(0)
"""


def test_a_forked_child_is_refused():
    told = python(FORKED).stdout
    assert "was forked" in told
    assert "reset()" not in told


def test_a_port_in_use_is_named():
    async def run():
        listener = ucp.create_listener(print)
        with pytest.raises(UCXBusyError, match=f"port {listener.port}: Address already in use"):
            ucp.create_listener(print, listener.port)
        listener.close()

    asyncio.run(run())
