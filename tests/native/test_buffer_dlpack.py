# SPDX-License-Identifier: BSD-3-Clause
"""Arrays without the buffer protocol go in through DLPack, and are held exactly as long as needed."""

import enum

import numpy as np
import pytest
from tests.native.dlpack import READ_ONLY, DLPackArray

import weft

BOTH = pytest.mark.parametrize("versioned", [True, False], ids=["1.0", "before 1.0"])


class OnlyDLPack:
    """A NumPy array without its buffer protocol: what a real producer makes of it."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **arguments):
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def arrive(worker, endpoint, source, nbytes):
    into = bytearray(nbytes)
    received = worker.tag_recv(into, 1)
    endpoint.tag_send(source, 1).wait(100)
    assert received.wait(100) == (nbytes, 1)
    return bytes(into)


@BOTH
def test_a_source_arrives_and_is_deleted_once(worker, endpoint, versioned):
    source = DLPackArray(bytearray(range(96)), (8, 3), bits=32, versioned=versioned)
    assert arrive(worker, endpoint, source, 96) == bytes(range(96))
    assert source.taken
    assert source.deleted == 1
    assert source.calls == [{"max_version": (1, 0)}, {}][: 1 if versioned else 2]


@BOTH
def test_a_destination_is_filled_and_held_until_then(worker, endpoint, versioned):
    into = DLPackArray(bytearray(8), versioned=versioned)
    received = worker.tag_recv(into, 1)
    assert into.deleted == 0
    with pytest.raises(BufferError):
        into.memory.append(0)
    endpoint.tag_send(b"12345678", 1).wait(100)
    received.wait(100)
    assert into.memory == b"12345678"
    assert into.deleted == 1
    into.memory.append(0)


def test_a_large_source_is_held_until_its_transfer_ends(worker, endpoint):
    source, into = DLPackArray(bytearray(4 << 20)), bytearray(4 << 20)
    sent = endpoint.tag_send(source, 1)
    assert source.deleted == 0
    worker.tag_recv(into, 1).wait(100)
    sent.wait(100)
    assert source.deleted == 1


def test_a_cancelled_receive_and_a_closed_worker_let_go(context):
    worker = weft.Worker(context)
    cancelled, left = DLPackArray(bytearray(8)), DLPackArray(bytearray(8))
    assert worker.tag_recv(cancelled, 1).cancel()
    while worker.progress():
        pass
    assert cancelled.deleted == 1
    worker.tag_recv(left, 1)
    worker.close()
    assert left.deleted == 1


def test_real_producers(worker, endpoint):
    array = np.arange(12.0).reshape(3, 4)
    assert arrive(worker, endpoint, OnlyDLPack(array), 96) == array.tobytes()
    array.setflags(write=False)
    assert arrive(worker, endpoint, OnlyDLPack(array), 96) == array.tobytes()
    with pytest.raises(weft.ReadOnlyError, match=r"tag_recv.*OnlyDLPack.*read-only"):
        worker.tag_recv(OnlyDLPack(array), 1)


def test_a_read_only_destination_is_refused(worker):
    into = DLPackArray(bytearray(8), flags=READ_ONLY)
    with pytest.raises(weft.ReadOnlyError, match=r"tag_recv.*DLPackArray.*read-only"):
        worker.tag_recv(into, 1)
    assert into.deleted == 1


def test_a_read_only_source_is_sent(worker, endpoint):
    source = DLPackArray(bytearray(b"12345678"), flags=READ_ONLY)
    assert arrive(worker, endpoint, source, 8) == b"12345678"


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((2, 4), None),
        ((2, 4), (4, 1)),
        ((2, 4), (1, 2)),  # Fortran's order
        ((1, 8), (77, 1)),  # the stride of an axis of one item is of no account
        ((8,), (1,)),
    ],
)
def test_contiguous_layouts(worker, endpoint, shape, strides):
    source = DLPackArray(bytearray(range(16)), shape, strides, bits=16)
    assert arrive(worker, endpoint, source, 16) == bytes(range(16))


@pytest.mark.parametrize(("shape", "strides"), [((4,), (2,)), ((2, 2), (4, 1)), ((2, 4), (1, 4)), ((4,), (-1,))])
def test_strided_layouts_are_refused(worker, endpoint, shape, strides):
    array = DLPackArray(bytearray(16), shape, strides)
    with pytest.raises(weft.NotContiguousError, match=r"tag_send.*DLPackArray.*contiguous\(\)"):
        endpoint.tag_send(array, 1)
    assert array.deleted == 1
    with pytest.raises(weft.NotContiguousError):
        worker.tag_recv(array, 1)
    assert array.deleted == 2


@pytest.mark.parametrize(
    ("shape", "strides", "nbytes"), [((), None, 4), ((), (), 4), ((0,), None, 0), ((3, 0), (7, 9), 0)]
)
def test_arrays_of_no_axis_and_of_no_item(worker, endpoint, shape, strides, nbytes):
    source = DLPackArray(bytearray(b"abcd"), shape, strides, bits=32)
    assert arrive(worker, endpoint, source, nbytes) == b"abcd"[:nbytes]
    assert source.deleted == 1


@pytest.mark.parametrize("shape", [(-1,), (-5, -5), (2**62,), (2**33, 2**33), (2**32, 2**32, 1)])
def test_impossible_shapes_are_refused(endpoint, shape):
    source = DLPackArray(bytearray(8), shape, bits=32)
    with pytest.raises(weft.InvalidParamError, match=r"tag_send: the DLPackArray has an impossible shape"):
        endpoint.tag_send(source, 1)
    assert not source.taken, "its capsule still owns it"


def test_items_without_memory_are_refused(endpoint):
    source = DLPackArray(bytearray(8))
    source.address = 0
    with pytest.raises(weft.InvalidParamError, match=r"has an impossible shape or no memory"):
        endpoint.tag_send(source, 1)


def test_lanes_and_offset(worker, endpoint):
    source = DLPackArray(bytearray(range(20)), (2,), bits=16, lanes=4, offset=4)
    assert arrive(worker, endpoint, source, 16) == bytes(range(4, 20))


def test_items_that_are_no_whole_bytes_are_refused(endpoint):
    source = DLPackArray(bytearray(4), (8,), bits=4)
    with pytest.raises(weft.UnsupportedError, match="items of 4 bits"):
        endpoint.tag_send(source, 1)
    assert source.deleted == 1


def test_pinned_host_memory_is_host_memory(worker, endpoint):
    source = DLPackArray(bytearray(b"12345678"), device=(3, 0))
    assert arrive(worker, endpoint, source, 8) == b"12345678"


@pytest.mark.parametrize(
    ("device", "name"),
    [
        (2, "CUDA memory"),
        (13, "CUDA managed memory"),
        (10, "ROCm memory"),
        (8, r"8 \(Metal\)"),
        (99, r"99 \(unknown\)"),
    ],
)
def test_memory_out_of_reach_is_refused_before_it_is_exported(endpoint, device, name):
    """The context of these tests has posix and self only, whatever the machine has."""
    source = DLPackArray(bytearray(8), device=(device, 0))
    with pytest.raises(weft.UnsupportedError, match=f"tag_send: the DLPackArray is (in|on) .*{name}"):
        endpoint.tag_send(source, 1)
    assert source.calls == []


def test_what_a_producer_says_of_its_device_must_be_true(endpoint):
    source = DLPackArray(bytearray(8), device=(2, 0))
    source.__class__ = type("Liar", (DLPackArray,), {"__dlpack_device__": lambda _: (1, 0)})
    with pytest.raises(weft.InvalidParamError, match="not on the device"):
        endpoint.tag_send(source, 1)
    assert source.deleted == 1


@pytest.mark.parametrize(
    ("kind", "error", "said"),
    [
        (2**40, weft.UnsupportedError, r"is on a device of DLPack type 1099511627776 \(unknown\)"),
        (2**70, OverflowError, "int too big to convert"),
        ("x", ValueError, "invalid literal"),
    ],
)
def test_a_device_of_no_known_type_is_refused(endpoint, kind, error, said):
    with pytest.raises(error, match=said):
        endpoint.tag_send(DLPackArray(bytearray(8), device=(kind, 0)), 1)


def test_the_device_may_be_an_enumeration(worker, endpoint):
    cpu = enum.IntEnum("DeviceType", {"CPU": 1}).CPU
    assert arrive(worker, endpoint, DLPackArray(bytearray(b"1234"), device=(cpu, 0)), 4) == b"1234"


@pytest.mark.parametrize("given", [None, b"capsule", 5])
def test_no_capsule_is_a_named_error(endpoint, given):
    source = DLPackArray(bytearray(8))
    source.__class__ = type("Broken", (DLPackArray,), {"__dlpack__": lambda *_, **__: given})
    with pytest.raises(weft.InvalidParamError, match="Broken returned no capsule"):
        endpoint.tag_send(source, 1)


def test_a_capsule_that_was_used_is_a_named_error(worker, endpoint):
    source = DLPackArray(bytearray(8))
    arrive(worker, endpoint, source, 8)
    source.__class__ = type("Twice", (DLPackArray,), {"__dlpack__": lambda self, **_: self.capsule})
    with pytest.raises(weft.InvalidParamError, match="Twice returned no tensor"):
        endpoint.tag_send(source, 1)
    assert source.deleted == 1


def test_what_the_producer_raises_comes_through(endpoint):
    def refuse(self, **_):
        raise BufferError("detach it first")

    source = DLPackArray(bytearray(8))
    source.__class__ = type("Graph", (DLPackArray,), {"__dlpack__": refuse})
    with pytest.raises(BufferError, match="detach it first"):
        endpoint.tag_send(source, 1)


def test_the_buffer_protocol_goes_first(worker, endpoint):
    class Both(bytearray):
        def __dlpack_device__(self):
            raise AssertionError("asked")

    assert arrive(worker, endpoint, Both(b"1234"), 4) == b"1234"


def test_a_protocol_that_refuses_gives_way(worker, endpoint):
    """CuPy's arrays have a buffer protocol that refuses device memory."""
    view = memoryview(bytearray(4))
    view.release()
    with pytest.raises(ValueError, match="released"):
        endpoint.tag_send(view, 1)


class Closing(DLPackArray):
    """Its export closes what it is to be sent through."""

    close = None

    def __dlpack__(self, **arguments):
        self.close()
        return super().__dlpack__(**arguments)


@pytest.mark.parametrize("what", ["endpoint", "worker"])
@pytest.mark.parametrize("op", ["tag_send", "am_send", "tag_recv"])
def test_what_an_export_closes_is_closed(worker, endpoint, what, op):
    array = Closing(bytearray(4))
    array.close = {"endpoint": endpoint, "worker": worker}[what].close
    calls = {
        "tag_send": lambda: endpoint.tag_send(array, 1),
        "am_send": lambda: endpoint.am_send(3, b"", [array]),
        "tag_recv": lambda: worker.tag_recv(array, 1),
    }
    if what == "endpoint" and op == "tag_recv":
        assert not calls[op]().done()
        return
    with pytest.raises(weft.ClosedError, match=f"{op}: the {what}"):
        calls[op]()
    assert array.deleted == 1


def test_active_messages_take_one_tensor_or_a_list(worker, endpoint):
    one, two = DLPackArray(bytearray(b"abcd")), DLPackArray(bytearray(b"efgh"))
    received = worker.am_recv(3)
    endpoint.am_send(3, b"h", one).wait(100)
    assert bytes(received.wait(100)[1]) == b"abcd"
    received = worker.am_recv(3)
    endpoint.am_send(3, b"h", [one, two]).wait(100)
    assert bytes(received.wait(100)[1]) == b"abcdefgh"
    assert (one.deleted, two.deleted) == (2, 1)


def test_pytorch_on_the_cpu(worker, endpoint):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    source, into = torch.arange(12.0).reshape(3, 4), torch.zeros(3, 4)
    received = worker.tag_recv(into, 1)
    endpoint.tag_send(source, 1).wait(100)
    assert received.wait(100) == (48, 1)
    assert torch.equal(source, into)
    with pytest.raises(weft.NotContiguousError):
        endpoint.tag_send(source[:, 1], 1)
