# SPDX-License-Identifier: BSD-3-Clause
"""A worker's address as programs hand it on: UCX's own bytes, and after them where the worker's door is.

UCX does not look past its own part, so a program that uses UCX itself can take the whole. The door is an abstract
Unix socket that lasts as long as the worker: who reaches it from the same host sees by end-of-file when it is gone.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
import struct
from typing import Any

_TRAILER = struct.Struct("<Q16s8s")  # the worker's id, its network namespace, the mark
_MARK = b"weft.ucp"


@functools.cache
def _namespace() -> bytes:
    """Return an id of this boot and network namespace: in there, an abstract Unix socket's name is one socket."""
    with open("/proc/sys/kernel/random/boot_id") as f:
        boot = f.read()
    return hashlib.blake2b(f"{boot}{os.stat('/proc/self/ns/net').st_ino}".encode(), digest_size=16).digest()


def door_name(worker_id: int) -> bytes:
    """Name the abstract Unix socket of the worker with this id."""
    return f"\0weft-ucp-{worker_id:016x}".encode()


class UCXAddress(bytes):
    """The address of a worker: bytes, to be handed on as they are."""

    @classmethod
    def from_buffer(cls, buffer: Any) -> UCXAddress:
        """Take what another process sent."""
        return cls(memoryview(buffer).cast("B"))

    create_from_buffer = from_buffer  # the name in UCXX's core

    @classmethod
    def create_from_worker(cls, worker: Any) -> UCXAddress:
        """Return the address of a worker of UCXX's core."""
        return cls(worker.address)

    @classmethod
    def of(cls, native: bytes, worker_id: int) -> UCXAddress:
        """Write the address of this process's worker."""
        return cls(native + _TRAILER.pack(worker_id, _namespace(), _MARK))

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return type(self).from_buffer, (pickle.PickleBuffer(self) if protocol >= 5 else bytes(self),)

    def tobytes(self) -> bytes:
        """Copy it into plain bytes."""
        return bytes(self)

    @property
    def length(self) -> int:
        """The number of bytes."""
        return len(self)

    def parts(self) -> tuple[bytes, int | None, bool]:
        """Return UCX's bytes, the worker's id (None: not weft's), and whether its door can be reached from here."""
        if self[-len(_MARK) :] != _MARK:
            return bytes(self), None, False
        worker_id, namespace, _ = _TRAILER.unpack(self[-_TRAILER.size :])
        return self[: -_TRAILER.size], worker_id, namespace == _namespace()
