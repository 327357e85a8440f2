# SPDX-License-Identifier: BSD-3-Clause
"""Arrays on CUDA devices: who can receive them, how they are taken apart, and where they are received.

Both sides of a comm say in Dask's handshake whether they can hold device memory. Only if both can, the serializer
family ``cuda`` is used, whose frames are arrays on a device. Other peers, and those that forward messages without
reading them, such as a scheduler, get host memory from ``dask`` and ``pickle``.

distributed's own handlers of CuPy, Numba, RMM and cuDF stay in use. This module handles every other array that exports
DLPack, if its library also imports it; the modules next to it have what some libraries need in addition. Only RMM,
CuPy, Numba and PyTorch allocate memory.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from weft import _native
from weft._frames import CUDA, device_of
from weft.dask import config
from weft.errors import NoMemoryError, UnsupportedError

Header = dict[str, Any]

#: The key in Dask's handshake that says that a process can hold device memory.
CAPABILITY = "weft-device"
_FAMILIES = ("cuda", "dask", "pickle")


def _cupy(nbytes: int, device: int) -> Any:
    import cupy

    with cupy.cuda.Device(device if device < cupy.cuda.runtime.getDeviceCount() else 0):
        return cupy.empty(nbytes, dtype="u1")


def _numba(nbytes: int, device: int) -> Any:
    import numba.cuda

    with numba.cuda.gpus[device if device < len(numba.cuda.gpus) else 0]:
        return numba.cuda.device_array(nbytes, dtype="u1")


def _torch(nbytes: int, device: int) -> Any:
    import torch

    index = device if device < torch.cuda.device_count() else 0
    return torch.empty(nbytes, dtype=torch.uint8, device=f"cuda:{index}")


_ALLOCATORS: dict[str, Callable[[int, int], Any]] = {"cupy": _cupy, "torch": _torch, "numba": _numba}


def _installed() -> list[str]:
    """Return the libraries that can allocate; those that the program has imported already come first."""
    names = sorted(_ALLOCATORS, key=lambda name: name not in sys.modules)
    return [name for name in names if name in sys.modules or importlib.util.find_spec(name) is not None]


def can_hold(memory_types: Sequence[str], *, deserialize: bool) -> bool:
    """Tell whether this process can receive device memory over a connection that supports these memory types.

    Without `deserialize`, a process only forwards what it receives, perhaps to a peer without a device.
    """
    return bool(deserialize and "cuda" in memory_types and config.device() and _installed())


def families(asked: Iterable[str] | None, *, to_device: bool) -> Iterable[str] | None:
    """Return the serializers for a message; `asked` are those that the caller of ``write`` wants, if any."""
    if asked is None:
        return _FAMILIES if to_device else None
    return asked if to_device else [name for name in asked if name != "cuda"]


def refused(peer: str) -> UnsupportedError:
    """Return the error for a message with device memory to a peer that cannot hold any."""
    return UnsupportedError(
        f"write to {peer}: the message was serialized elsewhere and has device memory, which this peer cannot hold"
    )


def allocate(nbytes: int, device: int, library: str) -> Any:
    """Allocate on a device: by RMM if ``weft.rmm`` is set, by the object's own library, or by any other.

    A device that this process does not have is replaced by its first one. RMM allocates on the current device only, so
    it is used for the first device, and for its own buffers.

    Raises
    ------
    NoMemoryError
        No library that can allocate is installed.
    """
    if library == "rmm" or (device == 0 and config.rmm()):
        import rmm

        return rmm.DeviceBuffer(size=nbytes)
    names = _installed()
    if not names:
        raise NoMemoryError(f"recv of {nbytes} B for CUDA device {device}: needs CuPy, PyTorch or Numba")
    return _ALLOCATORS[library if library in names else names[0]](nbytes, device)


# ---- any array that exports DLPack --------------------------------------------------------------------------

#: Where ``from_dlpack`` is, if it is not at the top level of the array's package.
_IMPORTERS = {"jaxlib": "jax.dlpack", "tensorflow": "tensorflow.experimental.dlpack"}


class _Sized:
    """An array that exports DLPack without telling its size in bytes, like TensorFlow's."""

    def __init__(self, array: Any, nbytes: int) -> None:
        self.array, self.nbytes = array, nbytes

    def __dlpack__(self, **arguments: Any) -> Any:
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()  # type: ignore[no-any-return]


def importer(library: str) -> Any:
    """Return the function that makes an array of `library` from a DLPack exporter; None if there is none."""
    module = importlib.import_module(_IMPORTERS.get(library, library))
    function = getattr(module, "from_dlpack", None)
    if library == "tensorflow":  # needs a capsule
        return lambda exporter: function(exporter.__dlpack__())  # type: ignore[misc]
    return function


def serialize(array: Any) -> tuple[Header, list[Any]]:
    """Take a device array apart: its memory is the frame.

    Raises
    ------
    NotImplementedError
        `array` is not on a device, or its library cannot import memory; Dask then tries the next serializer.
    """
    library = type(array).__module__.partition(".")[0]
    if not hasattr(array.__class__, "__dlpack_device__") or device_of(array) is None or importer(library) is None:
        raise NotImplementedError(type(array).__name__)
    dtype, shape, strides, _ = _native.layout(array)
    if not is_contiguous(shape, strides):
        if not hasattr(array, "copy"):
            raise NotImplementedError(type(array).__name__)
        array = array.copy()
        dtype, shape, strides, _ = _native.layout(array)
    header = {"library": library, "dtype": dtype, "shape": shape, "strides": strides}
    if hasattr(array, "nbytes"):
        return header, [array]
    return header, [_Sized(array, math.prod(shape) * dtype[1] * dtype[2] // 8)]


def deserialize(header: Header, frames: list[Any]) -> Any:
    """Make an array of its library from the received memory, without a copy."""
    (frame,) = frames
    array = exported(frame, header["dtype"], header["shape"], header["strides"])
    return importer(header["library"])(array)


def exported(frame: Any, dtype: Sequence[int], shape: Sequence[int], strides: Sequence[int]) -> Any:
    """Return a DLPack exporter for received memory, on a device or not."""
    device = (1, 0)
    if (index := device_of(frame)) is not None:
        device = frame.__dlpack_device__() if hasattr(frame, "__dlpack_device__") else (CUDA, index)
    return _native.view(frame, (dtype[0], dtype[1], dtype[2]), shape, strides, (int(device[0]), int(device[1])), True)


def is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Tell whether items lie in C or Fortran order without gaps; `strides` are in items."""
    sides = list(zip(shape, strides, strict=True))
    return _is_dense(sides) or _is_dense(sides[::-1]) or 0 in shape


def _is_dense(sides: list[tuple[int, int]]) -> bool:
    expected = 1
    for extent, stride in reversed(sides):
        if extent > 1 and stride != expected:
            return False
        expected *= extent
    return True
