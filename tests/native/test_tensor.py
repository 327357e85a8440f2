# SPDX-License-Identifier: BSD-3-Clause
"""Memory given out as an array by DLPack, and what an array tells of its layout by it."""

import gc

import numpy as np
import pytest
from tests.native.dlpack import DLPackArray

import weft
from weft import _native

CPU = (1, 0)
UINT8, INT32, BFLOAT16 = (1, 8, 1), (0, 32, 1), (4, 16, 1)


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_view_is_the_memory_in_the_layout_that_was_asked_for(order):
    array = np.arange(24, dtype="i4").reshape(4, 6, order=order)
    memory = bytearray(array.tobytes(order))
    strides = tuple(stride // 4 for stride in array.strides)
    view = np.from_dlpack(_native.view(memory, INT32, array.shape, strides, CPU, True))
    np.testing.assert_array_equal(view, array)
    assert view.strides == array.strides
    view[1, 2] = -1
    assert (np.frombuffer(memory, "i4") == -1).sum() == 1


def test_a_type_that_the_buffer_protocol_lacks_comes_back_as_it_was():
    exporter = _native.view(bytearray(12), BFLOAT16, (2, 3), (1, 2), (2, 5), True)
    assert exporter.__dlpack_device__() == (2, 5)
    assert _native.layout(exporter) == (BFLOAT16, (2, 3), (1, 2), (2, 5))
    with pytest.raises(BufferError):
        memoryview(exporter)


def test_bytes_of_an_array_that_offers_dlpack_only():
    source = DLPackArray(bytearray(range(48)), (4, 3), bits=32)
    assert bytes(_native.view(source, UINT8, (48,), (1,), CPU, False)) == bytes(range(48))
    gc.collect()
    assert source.deleted == 1


def test_the_memory_is_held_as_long_as_what_was_made_of_it():
    memory = bytearray(8)
    array = np.from_dlpack(_native.view(memory, UINT8, (8,), (1,), CPU, True))
    with pytest.raises(BufferError):
        memory.append(0)
    del array
    gc.collect()
    memory.append(0)


def test_what_is_read_only_stays_so():
    with pytest.raises(weft.ReadOnlyError):
        _native.view(b"12345678", UINT8, (8,), (1,), CPU, True)
    assert memoryview(_native.view(b"12345678", UINT8, (8,), (1,), CPU, False)).readonly


@pytest.mark.parametrize(
    ("dtype", "shape", "strides"),
    [
        (UINT8, (9,), (1,)),
        (INT32, (3,), (1,)),
        (UINT8, (2,), (8,)),
        (UINT8, (2, 2), (1,)),
        (UINT8, (2,), (-1,)),
        (UINT8, (2**62, 2**62), (2**62, 1)),
        ((1, 4, 1), (2,), (1,)),
        (INT32, (), ()),
    ],
)
def test_a_layout_that_leads_outside_is_refused(dtype, shape, strides):
    memory = bytearray(8 if shape else 3)
    with pytest.raises(weft.InvalidParamError, match="exceed the memory"):
        _native.view(memory, dtype, shape, strides, CPU, True)


def test_an_empty_array_lies_anywhere():
    assert np.from_dlpack(_native.view(bytearray(), INT32, (0, 3), (3, 1), CPU, True)).shape == (0, 3)


@pytest.mark.parametrize("versioned", [True, False])
def test_a_layout_is_read_without_waiting_for_the_device(versioned):
    array = DLPackArray(bytearray(24), (2, 3), (1, 2), bits=32, device=(2, 7), versioned=versioned)
    assert _native.layout(array) == ((1, 32, 1), (2, 3), (1, 2), (2, 7))
    assert array.calls[-1]["stream"] == -1
    assert array.deleted == 1


class LikeJAX(DLPackArray):
    """Takes -1, which means that nobody waits, for a stream."""

    def __dlpack__(self, **arguments):
        if arguments.get("stream") == -1:
            raise RuntimeError("CUDA_ERROR_INVALID_HANDLE: invalid resource handle")
        return super().__dlpack__(**arguments)


def test_a_layout_of_a_producer_that_insists_on_a_stream():
    array = LikeJAX(bytearray(24), (2, 3), (1, 2), bits=32, device=(2, 7))
    assert _native.layout(array) == ((1, 32, 1), (2, 3), (1, 2), (2, 7))
    assert "stream" not in array.calls[-1]


def test_whose_device_an_address_is_of_is_the_drivers_to_say():
    with pytest.raises(weft.UnsupportedError, match=r"libcuda\.so\.1 is not loaded"):
        _native.cuda_device(4096)
