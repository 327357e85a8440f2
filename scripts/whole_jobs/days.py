# SPDX-License-Identifier: BSD-3-Clause
"""Bad days: half the memory, a worker that is killed in mid-job, a small ``/dev/shm``; and what a run holds after it.

Jobs on a bad day are not timed. Their results must be those of a plain one, and what they took must be given back.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin

HALF, KILLED, SMALL = "half", "killed", "shm"
DAYS = {HALF: "half the memory", KILLED: "a worker is killed", SMALL: "64 MiB of /dev/shm"}
PLAIN = ""
_SMALL_SHM = "64m"
#: Until a cluster that has nothing to do holds nothing: far longer than Dask needs for a connection to a dead worker,
#: 30 s (``distributed.comm.timeouts.connect``), for which a shuffle's send keeps its shards.
_GIVEN_BACK_S = 120.0


def days(text: str) -> list[str]:
    """Read days with commas between them, for argparse."""
    names = text.split(",")
    if set(names) - set(DAYS):
        raise argparse.ArgumentTypeError(f"{text!r}: give some of {','.join(DAYS)}")
    return names


def around(day: str, command: Sequence[str]) -> list[str]:
    """Return the command that runs `command` on such a day: a small ``/dev/shm`` is a mount only it and its own see."""
    if day != SMALL:
        return list(command)
    script = f'mount -t tmpfs -o size={_SMALL_SHM} tmpfs /dev/shm && exec "$@"'
    own = ["--mount"] if os.geteuid() == 0 else ["--mount", "--map-root-user"]
    return ["unshare", *own, "sh", "-c", script, "sh", *command]


class Killer(SchedulerPlugin):
    """Counts the tasks that come to their end, and kills the first worker after so many.

    Parameters
    ----------
    cluster : LocalCluster
        With nannies, which bring the worker back.
    after : int
        Tasks; 0 kills nothing.
    """

    def __init__(self, cluster: Any, after: int) -> None:
        self._cluster, self._after = cluster, after
        self.ended = 0
        self.killed = False

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Count a task."""
        if finish != "memory":
            return
        self.ended += 1
        if self._after and self.ended >= self._after and not self.killed:
            self.killed = True
            nanny = next(iter(self._cluster.workers.values()))
            os.kill(nanny.process.pid, signal.SIGKILL)


def held(client: Any) -> dict[str, float]:
    """Say what workers that have nothing to do any more still hold of weft's pools, in use or borrowed.

    It waits for that to be given back: ``held_nbytes`` are left when its patience ends, after ``held_s`` seconds.
    """
    began = time.monotonic()
    while (found := sum(client.run(_held).values())) and time.monotonic() < began + _GIVEN_BACK_S:
        time.sleep(0.2)
    return {"held_nbytes": found, "held_s": time.monotonic() - began}


def _held() -> int:
    if "weft" not in sys.modules:
        return 0
    from weft import _native

    gc.collect()
    found = _native.pool_statistics()
    return found["live_nbytes"] + found["borrowed_nbytes"]
