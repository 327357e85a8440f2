# SPDX-License-Identifier: BSD-3-Clause
"""The CUDA array interface: what is read of it, and that without CUDA in UCX nothing more happens.

The memory is the host's, so whatever passes every check must end at the last one: UCX has no transport for CUDA here.
"""

import pytest
from tests.native.dlpack import CudaArray

import weft


def refusal(call, *arguments):
    with pytest.raises(weft.UnsupportedError) as caught:
        call(*arguments)
    return str(caught.value)


def test_the_context_tells_what_it_reaches(context):
    assert context.memory_types == ["host"]


@pytest.mark.parametrize(
    ("entries", "nbytes"),
    [
        ({}, 48),
        ({"shape": (2, 3), "typestr": "<f8"}, 48),
        ({"shape": (2, 3), "typestr": "<f8", "strides": (24, 8)}, 48),
        ({"shape": (2, 3), "typestr": "<f8", "strides": (8, 16)}, 48),
        ({"shape": (1, 6), "typestr": "<f8", "strides": (999, 8)}, 48),
        ({"shape": (), "typestr": "<c16"}, 16),
        ({"shape": (3,), "typestr": "<M8[ns]"}, 24),
        ({"shape": [2], "typestr": "|V12"}, 24),
        ({"version": 2, "shape": (4,)}, 4),
        ({"stream": 7}, 48),
    ],
)
def test_without_cuda_in_ucx_it_is_refused_by_name(worker, endpoint, entries, nbytes):
    array = CudaArray(bytearray(48), **entries)
    text = refusal(endpoint.tag_send, array, 1)
    assert f"tag_send: the CudaArray is in CUDA ({nbytes} B) memory" in text
    assert "UCX can use only host memory here (" in text
    refusal(worker.tag_recv, array, 1)
    refusal(endpoint.am_send, 3, b"", array)
    refusal(endpoint.am_send, 3, b"", [b"host", array])
    refusal(endpoint.am_send, 3, array)


def test_nothing_was_sent(worker, endpoint):
    refusal(endpoint.tag_send, CudaArray(bytearray(8)), 1)
    received = worker.tag_recv(bytearray(8), 1)
    endpoint.tag_send(b"next", 1).wait(100)
    assert received.wait(100) == (4, 1)


def test_an_empty_array_is_an_empty_message(worker, endpoint):
    received = worker.tag_recv(CudaArray(bytearray(), shape=(0, 4), typestr="<f4"), 1)
    endpoint.tag_send(CudaArray(bytearray(), shape=(4, 0), strides=(8, 8)), 1).wait(100)
    assert received.wait(100) == (0, 1)


@pytest.mark.parametrize("strides", [(2,), (-1,), (0,), (1, 1)])
def test_a_strided_array_is_refused(endpoint, strides):
    with pytest.raises(weft.NotContiguousError, match="CudaArray is not contiguous"):
        endpoint.tag_send(CudaArray(bytearray(8), strides=strides), 1)


@pytest.mark.parametrize("entries", [{"shape": (-1,)}, {"shape": (2**33, 2**33)}, {"data": (0, False)}])
def test_an_impossible_shape_or_no_memory_is_refused(endpoint, entries):
    with pytest.raises(weft.InvalidParamError, match="the CudaArray has an impossible shape or no memory"):
        endpoint.tag_send(CudaArray(bytearray(8), **entries), 1)


def test_a_read_only_destination_is_refused(worker, endpoint):
    array = CudaArray(bytearray(8), readonly=True)
    with pytest.raises(weft.ReadOnlyError, match=r"CudaArray.*read-only"):
        worker.tag_recv(array, 1)
    refusal(endpoint.tag_send, array, 1)


@pytest.mark.parametrize("typestr", ["|O8", "<U4", "|t4", "<f", "f8", "", "<fx", "<f0"])
def test_items_of_no_known_size_are_refused(endpoint, typestr):
    assert "has items of type" in refusal(endpoint.tag_send, CudaArray(bytearray(8), typestr=typestr), 1)


def test_a_mask_is_refused(endpoint):
    assert "is masked" in refusal(endpoint.tag_send, CudaArray(bytearray(8), mask=CudaArray(bytearray(8))), 1)


@pytest.mark.parametrize("missing", ["shape", "typestr", "data"])
def test_an_interface_with_a_hole_is_an_error(endpoint, missing):
    array = CudaArray(bytearray(8))
    del array.__cuda_array_interface__[missing]
    with pytest.raises((TypeError, weft.UnsupportedError)):
        endpoint.tag_send(array, 1)


def test_what_offers_no_memory_is_told_what_would(endpoint):
    with pytest.raises(TypeError, match=r"tag_send: object is no buffer.*__dlpack__.*__cuda_array_interface__"):
        endpoint.tag_send(object(), 1)
