# SPDX-License-Identifier: BSD-3-Clause
"""Arrays that offer their memory through DLPack or the CUDA array interface only, made by hand: they count."""

from __future__ import annotations

import ctypes
from typing import Any


class Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", Deleter)]


class ManagedVersioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
capsule_name = ctypes.pythonapi.PyCapsule_GetName
capsule_name.restype = ctypes.c_char_p
capsule_name.argtypes = [ctypes.py_object]

READ_ONLY = 1


class DLPackArray:
    """`memory`, seen as `shape` items of `bits`. `calls`: the arguments of each export; `deleted`: how often."""

    def __init__(
        self,
        memory: bytearray,
        shape: tuple[int, ...] | None = None,
        strides: tuple[int, ...] | None = None,
        *,
        bits: int = 8,
        lanes: int = 1,
        offset: int = 0,
        flags: int = 0,
        device: tuple[int, int] = (1, 0),
        versioned: bool = True,
    ) -> None:
        self.memory = memory
        self.shape = (len(memory),) if shape is None else shape
        self.strides = strides
        self.item = (bits, lanes)
        self.offset = offset
        self.flags = flags
        self.device = device
        self.versioned = versioned
        self.calls: list[dict[str, Any]] = []
        self.deleted = 0
        self.capsule: object = None
        self.address: int | None = None  # instead of memory's own

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **arguments: Any) -> object:
        self.calls.append(arguments)
        if "max_version" in arguments and not self.versioned:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        self._pin = (ctypes.c_char * len(self.memory)).from_buffer(self.memory)
        shape = (ctypes.c_int64 * len(self.shape))(*self.shape)
        strides = None if self.strides is None else (ctypes.c_int64 * len(self.strides))(*self.strides)
        address = ctypes.addressof(self._pin) if self.address is None else self.address
        tensor = Tensor(address, *self.device, len(self.shape), 1, *self.item, shape, strides, self.offset)
        deleter = Deleter(self._delete)
        if self.versioned:
            managed: ctypes.Structure = ManagedVersioned(1, 0, None, deleter, self.flags, tensor)
        else:
            managed = Managed(tensor, None, deleter)
        self._managed = managed
        # A real producer's capsule has a destructor for the case that nobody takes the tensor; this one has none, so
        # that only the consumer can be who deletes.
        name = b"dltensor_versioned" if self.versioned else b"dltensor"
        self.capsule = new_capsule(ctypes.addressof(managed), name, None)
        return self.capsule

    def _delete(self, _: int) -> None:
        self.deleted += 1
        del self._pin

    @property
    def taken(self) -> bool:
        """The consumer has marked the capsule as used."""
        return capsule_name(self.capsule).startswith(b"used_dltensor")


class CudaArray:
    """An object with the CUDA array interface, over host memory: good for everything up to the use of it."""

    def __init__(self, memory: bytearray, *, readonly: bool = False, **entries: Any) -> None:
        self.memory = memory
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory)) if memory else 0
        interface = {
            "version": 3,
            "shape": (len(memory),),
            "typestr": "|u1",
            "data": (address, readonly),
            "strides": None,
            "stream": None,
            **entries,
        }
        self.__cuda_array_interface__ = interface
