# SPDX-License-Identifier: BSD-3-Clause
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from weft import _frames


def transport(first, large):
    """What a connection makes of a packed message."""
    first = memoryview(bytearray(first))
    return (first, *(memoryview(bytearray(b)) for b in large)) if large else first


def roundtrip(buffers):
    first, large, placed, *_ = _frames.pack(buffers, 0)
    assert placed == []
    out, elsewhere = _frames.unpack(transport(first, large))
    assert elsewhere == []
    return out


@given(st.lists(st.binary(max_size=200) | st.sampled_from([b"L" * 65536, b"M" * 65535, b""]), max_size=30))
def test_what_is_packed_comes_back(buffers):
    assert [bytes(b) for b in roundtrip(buffers)] == buffers


def test_ten_thousand_frames():
    buffers = [bytes([i % 256]) * (i % 50) for i in range(10_000)]
    first, large, *_ = _frames.pack(buffers, 0)
    assert large == []
    assert [bytes(b) for b in _frames.unpack(transport(first, large))[0]] == buffers


def test_more_large_frames_than_one_header_holds():
    buffers = [bytes(65536 + i) for i in range(600)] + [b"small"]
    first, large, *_ = _frames.pack(buffers, 0)
    assert len(large) <= _frames.MAX_LARGE
    assert [bytes(b) for b in _frames.unpack(transport(first, large))[0]] == buffers


def test_large_frames_of_one_size_beyond_the_header():
    buffers = [bytes([i % 256]) * 65536 for i in range(600)]
    first, large, *_ = _frames.pack(buffers, 0)
    assert [bytes(b) for b in large] == buffers[: _frames.MAX_LARGE]
    assert [bytes(b) for b in _frames.unpack(transport(first, large))[0]] == buffers


@pytest.mark.parametrize("most", [1, 2, 5])
@given(st.lists(st.sampled_from([0, 5, 65535, 65536, 65537, 70000]), max_size=12))
def test_the_largest_frames_are_segments(most, sizes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_frames, "MAX_LARGE", most)
        buffers = [bytes([1 + i]) * size for i, size in enumerate(sizes)]
        first, large, *_ = _frames.pack(buffers, 0)
        by_size = sorted((size for size in sizes if size >= _frames.LARGE_NBYTES), reverse=True)
        assert sorted((len(bytes(b)) for b in large), reverse=True) == by_size[:most]
        assert [bytes(b) for b in _frames.unpack(transport(first, large))[0]] == buffers


def test_small_frames_are_writable_and_aligned():
    buffers = [b"abc", np.arange(100.0), b"x", np.arange(10.0)]
    out = roundtrip(buffers)
    for index in (1, 3):
        array = np.frombuffer(out[index])
        assert array.flags.aligned
        assert array.flags.writeable
        assert (array == buffers[index]).all()


@pytest.mark.parametrize("side", [3, 300])
def test_arrays_in_either_order_go_as_they_lie_in_memory(side):
    array = np.arange(side * side, dtype="f8").reshape(side, side)
    for sent in (array, np.asfortranarray(array)):
        assert bytes(roundtrip([b"before", sent])[1]) == sent.tobytes("A")


@pytest.mark.parametrize("side", [3, 300])
def test_arrays_with_gaps_are_refused(side):
    with pytest.raises(weft.NotContiguousError):
        roundtrip([np.zeros((side, 2 * side))[:, ::2]])


def test_large_frames_are_not_copied():
    array = np.zeros(100_000)
    _, large, *_ = _frames.pack([array], 0)
    assert np.shares_memory(np.frombuffer(large[0]), array)


@pytest.mark.parametrize(
    "garbage",
    [b"", b"x", b"\xff" * 64, (5).to_bytes(8, "little") * 3, b"\1" + bytes(7) + b"\0\0\1" + bytes(5) + b"\xff" * 8],
)
def test_garbage_is_a_named_error(garbage):
    with pytest.raises(weft.HandshakeError, match="send_frames"):
        _frames.unpack(memoryview(bytearray(garbage)))
