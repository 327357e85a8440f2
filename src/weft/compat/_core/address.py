# SPDX-License-Identifier: BSD-3-Clause
"""A worker's address as programs pass it around: UCX's own bytes, followed by the location of the worker's door.

UCX ignores what follows its own part, so a program that uses UCX directly can pass the whole address. The door is an
abstract Unix socket that exists as long as the worker: a peer on the same host sees end of file when it is gone.
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
    """Return an id of this boot and network namespace, within which abstract Unix socket names are unique."""
    with open("/proc/sys/kernel/random/boot_id") as f:
        boot = f.read()
    return hashlib.blake2b(f"{boot}{os.stat('/proc/self/ns/net').st_ino}".encode(), digest_size=16).digest()


def door_name(worker_id: int) -> bytes:
    """Return the name of the abstract Unix socket of the worker with this id."""
    return f"\0weft-ucp-{worker_id:016x}".encode()


class UCXAddress(bytes):
    """The address of a worker: opaque bytes."""

    @classmethod
    def from_buffer(cls, buffer: Any) -> UCXAddress:
        """Make an address from received bytes."""
        return cls(memoryview(buffer).cast("B"))

    create_from_buffer = from_buffer  # the name in UCXX's core

    @classmethod
    def create_from_worker(cls, worker: Any) -> UCXAddress:
        """Return the address of a worker of UCXX's core."""
        return cls(worker.address)

    @classmethod
    def of(cls, native: bytes, worker_id: int) -> UCXAddress:
        """Make the address of this process's worker."""
        return cls(native + _TRAILER.pack(worker_id, _namespace(), _MARK))

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return type(self).from_buffer, (pickle.PickleBuffer(self) if protocol >= 5 else bytes(self),)

    def tobytes(self) -> bytes:
        """Return a copy as plain bytes."""
        return bytes(self)

    @property
    def length(self) -> int:
        """The number of bytes."""
        return len(self)

    def parts(self) -> tuple[bytes, int | None, bool]:
        """Return UCX's bytes, the worker's id (None: not weft's), and whether its door is reachable from here."""
        if self[-len(_MARK) :] != _MARK:
            return bytes(self), None, False
        worker_id, namespace, _ = _TRAILER.unpack(self[-_TRAILER.size :])
        return self[: -_TRAILER.size], worker_id, namespace == _namespace()
