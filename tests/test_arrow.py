# SPDX-License-Identifier: BSD-3-Clause
"""Arrow's buffers that are born in the pool: where they lie, and that they behave like any others."""

import gc
import os
import random
import shutil
import subprocess
import threading

import numpy as np
import pytest
from tests.test_lend_itself import joined

from weft import _native

pa = pytest.importorskip("pyarrow")
pc = pytest.importorskip("pyarrow.compute")

N = 1 << 20
LIBRARY = pa.lib.__file__


def live():
    gc.collect()
    return _native.pool_statistics()["live_nbytes"]


@pytest.fixture(autouse=True)
def on():
    before = live()
    was = _native.arrow_in_pool(True, LIBRARY)  # a worker that ran in this process has turned it on for good
    yield
    assert _native.arrow_in_pool(was, LIBRARY)
    assert live() == before


@pytest.fixture
def born():
    before = live()
    return lambda: live() - before


def test_large_buffers_are_born_in_the_pool_and_small_ones_are_not(born):
    large, small = pa.allocate_buffer(N), pa.allocate_buffer(65_472)  # of 64 B each
    assert born() == N
    assert large.address % 4096 == 0
    del large
    assert born() == 0
    del small


@pytest.mark.parametrize(
    ("make", "nbytes"),
    [
        (lambda: pc.add(pa.array(np.zeros(N, "u1")), pa.scalar(1, "u1")), N),
        (lambda: pa.array(range(N // 8)), N),
        (lambda: pc.take(pa.array(np.arange(N, dtype="u1")), pa.array(np.zeros(N, "u4"))), N),
        (lambda: pa.concat_arrays([pa.array(np.zeros(N // 2, "u1"))] * 2), N),
        (lambda: pa.array(["x" * 1023] * 1024), 1024 * 1023),
    ],
    ids=["sum", "from Python", "take", "concatenate", "strings"],
)
def test_whatever_makes_them(born, make, nbytes):
    array = make()
    assert nbytes <= born() <= 2 * nbytes
    assert array.validate(full=True) is None
    del array
    assert born() == 0


def test_what_is_lent_to_a_peer_is_not_copied():
    async def use(here, there):
        array = pc.add(pa.array(np.arange(N)), 1)
        (data,) = [buffer for buffer in array.buffers() if buffer is not None]
        sent = here.lend(data)
        received = np.frombuffer(await there.recv(), "i8")
        await sent
        assert here.lent_nbytes == (data.size, 0)
        assert np.array_equal(received, np.arange(1, N + 1))

    joined(use)


def test_resize_in_every_direction(born):
    buffer = pa.allocate_buffer(1000, resizable=True)
    np.frombuffer(buffer, "u1")[:] = 7
    kept = 1000
    for nbytes in (N, 4 * N, 4 * N - 5000, N, 100, 70_000, 65_536, 10):
        buffer.resize(nbytes, shrink_to_fit=True)
        kept = min(kept, nbytes)
        assert (np.frombuffer(buffer, "u1")[:kept] == 7).all()
    del buffer
    assert born() == 0


def test_a_builder_grows_from_small_to_large(born):
    strings = [str(i) * 3 for i in range(100_000)]
    array = pa.array(strings)
    assert born() >= 65_536
    assert array.to_pylist() == strings
    del array


def test_no_memory_is_arrows_own_error(born):
    with pytest.raises(pa.ArrowMemoryError):
        pa.allocate_buffer(1 << 60)
    buffer = pa.allocate_buffer(N, resizable=True)
    np.frombuffer(buffer, "u1")[:] = 7
    with pytest.raises(pa.ArrowMemoryError):
        buffer.resize(1 << 60)
    assert (np.frombuffer(buffer, "u1") == 7).all()
    assert born() == N
    del buffer


def test_arrow_counts_what_lies_in_the_pool():
    before = pa.total_allocated_bytes()
    buffers = [pa.allocate_buffer(N), pa.allocate_buffer(100), pa.allocate_buffer(N, resizable=True)]
    assert pa.total_allocated_bytes() - before == 2 * N + 128  # Arrow asks for multiples of 64
    buffers[2].resize(3 * N)
    assert pa.total_allocated_bytes() - before == 4 * N + 128
    del buffers
    assert pa.total_allocated_bytes() == before


def test_a_buffer_may_be_freed_by_another_thread_and_when_it_is_off(born):
    buffers = []
    thread = threading.Thread(target=lambda: buffers.append(pa.allocate_buffer(N)))
    thread.start()
    thread.join()
    buffers.append(pa.allocate_buffer(N))
    assert born() == 2 * N
    thread = threading.Thread(target=buffers.pop)
    thread.start()
    thread.join()
    assert born() == N
    _native.arrow_in_pool(False, LIBRARY)
    buffers.clear()
    assert born() == 0
    outside = pa.allocate_buffer(N)
    assert born() == 0
    _native.arrow_in_pool(True, LIBRARY)
    del outside


def test_a_pool_that_the_user_has_set_stays(born):
    arrows = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        assert _native.arrow_in_pool(True, LIBRARY)
        assert pa.default_memory_pool().backend_name == "system"
        buffer = pa.allocate_buffer(N)
        assert born() == 0
        del buffer
    finally:
        pa.set_memory_pool(arrows)


def test_what_arrow_allocates_for_itself_lies_there_too(born, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(N))
    with pa.OSFile(str(path)) as file:  # its reader asks for Arrow's default pool, not pyarrow's
        buffer = file.read_buffer(N)
    assert born() == N
    del buffer


def test_a_forked_child_has_buffers_of_its_own():
    buffer = pa.allocate_buffer(N)
    np.frombuffer(buffer, "u1")[:] = 7
    child = os.fork()
    if child == 0:
        ok = (np.frombuffer(buffer, "u1") == 7).all()
        own = pa.allocate_buffer(N)
        np.frombuffer(own, "u1")[:] = 8
        np.frombuffer(buffer, "u1")[:] = 9
        del own, buffer
        os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (np.frombuffer(buffer, "u1") == 7).all()
    del buffer


def test_many_threads():
    failures = []

    def work(seed):
        chance = random.Random(seed)
        held = []
        for i in range(300):
            buffer = pa.allocate_buffer(chance.choice([100, 65_536, 200_000, N]), resizable=True)
            np.frombuffer(buffer, "u1")[:] = i % 251
            held.append((i % 251, buffer))
            if len(held) > 8:
                value, buffer = held.pop(chance.randrange(len(held)))
                buffer.resize(chance.choice([50, 70_000, 2 * N]))
                if not (np.frombuffer(buffer, "u1")[:50] == value).all():
                    failures.append(value)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_another_library_is_refused(spawn):
    child = spawn(
        """
        import math
        from weft import _native, errors
        import _ctypes
        for library in ("/nowhere/lib.so", _ctypes.__file__):
            try:
                _native.arrow_in_pool(True, library)
            except errors.UnsupportedError as e:
                print(e, flush=True)
        """
    )
    assert child.line() == "arrow_in_pool: /nowhere/lib.so is not loaded"
    assert child.line().startswith("arrow_in_pool: this build of Arrow has no _ZN5arrow")


#: A library that looks like Arrow's until its ProxyMemoryPool is found to have no functions; its tables have 1 MiB.
UNKNOWN = """
void *_ZTVN5arrow15ProxyMemoryPoolE[1 << 17] = {&_ZTVN5arrow15ProxyMemoryPoolE};
static void *theirs[1 << 17];
static void **object = theirs + 2;
void *_ZN5arrow19default_memory_poolEv(void) { return &object; }
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")
def test_an_arrow_that_is_refused_leaves_nothing(spawn, tmp_path):
    source, library = tmp_path / "unknown.c", tmp_path / "unknown.so"
    source.write_text(UNKNOWN)
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", library], check=True)
    child = spawn(
        f"""
        import ctypes
        from weft import _native, errors
        theirs = ctypes.CDLL({str(library)!r})
        class Numbers(ctypes.Structure):  # glibc's mallinfo2
            _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks"
                        " uordblks fordblks keepcost".split()]
        mallinfo = ctypes.CDLL(None).mallinfo2
        mallinfo.restype = Numbers
        def nbytes():
            numbers = mallinfo()
            return numbers.hblkhd + numbers.uordblks
        def refused():
            try:
                _native.arrow_in_pool(True, {str(library)!r})
            except errors.UnsupportedError as e:
                return str(e)
        print(refused())
        before = nbytes()
        for _ in range(16):
            refused()
        print(max(nbytes() - before, 0) >> 20, "MiB", flush=True)
        """
    )
    assert child.line() == ("arrow_in_pool: this build of Arrow has no _ZN5arrow15ProxyMemoryPool8AllocateEllPPh")
    assert child.line() == "0 MiB"
