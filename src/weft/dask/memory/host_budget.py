# SPDX-License-Identifier: BSD-3-Clause
"""One budget for the idle memory of all workers that one process has started.

Each worker keeps freed memory warm for a moment, up to what it had in use at once. The peaks of workers come at
different times, so what one keeps would add to the peak of another. With a budget, all of them together keep little
more than they had in use at once (``host_budget.hpp``).

The process with the nannies makes a small file in memory, and its workers open it through ``/proc``. Where that is
not possible, each worker keeps by its own peak alone.
"""

from __future__ import annotations

import contextlib
import functools
import os
from typing import TYPE_CHECKING

from weft import _native
from weft.dask import patches

if TYPE_CHECKING:
    from distributed.nanny import Nanny

_VARIABLE = "WEFT_HOST_BUDGET"
_NAME = "weft-host-budget"


def offer(nanny: Nanny) -> None:
    """Let the workers that a nanny will start share the budget of this process's nannies."""
    path = _file_of_this_process()
    if path is not None:
        patches.set_in_environment_of_worker(nanny, _VARIABLE, path)


def join() -> bool:
    """Share the budget that this worker's nanny has offered; return False if there is none."""
    with contextlib.suppress(OSError):
        if path := os.environ.get(_VARIABLE):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                # The variable may outlive the nanny, whose id another process then gets, with files of its own.
                return os.readlink(f"/proc/self/fd/{fd}").startswith(f"/memfd:{_NAME} ") and _native.pool_join(fd)
            finally:
                os.close(fd)
    return False


@functools.cache
def _file_of_this_process() -> str | None:
    """Return the path by which other processes of this user can open the file; it lives as long as this process."""
    try:
        fd = os.memfd_create(_NAME, os.MFD_CLOEXEC)
    except (AttributeError, OSError):
        return None
    return f"/proc/{os.getpid()}/fd/{fd}"
