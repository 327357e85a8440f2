# SPDX-License-Identifier: BSD-3-Clause
"""Which objects may be sent and filled, and that their exports are held exactly as long as needed."""

import array
import ctypes
import mmap
import pickle
import sys

import numpy as np
import pytest

import weft


def make_mmap(data: bytes) -> mmap.mmap:
    m = mmap.mmap(-1, len(data))
    m[:] = data
    return m


DATA = bytes(range(96))
SOURCES = {
    "bytes": lambda d: d,
    "bytearray": bytearray,
    "memoryview": lambda d: memoryview(bytearray(d)),
    "array": lambda d: array.array("i", d),
    "numpy": lambda d: np.frombuffer(d, "f4"),
    "numpy C": lambda d: np.frombuffer(d, "i2").reshape(6, 8),
    "numpy F": lambda d: np.asfortranarray(np.frombuffer(d, "i2").reshape(8, 6).T.copy("F")),
    "mmap": make_mmap,
    "ctypes": lambda d: (ctypes.c_uint32 * (len(d) // 4)).from_buffer_copy(d),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_any_contiguous_source_arrives_as_it_lies(worker, endpoint, kind):
    source = SOURCES[kind](DATA)
    expected = source.tobytes("A") if isinstance(source, np.ndarray) else bytes(memoryview(source).cast("B"))
    into = bytearray(len(DATA))
    received = worker.tag_recv(into, 1)
    endpoint.tag_send(source, 1).wait(100)
    assert received.wait(100) == (len(DATA), 1)
    assert bytes(into) == expected


@pytest.mark.parametrize("kind", ["bytearray", "memoryview", "array", "mmap", "ctypes"])
def test_any_contiguous_destination_is_filled(worker, endpoint, kind):
    into = SOURCES[kind](bytes(len(DATA)))
    received = worker.tag_recv(into, 1)
    endpoint.tag_send(DATA, 1).wait(100)
    received.wait(100)
    assert bytes(memoryview(into).cast("B")) == DATA


@pytest.mark.parametrize("order", ["C", "F"])
def test_numpy_destination_in_either_order(worker, endpoint, order):
    into = np.zeros((6, 8), "i2", order)
    received = worker.tag_recv(into, 1)
    endpoint.tag_send(DATA, 1).wait(100)
    received.wait(100)
    assert into.tobytes("A") == DATA


def test_strided_source_is_refused_and_nothing_is_sent(worker, endpoint):
    with pytest.raises(weft.NotContiguousError, match=r"tag_send.*ascontiguousarray"):
        endpoint.tag_send(np.arange(8)[::2], 1)
    into = bytearray(32)
    received = worker.tag_recv(into, 1)
    endpoint.tag_send(b"next", 1).wait(100)
    assert received.wait(100) == (4, 1)


def test_strided_destination_is_refused(worker):
    with pytest.raises(weft.NotContiguousError, match="pass a contiguous array, and copy from it when"):
        worker.tag_recv(np.zeros(8)[::2], 1)


@pytest.mark.parametrize("into", [b"12345678", memoryview(b"12345678"), np.frombuffer(b"12345678")])
def test_read_only_destination_is_refused_and_not_overwritten(worker, endpoint, into):
    with pytest.raises(weft.ReadOnlyError, match=r"read-only"):
        worker.tag_recv(into, 1)
    assert bytes(into) == b"12345678"


def of_objects(dtype, count=4):
    return np.zeros(count, dtype)


OBJECTS = {
    "numpy": lambda: of_objects("O"),
    "numpy F": lambda: of_objects("O").reshape(2, 2, order="F"),
    "numpy field": lambda: of_objects([("count", "i4"), ("what", "O")]),
    "numpy nested": lambda: of_objects([("outer", [("what", "O", (2,))])]),
    "numpy subclass": lambda: of_objects("O").view(np.recarray),
    "memoryview": lambda: memoryview(of_objects("O")),
    "memoryview field": lambda: memoryview(of_objects([("what", "O")])),
    "pickle": lambda: pickle.PickleBuffer(of_objects("O")),
    "ctypes": lambda: (ctypes.py_object * 4)(),
}
if hasattr(np.dtypes, "StringDType"):
    OBJECTS["numpy strings"] = lambda: np.array(["far longer than fits the array itself"], np.dtypes.StringDType())


USES = {
    "tag_send": lambda e, w, k, b: e.tag_send(b, 1),
    "tag_send_sync": lambda e, w, k, b: e.tag_send_sync(b, 1),
    "tag_send_many": lambda e, w, k, b: e.tag_send_many([b"12345678", b], 1),
    "stream_send": lambda e, w, k, b: e.stream_send(b),
    "am_send": lambda e, w, k, b: e.am_send(1, b"", b),
    "am_send, as its header": lambda e, w, k, b: e.am_send(1, b),
    "put": lambda e, w, k, b: e.put(b, k),
    "tag_recv": lambda e, w, k, b: w.tag_recv(b, 1),
    "tag_recv_many": lambda e, w, k, b: w.tag_recv_many([bytearray(8), b], 1),
    "stream_recv": lambda e, w, k, b: e.stream_recv(b),
    "get": lambda e, w, k, b: e.get(b, k),
}


@pytest.fixture(scope="module")
def all_features():
    """Endpoint, worker, and the key of 64 B."""
    context = weft.Context({"TLS": "posix,self"}, features=["stream", "rma"])
    worker = weft.Worker(context)
    endpoint = worker.connect(worker.address)
    memory = context.mem_map(bytearray(64))
    yield endpoint, worker, endpoint.rkey_unpack(memory.rkey_pack())
    worker.close()
    memory.close()
    context.close()


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", OBJECTS)
def test_pointers_to_objects_are_neither_sent_nor_filled(all_features, kind, use):
    with pytest.raises(weft.InvalidParamError, match=rf"^{use.partition(',')[0]}: .*Python objects.* pickle"):
        USES[use](*all_features, OBJECTS[kind]())


def test_pointers_to_objects_are_not_registered():
    context = weft.Context({"TLS": "posix"}, features=["rma"])
    with pytest.raises(weft.InvalidParamError, match="Python objects"):
        context.mem_map(of_objects("O"))
    context.close()


@pytest.mark.parametrize(
    "source",
    [
        np.zeros(4, [("O", "f8"), ("NO", "i4")]),
        np.zeros(4, "M8[s]"),
        np.zeros(4, "c16"),
        np.zeros(4, "U9"),
        memoryview(np.zeros(4, [("O", "f8"), ("NO", "i4")])),
        array.array("d", [1, 2]),
        (ctypes.c_double * 4)(),
        np.float64(1),
    ],
)
def test_wide_items_that_are_no_objects(worker, endpoint, source):
    into = np.zeros(256, "u1")
    received = worker.tag_recv(into, 1)
    endpoint.tag_send(source, 1).wait(5)
    assert received.wait(5) == (source.nbytes if isinstance(source, np.ndarray) else len(bytes(source)), 1)


def test_a_refused_buffer_is_let_go(endpoint):
    array = of_objects("O")
    before = sys.getrefcount(array)
    with pytest.raises(weft.InvalidParamError):
        endpoint.tag_send(array, 1)
    assert sys.getrefcount(array) == before


def test_not_a_buffer_is_a_type_error(endpoint):
    with pytest.raises(TypeError):
        endpoint.tag_send(5, 1)
    with pytest.raises(TypeError):
        endpoint.tag_send(None, 1)


@pytest.mark.parametrize("nbytes", [64, 1 << 20])
def test_too_small_destination_is_truncation_and_stays_untouched(worker, endpoint, nbytes):
    into = bytearray(16)
    received = worker.tag_recv(into, 1)
    sent = endpoint.tag_send(bytearray(b"x" * nbytes), 1)
    with pytest.raises(weft.TruncatedError, match="tag_recv of 16 B"):
        received.wait(100)
    assert into == bytearray(16)
    sent.wait(100)


def test_the_export_is_held_from_post_to_completion(worker, endpoint):
    into = bytearray(8)
    received = worker.tag_recv(into, 1)
    with pytest.raises(BufferError):
        into.extend(b"more")
    endpoint.tag_send(b"12345678", 1).wait(100)
    received.wait(100)
    into.extend(b"more")


def test_a_large_source_is_held_until_its_transfer_ends(worker, endpoint):
    source, into = bytearray(4 << 20), bytearray(4 << 20)
    sent = endpoint.tag_send(source, 1)
    with pytest.raises(BufferError):
        source.append(0)
    received = worker.tag_recv(into, 1)
    received.wait(100)
    sent.wait(100)
    source.append(0)


def test_the_export_is_released_after_a_cancelled_receive(worker):
    into = bytearray(8)
    received = worker.tag_recv(into, 1)
    assert received.cancel()
    while worker.progress():
        pass
    into.append(0)


def test_the_export_is_released_when_the_worker_closes(context):
    worker = weft.Worker(context)
    into = bytearray(8)
    received = worker.tag_recv(into, 1)
    worker.close()
    into.append(0)
    with pytest.raises(weft.Error):
        received.wait(1)


def test_empty_messages(worker, endpoint):
    received = worker.tag_recv(bytearray(0), 7)
    endpoint.tag_send(b"", 7).wait(100)
    assert received.wait(100) == (0, 7)
