# SPDX-License-Identifier: BSD-3-Clause
"""What one run is asked to do, as its process is told it in the environment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass

_VARIABLE = "WEFT_WHOLE_JOB"


@dataclass(frozen=True)
class Asked:
    """Benchmark functions, one after the other, on one fresh cluster.

    Attributes
    ----------
    protocol : str
        ``tcp``, ``ucx``, or ``inproc``: one process that has all the threads.
    workers, threads : int
        Worker processes, and threads of each.
    memory_nbytes : int
        Of all workers together: the functions size their data by it.
    check : bool
        Whether what the function throws away is checked too, which costs time.
    outcome : str
        The file that the run writes what it found to.
    tpch : str
        The folder with TPC-H's tables.
    scale : float
        Of TPC-H's tables.
    day : str
        One of ``days.DAYS``, or a plain one.
    kill_after : int
        Tasks, after which a worker is killed on such a day.
    timeout_s : float
        Until the cluster is up.
    """

    protocol: str
    workers: int
    threads: int = 1
    memory_nbytes: int = 0
    check: bool = False
    outcome: str = ""
    tpch: str = ""
    scale: float = 1.0
    day: str = ""
    kill_after: int = 0
    timeout_s: float = 60.0

    def told(self) -> Mapping[str, str]:
        """Return the environment variable that tells a process of this."""
        return {_VARIABLE: json.dumps(asdict(self))}


def heard() -> Asked:
    """Return what this process was asked for."""
    return Asked(**json.loads(os.environ[_VARIABLE]))
