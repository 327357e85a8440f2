# SPDX-License-Identifier: BSD-3-Clause
"""NumPy arrays that are born in the pool: where they lie, and that they behave like any others."""

import contextvars
import gc
import os
import resource
import threading

import numpy as np
import pytest

import weft
from weft import _native

N = 1 << 20


def live():
    gc.collect()
    return _native.pool_statistics()["live_nbytes"]


@pytest.fixture(autouse=True)
def nothing_left():
    before = live()
    yield
    assert live() == before


@pytest.fixture
def born():
    before = live()

    def count():
        return live() - before

    return count


#: In a process of its own: other tests leave blocks, so that the second array may lie elsewhere.
LOCKED = """
import ctypes, os, sys
import numpy as np
import weft
from weft import _native

libc = ctypes.CDLL(None, use_errno=True)
with weft.arrays_in_pool():
    array = np.full(1 << 20, 7, "u1")
    address = array.ctypes.data
    if libc.mlock(ctypes.c_void_p(address), 4096) != 0:
        sys.exit(print(os.strerror(ctypes.get_errno())))
    del array
    if sys.argv[1] == "True":
        _native.pool_cool()
    zeros = np.zeros(1 << 20, "u1")
    print(zeros.ctypes.data == address, zeros.any(), flush=True)
"""


@pytest.mark.parametrize("given_back", [False, True])
def test_zeros_are_zero_where_the_kernel_makes_no_hole(spawn, given_back):
    """It makes none in memory that is locked, as a program's that wants no page faults is."""
    said = spawn(LOCKED, str(given_back)).line()
    if not said.startswith(("True", "False")):
        pytest.skip(f"no page may be locked here: {said}")
    assert said == "True False"


def test_large_arrays_are_born_in_the_pool_and_small_ones_are_not(born):
    with weft.arrays_in_pool():
        large, small = np.empty(N, "u1"), np.empty(65535, "u1")
    outside = np.empty(N, "u1")
    assert born() == N
    assert large.ctypes.data % 4096 == 0
    del large
    assert born() == 0
    del small, outside


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.full(N, 1, "u1"),
        lambda: np.full(N, 1, "u1") + 1,
        lambda: np.arange(N, dtype="u1").reshape(1024, 1024).T.copy(),
        lambda: np.concatenate([np.full(N // 2, 1, "u1")] * 2),
        lambda: np.random.default_rng(0).bytes(10) and np.random.default_rng(0).integers(0, 9, N, "u1"),
    ],
    ids=["full", "sum", "copy", "concatenate", "random"],
)
def test_whatever_makes_them(born, make):
    with weft.arrays_in_pool():
        array = make()
    assert born() == N
    assert array.nbytes == N


def test_zeros_are_zero_on_a_block_that_was_used(born):
    with weft.arrays_in_pool():
        for nbytes in (N, 3 * N, N // 2, 2 * N):
            np.full(nbytes, 255, "u1")
            zeros = np.zeros(nbytes, "u1")
            assert not zeros.any()
            del zeros
    assert born() == 0


def test_zeros_on_pages_that_are_there_take_no_new_ones():
    """256 faults take far longer than clearing 1 MiB."""

    def faults():
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    with weft.arrays_in_pool():
        address = np.full(N, 7, "u1").ctypes.data
        before = faults()
        zeros = np.zeros(N, "u1")
        assert zeros.ctypes.data == address
        assert not zeros.any()
        assert faults() - before < 16
    del zeros


def test_zeros_cost_no_memory_before_they_are_touched():
    def resident():
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * 4096

    with weft.arrays_in_pool():
        before = resident()
        zeros = np.zeros(256 << 20, "u1")
        assert resident() - before < 64 << 20
        assert zeros[-1] == 0
        larger = np.zeros(1 << 30, "u1")
        assert not larger.any()  # a look at zeroes that nobody wrote takes no page either
        assert resident() - before < 64 << 20
    del zeros, larger


def test_resize_in_every_direction(born):
    with weft.arrays_in_pool():
        array = np.full(1000, 7, "u1")
        sizes = [N, 4 * N, 4 * N - 5000, N, 100, 70_000, 65_536, 10]
        kept = 1000
        for nbytes in sizes:
            array.resize(nbytes, refcheck=False)
            kept = min(kept, nbytes)
            assert (array[:kept] == 7).all()
            assert not array[kept:].any()
    del array
    assert born() == 0


def test_an_array_may_be_freed_by_another_thread_and_outside(born):
    arrays = []

    def make():
        with weft.arrays_in_pool():
            arrays.append(np.full(N, 1, "u1"))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    assert born() == N
    arrays.clear()
    assert born() == 0


def test_a_thread_started_inside_is_outside(born):
    """As with every context variable: threads start with an empty context."""
    sizes = []
    with weft.arrays_in_pool():
        thread = threading.Thread(target=lambda: sizes.append(born() if np.empty(N, "u1") is not None else 0))
        thread.start()
        thread.join()
        inherited = contextvars.copy_context()
        arrays: list[np.ndarray] = []
        thread = threading.Thread(target=inherited.run, args=(lambda: arrays.append(np.empty(N, "u1")),))
        thread.start()
        thread.join()
    assert sizes == [0]
    assert born() == N
    arrays.clear()


def test_blocks_nest(born):
    with weft.arrays_in_pool():
        with weft.arrays_in_pool():
            pass
        a = np.empty(N, "u1")
    b = np.empty(N, "u1")
    assert born() == N
    del a, b


def test_more_than_the_machine_has_is_a_memory_error():
    with weft.arrays_in_pool(), pytest.raises(MemoryError):
        np.full(1 << 60, 1, "u1")


def test_many_threads_at_once(born):
    def work(seed):
        rng = np.random.default_rng(seed)
        with weft.arrays_in_pool():
            held = []
            for i in range(300):
                nbytes = int(rng.integers(1000, 400_000))
                held.append((np.full(nbytes, i % 251, "u1"), i % 251))
                if len(held) > 20:
                    array, value = held.pop(int(rng.integers(0, len(held))))
                    if not (array == value).all():
                        wrong.append(seed)

    wrong = []
    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert born() == 0


def test_forked_children_and_theirs(born):
    """Neither a child nor a child of it writes into the parent's arrays, or loses what it wrote itself."""
    weft.Context({"TLS": "self"})
    with weft.arrays_in_pool():
        array = np.full(N, 1, "u1")
        pid = os.fork()
        if pid == 0:
            array[: N // 2] = 2
            mine = np.full(N, 5, "u1")
            grandchild = os.fork()
            if grandchild == 0:
                ok = (array[: N // 2] == 2).all() and (array[N // 2 :] == 1).all() and (mine == 5).all()
                array[:] = 3
                del array
                os._exit(0 if ok else 1)
            ok = os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]) == 0
            ok = ok and (array[: N // 2] == 2).all() and (array[N // 2 :] == 1).all()
            array.resize(2 * N, refcheck=False)
            ok = ok and array[0] == 2 and not array[N:].any()
            os._exit(0 if ok else 2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (array == 1).all()
    del array
    assert born() == 0


def test_a_forked_child_sees_later_changes():
    weft.Context({"TLS": "self"})
    with weft.arrays_in_pool():
        array = np.full(N, 1, "u1")
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(out, 1)
        os._exit(array[-1])
    array[:] = 2
    os.write(into, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
    os.close(out)
    os.close(into)


def test_a_fork_while_another_thread_allocates():
    weft.Context({"TLS": "self"})
    stop = threading.Event()

    def allocate():
        with weft.arrays_in_pool():
            while not stop.is_set():
                np.empty(N, "u1")

    thread = threading.Thread(target=allocate)
    thread.start()
    try:
        for _ in range(50):
            pid = os.fork()
            if pid == 0:
                with weft.arrays_in_pool():
                    np.empty(N, "u1")
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        stop.set()
        thread.join()
