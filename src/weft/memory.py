# SPDX-License-Identifier: BSD-3-Clause
"""Shared memory of this host: arrays that can be lent, and the files that killed processes left in ``/dev/shm``.

weft itself keeps no file there. UCX creates one for each queue and unlinks it at once: its peers reach it through
``/proc``. A process that is killed in between leaves the file, and its memory, until the machine restarts.

A read lease tells whether a file is in use: the kernel grants it only if no process has the file open for writing,
including mappings, in any container. A search through ``/proc`` would miss other containers that share
``/dev/shm``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from collections.abc import Generator
from typing import TYPE_CHECKING

from weft import _native

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["arrays_in_pool", "orphans", "remove_orphans"]

_FOLDER = "/dev/shm"  # noqa: S108
_PREFIX = "ucx_shm_posix_"


@contextlib.contextmanager
def arrays_in_pool() -> Generator[None]:
    """Make NumPy allocate arrays of 64 KiB and more in weft's pool, so that :meth:`weft.Peer.lend` copies nothing.

    A context manager. It applies to this thread, or to this asyncio task and the tasks that it starts, until the end of
    the block. Arrays made in the block stay in the pool. A forked child sees later changes to such arrays; its own
    changes stay private.

    Raises
    ------
    ModuleNotFoundError
        NumPy is not installed.
    UnsupportedError
        NumPy is older than 1.22.
    """
    before = _native.numpy_in_pool(True)
    try:
        yield
    finally:
        _native.numpy_in_pool(before)


def orphans() -> list[Path]:
    """List this user's files in ``/dev/shm`` that UCX made and no process has open or mapped.

    Processes that were killed leave them.
    """
    from pathlib import Path  # lazy: rarely needed, and half of weft's own import time

    found: list[Path] = []
    for path in Path(_FOLDER).glob(f"{_PREFIX}*"):
        try:
            if path.lstat().st_uid == os.geteuid() and not _in_use(path):
                found.append(path)
        except OSError:  # unlinked meanwhile, or a symbolic link, which UCX never makes
            continue
    return sorted(found)


def remove_orphans() -> list[Path]:
    """Remove the files that :func:`orphans` lists; return their paths."""
    found = orphans()
    for path in found:
        path.unlink(missing_ok=True)
    return found


def _in_use(path: Path) -> bool:
    """Ask the kernel. If it cannot tell, the file counts as in use."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        # A process that opens the file meanwhile breaks the lease. The kernel then sends SIGIO, which would kill this
        # process, unless another signal is set.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False
