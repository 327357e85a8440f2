# SPDX-License-Identifier: BSD-3-Clause
"""``Array``: ucx-py's description of a host or GPU buffer, without an array library."""

from __future__ import annotations

import ctypes
import math
import re
from typing import Any

__all__ = ["Array", "asarray"]

_FULL_RO = 0x11C  # PyBUF_FULL_RO: any layout


class Array:
    """A view of a host or device array's shape.

    Parameters
    ----------
    obj : buffer, or object with ``__cuda_array_interface__``
        Available as :attr:`obj`.
    """

    __slots__ = ("cuda", "data", "itemsize", "obj", "readonly", "shape", "strides")

    def __init__(self, obj: Any) -> None:
        interface = getattr(obj, "__cuda_array_interface__", None)
        self.cuda = interface is not None
        if interface is None:
            view = memoryview(obj)
            self.data: Any = view
            if view.suboffsets:
                raise NotImplementedError("Array: a buffer with suboffsets is not contiguous memory")
            self.obj: Any = view.obj
            self.readonly = view.readonly
            self.itemsize = view.itemsize
            self.shape = view.shape or ()
            self.strides = view.strides or ()
            return
        if interface.get("mask") is not None:
            raise NotImplementedError("Array: masked device arrays")
        self.obj = self.data = obj  # what to send; for host memory, the object behind the view
        self.readonly = bool(interface["data"][1])
        size = re.search(r"\d+$", interface["typestr"] or "")
        if size is None:
            raise ValueError(f"Array: {interface['typestr']!r} is not a type string")
        self.itemsize = int(size[0])
        self.shape = tuple(interface["shape"])
        self.strides = tuple(interface.get("strides") or self._packed(self.shape))

    def _packed(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self.itemsize * math.prod(shape[i + 1 :]) for i in range(len(shape)))

    @property
    def ptr(self) -> int:
        """The address of the first item."""
        if self.cuda:
            return int(self.obj.__cuda_array_interface__["data"][0])
        buffer = (ctypes.c_void_p * 32)()  # a Py_buffer begins with the address
        ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(self.data), buffer, _FULL_RO)
        address = buffer[0]
        ctypes.pythonapi.PyBuffer_Release(buffer)
        return address or 0

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """The size of all items, in bytes."""
        return self.itemsize * math.prod(self.shape)

    @property
    def c_contiguous(self) -> bool:
        """Whether the items are contiguous in C order."""
        return self.strides == self._packed(self.shape)

    @property
    def f_contiguous(self) -> bool:
        """Whether the items are contiguous in Fortran order."""
        return self.strides[::-1] == self._packed(self.shape[::-1])

    @property
    def contiguous(self) -> bool:
        """Whether the items are contiguous in C or Fortran order."""
        return self.c_contiguous or self.f_contiguous


def asarray(obj: Any) -> Array:
    """Return `obj` as an Array."""
    return obj if isinstance(obj, Array) else Array(obj)
