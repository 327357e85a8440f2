# SPDX-License-Identifier: BSD-3-Clause
"""Memory that peers reach: mapped and allocated, keys, put, get and atomic operations."""

import gc
import pickle
import weakref

import numpy as np
import pytest

import weft

TRANSPORTS = ["posix", "tcp"]


@pytest.fixture(params=TRANSPORTS)
def context(request):
    context = weft.Context({"TLS": request.param}, features=["rma"])
    yield context
    gc.collect()
    context.close()


@pytest.fixture(params=TRANSPORTS)
def atomic(request):
    """Key, endpoint and memory of 16 words in a context with atomics."""
    context = weft.Context({"TLS": request.param}, features=["rma", "amo"])
    worker = weft.Worker(context)
    endpoint = worker.connect(worker.address)
    memory = context.mem_alloc(128)
    words = memoryview(memory).cast("Q")
    words[:] = memoryview(bytes(128)).cast("Q")
    yield endpoint, endpoint.rkey_unpack(memory.rkey_pack()), words
    worker.close()
    words.release()
    memory.close()
    context.close()


def allocated(context, nbytes):
    return context.mem_alloc(nbytes)


def mapped(context, nbytes):
    return context.mem_map(bytearray(nbytes))


@pytest.mark.parametrize("make", [allocated, mapped])
@pytest.mark.parametrize("nbytes", [1, 8, 5000, 1 << 20])
def test_put_and_get(context, worker, endpoint, make, nbytes):
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, "u1").tobytes()
    memory = make(context, nbytes + 3)
    rkey = endpoint.rkey_unpack(memory.rkey_pack())
    endpoint.put(data, rkey, 3).wait(100)
    endpoint.flush().wait(100)
    got = bytearray(nbytes)
    endpoint.get(got, rkey, 3).wait(100)
    assert got == data
    if make is allocated:
        assert bytes(memoryview(memory)[3:]) == data
    worker.close()


def test_mapped_memory_is_the_array_itself(context, worker, endpoint):
    array = np.zeros(100)
    with context.mem_map(array) as memory:
        assert memory.nbytes == array.nbytes
        assert memory.address == array.ctypes.data
        endpoint.put(np.full(50, 2.5), endpoint.rkey_unpack(memory.rkey_pack()), 50 * 8).wait(100)
        worker.flush().wait(100)
        assert array.sum() == 125
        worker.close()
    assert memory.closed


def test_a_key_to_memory_that_is_closed(context, endpoint):
    memory = context.mem_alloc(1 << 16)
    key = memory.rkey_pack()
    memory.close()
    if context.config["TLS"][0] == "posix":
        with pytest.raises(weft.UnreachableError, match="its owner has closed it"):
            endpoint.rkey_unpack(key)
    else:  # tcp takes the key; an access through it then fails
        endpoint.rkey_unpack(key)


def test_an_empty_key(endpoint):
    with pytest.raises(weft.InvalidParamError, match="rkey_unpack: the key is empty"):
        endpoint.rkey_unpack(weft.RemoteKey(0, 10, b""))


def test_mapped_memory_is_locked(context):
    buffer = bytearray(10)
    memory = context.mem_map(buffer)
    with pytest.raises(BufferError):
        buffer.append(0)
    memory.close()
    memory.close()
    buffer.append(0)


def test_a_key_is_pickled(context, worker, endpoint):
    memory = context.mem_alloc(100)
    key = memory.rkey_pack()
    copy = pickle.loads(pickle.dumps(key))
    assert (copy.address, copy.nbytes, copy.packed) == (key.address, key.nbytes, key.packed)
    rkey = endpoint.rkey_unpack(copy)
    assert (rkey.address, rkey.nbytes) == (memory.address, memory.nbytes)
    worker.close()


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 101), (100, 1), (99, 2), (2**63, 1), (2**64 - 1, 2)])
def test_nothing_beyond_the_end(context, worker, endpoint, offset, nbytes):
    memory = context.mem_alloc(100)
    rkey = endpoint.rkey_unpack(memory.rkey_pack())
    for operation in (endpoint.put, endpoint.get):
        with pytest.raises(weft.InvalidParamError, match="exceed the memory of 100 B"):
            operation(bytearray(nbytes), rkey, offset)
    worker.close()


def test_a_key_belongs_to_its_endpoint(context, worker, endpoint):
    memory = context.mem_alloc(8)
    rkey = endpoint.rkey_unpack(memory.rkey_pack())
    other = worker.connect(worker.address)
    with pytest.raises(weft.InvalidParamError, match="another endpoint"):
        other.put(b"x", rkey)
    worker.close()
    with pytest.raises(weft.ClosedError):
        endpoint.put(b"x", rkey)


def test_bad_memory(context):
    for refused in (b"read only", bytearray()):
        with pytest.raises((weft.ReadOnlyError, weft.InvalidParamError)):
            context.mem_map(refused)
    with pytest.raises(weft.InvalidParamError, match="at least 1 B"):
        context.mem_alloc(0)
    with pytest.raises(weft.NoMemoryError):
        context.mem_alloc(1 << 60)


def test_memory_and_its_views_close_in_order(context):
    memory = context.mem_alloc(10)
    view = memoryview(memory)
    with pytest.raises(weft.InvalidParamError, match="memoryview"):
        memory.close()
    with pytest.raises(weft.InvalidParamError, match=r"is mapped \(1\)"):
        context.close()
    view.release()
    memory.close()
    with pytest.raises(BufferError):
        memoryview(memory)
    with pytest.raises(weft.ClosedError):
        memory.rkey_pack()


def test_keys_and_memory_may_go_in_any_order(context, worker, endpoint):
    memory = context.mem_alloc(10)
    rkey = endpoint.rkey_unpack(memory.rkey_pack())
    pending = endpoint.put(b"x", rkey)
    del rkey
    gc.collect()
    pending.wait(100)
    endpoint.flush().wait(100)  # until then tcp may write to the memory: without it, this crashed once in some 300 runs
    memory = context.mem_alloc(10)
    late = endpoint.rkey_unpack(memory.rkey_pack())
    worker.close()
    del endpoint, worker, memory
    gc.collect()
    del late


@pytest.mark.parametrize("make", [allocated, mapped])
@pytest.mark.parametrize("of", ["endpoint", "worker"])
def test_memory_stays_while_this_process_writes_to_it(context, worker, endpoint, make, of):
    memory = make(context, 1 << 20)
    rkey = endpoint.rkey_unpack(memory.rkey_pack())
    put = endpoint.put(bytes(1 << 20), rkey)
    early = endpoint.flush()
    endpoint.put(b"x", rkey).wait(100)
    put.wait(100)
    early.wait(100)
    with pytest.raises(weft.InvalidParamError, match=r"put .* flush"):
        memory.close()
    assert not memory.closed
    {"endpoint": endpoint, "worker": worker}[of].flush().wait(100)
    memory.close()
    with pytest.raises(weft.ClosedError):
        memory.rkey_pack()
    worker.close()


@pytest.mark.parametrize("make", [allocated, mapped])
def test_memory_stays_while_this_process_reads_it(context, worker, endpoint, make):
    memory = make(context, 1 << 20)
    get = endpoint.get(bytearray(1 << 20), endpoint.rkey_unpack(memory.rkey_pack()))
    with pytest.raises(weft.InvalidParamError, match=r"get .* wait for it"):
        memory.close()
    get.wait(100)
    memory.close()
    worker.close()


def test_a_worker_that_closes_ends_what_was_written(context, worker, endpoint):
    memory = context.mem_alloc(1 << 20)
    endpoint.put(bytes(1 << 20), endpoint.rkey_unpack(memory.rkey_pack()))
    worker.close()
    memory.close()


def test_memory_that_is_dropped_while_written_to_is_unmapped_after_the_flush(context, worker, endpoint):
    buffer = bytearray(1 << 20)
    memory = context.mem_map(buffer)
    there = weakref.ref(memory)
    endpoint.put(b"x" * len(buffer), endpoint.rkey_unpack(memory.rkey_pack()))
    del memory
    assert there() is not None
    with pytest.raises(BufferError):
        buffer.append(0)
    endpoint.flush().wait(100)
    assert there() is None
    assert buffer == b"x" * len(buffer)
    worker.close()


def test_without_the_features():
    plain = weft.Context({"TLS": "posix"})
    for operation in (plain.mem_alloc, plain.mem_map):
        with pytest.raises(weft.UnsupportedError, match=r'features=\["rma"\]'):
            operation(10)
    plain.close()
    with pytest.raises(weft.InvalidParamError, match="unknown feature magic"):
        weft.Context(features=["magic"])


def test_no_atomics_without_the_feature(context, worker, endpoint):
    memory = context.mem_alloc(8)
    rkey = endpoint.rkey_unpack(memory.rkey_pack())
    with pytest.raises(weft.UnsupportedError, match=r'features=\["amo"\]'):
        endpoint.atomic_op("add", 1, rkey)
    worker.close()


# ---- atomic operations --------------------------------------------------------------------------------------------

RESULTS = [("add", 5, 17), ("add", -1, 11), ("and", 6, 4), ("or", 3, 15), ("xor", 5, 9), ("swap", 99, 99)]


@pytest.mark.parametrize(("op", "value", "result"), RESULTS)
@pytest.mark.parametrize("nbytes", [4, 8])
def test_atomic_operations(atomic, op, value, result, nbytes):
    endpoint, rkey, words = atomic
    words[2] = 12
    assert endpoint.atomic_op(op, value, rkey, 16, nbytes=nbytes).wait(100) == 12
    assert words[2] == result
    assert sum(words) == result


@pytest.mark.parametrize("nbytes", [4, 8])
def test_compare_and_swap(atomic, nbytes):
    endpoint, rkey, words = atomic
    words[1] = 7
    assert endpoint.atomic_op("cswap", 1, rkey, 8, compare=6, nbytes=nbytes).wait(100) == 7
    assert words[1] == 7
    assert endpoint.atomic_op("cswap", 1, rkey, 8, compare=7, nbytes=nbytes).wait(100) == 7
    assert words[1] == 1


@pytest.mark.parametrize("op", ["add", "and", "or", "xor"])
def test_atomic_without_the_old_value(atomic, op):
    endpoint, rkey, words = atomic
    words[0] = 0b1100
    assert endpoint.atomic_op(op, 0b1010, rkey, fetch=False).wait(100) is None
    endpoint.flush().wait(100)
    assert words[0] == {"add": 22, "and": 0b1000, "or": 0b1110, "xor": 0b0110}[op]


def test_four_bytes_stay_four(atomic):
    endpoint, rkey, words = atomic
    words[0] = 2**32 - 1
    assert endpoint.atomic_op("add", 1, rkey, nbytes=4).wait(100) == 2**32 - 1
    assert words[0] == 0


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("add", 1, 4), {}, "multiple of 8"),
        (("add", 1, 128), {}, "exceed"),
        (("add", 2**64, 0), {}, "does not fit into 8 B"),
        (("add", -(2**63) - 1, 0), {}, "does not fit into 8 B"),
        (("add", 2**32, 0), {"nbytes": 4}, "does not fit into 4 B"),
        (("add", 1, 0), {"nbytes": 2}, "4 or 8"),
        (("nand", 1, 0), {}, "unknown operation nand"),
        (("cswap", 1, 0), {}, "compare"),
        (("add", 1, 0), {"compare": 1}, "compare"),
    ],
)
def test_refused_atomics_change_nothing(atomic, arguments, options, message):
    endpoint, rkey, words = atomic
    op, value, offset = arguments
    with pytest.raises(weft.InvalidParamError, match=message):
        endpoint.atomic_op(op, value, rkey, offset, **options)
    assert sum(words) == 0


def test_what_an_operand_closes_is_closed(spawn):
    """In a process of its own: it crashed."""
    child = spawn("""
        import weft
        context = weft.Context({"TLS": "posix,self"}, features=("tag", "rma", "amo"))
        memory = context.mem_map(bytearray(64))
        for what in ("endpoint", "worker"):
            worker = weft.Worker(context)
            endpoint = worker.connect(worker.address)
            rkey = endpoint.rkey_unpack(memory.rkey_pack())

            class Closes(int):
                def __lt__(self, other):
                    {"endpoint": endpoint, "worker": worker}[what].close()
                    return False

            try:
                endpoint.atomic_op("cswap", 1, rkey, compare=Closes(5))
            except weft.ClosedError as error:
                assert f"atomic_op: the {what}" in str(error)
            else:
                raise AssertionError
        """)
    assert child.wait() == 0
