# SPDX-License-Identifier: BSD-3-Clause
"""``Array``: how ucx-py describes a buffer, of the host or of a GPU, without an array library."""

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
        Kept as :attr:`obj`.
    """

    __slots__ = ("cuda", "data", "itemsize", "obj", "readonly", "shape", "strides")

    def __init__(self, obj: Any) -> None:
        interface = getattr(obj, "__cuda_array_interface__", None)
        self.cuda = interface is not None
        if interface is None:
            view = memoryview(obj)
            self.data: Any = view
            if view.suboffsets:
                raise NotImplementedError("Array: a buffer with suboffsets lies in several pieces")
            self.obj: Any = view.obj
            self.readonly = view.readonly
            self.itemsize = view.itemsize
            self.shape = view.shape or ()
            self.strides = view.strides or ()
            return
        if interface.get("mask") is not None:
            raise NotImplementedError("Array: masked device arrays")
        self.obj = self.data = obj  # what to send: of the host, obj is what the view looks into
        self.readonly = bool(interface["data"][1])
        size = re.search(r"\d+$", interface["typestr"] or "")
        if size is None:
            raise ValueError(f"Array: {interface['typestr']!r} is no type string")
        self.itemsize = int(size[0])
        self.shape = tuple(interface["shape"])
        self.strides = tuple(interface.get("strides") or self._packed(self.shape))

    def _packed(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self.itemsize * math.prod(shape[i + 1 :]) for i in range(len(shape)))

    @property
    def ptr(self) -> int:
        """Where the first item lies."""
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
        """The last index runs through memory first, without gaps."""
        return self.strides == self._packed(self.shape)

    @property
    def f_contiguous(self) -> bool:
        """The first index runs through memory first, without gaps."""
        return self.strides[::-1] == self._packed(self.shape[::-1])

    @property
    def contiguous(self) -> bool:
        """Either."""
        return self.c_contiguous or self.f_contiguous


def asarray(obj: Any) -> Array:
    """Return `obj` as an Array."""
    return obj if isinstance(obj, Array) else Array(obj)
