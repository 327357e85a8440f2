# SPDX-License-Identifier: BSD-3-Clause
"""CuPy arrays of NumPy extension types (bfloat16), whose names distributed does not pass on."""

from __future__ import annotations

import importlib
from typing import Any

import cupy
from distributed.protocol.cuda import cuda_deserialize, cuda_serialize

from weft.dask import patches
from weft.dask.tensors.device import Header

_plain = patches.cupy_handlers()
assert _plain is not None, "imported only if they exist"
_serialize_plain, _deserialize_plain = _plain


@cuda_serialize.register(cupy.ndarray)  # type: ignore[untyped-decorator]
def _serialize(x: Any) -> tuple[Header, list[Any]]:
    header, frames = _serialize_plain(x)
    return {**header, "weft-dtype": x.dtype.name}, frames


@cuda_deserialize.register(cupy.ndarray)  # type: ignore[untyped-decorator]
def _deserialize(header: Header, frames: list[Any]) -> Any:
    array = _deserialize_plain(header, frames)
    name = header.get("weft-dtype", array.dtype.name)
    if name == array.dtype.name:
        return array
    importlib.import_module("ml_dtypes")  # registers the type names with NumPy
    return array.view(name)
