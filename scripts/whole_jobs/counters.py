# SPDX-License-Identifier: BSD-3-Clause
"""What a process counts of itself: CPU seconds by thread, page faults, bytes moved, lent and spilled."""

from __future__ import annotations

import os
import re
import resource
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK")
#: Counted by weft for each lane.
_TRAFFIC = ("sent_messages", "sent_nbytes", "lent_messages", "lent_nbytes", "received_nbytes", "borrowed_nbytes")
#: Of Dask's own totals: the context, and what is counted with its unit.
_DASK = re.compile(r"(execute/thread-(non)?cpu|gather-dep/network)/seconds|.*/disk-(read|write)/(bytes|seconds)")


def read(dask_worker: Any = None) -> dict[str, float]:
    """Read the counters of this process, all of which only grow; runs in the worker.

    Returns
    -------
    dict
        ``user_s`` and ``system_s``: CPU time. The same for each kind of thread, as ``MainThread/user_s``, in the
        kernel's ticks of 10 ms. ``minor_faults``. ``weft/...``: weft's traffic, if it is loaded.
        Of a worker, some of Dask's own totals: ``execute/thread-cpu/seconds`` and so on.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    found: Counter[str] = Counter()
    found["user_s"], found["system_s"] = used.ru_utime, used.ru_stime
    found["minor_faults"] = used.ru_minflt
    _add_threads(found)
    _add_traffic(found)
    for name, value in list(dask_worker.digests_total.items()) if dask_worker else ():
        if isinstance(name, tuple) and len(name) > 2:  # the context, then spans and keys' prefixes, then what and unit
            short = "/".join(map(str, (name[0], *name[-2:])))
            if _DASK.fullmatch(short):
                found[short] += value
    return dict(found)


def _add_threads(found: Counter[str]) -> None:
    for thread in threading.enumerate():
        try:
            fields = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError:  # it has ended
            continue
        kind = re.sub(r"^\d+-|[-_ ]*\d[-_\d]*$", "", thread.name)  # 0-Dask-Default-Threads-123-0
        found[f"{kind}/user_s"] += int(fields[11]) / _TICKS
        found[f"{kind}/system_s"] += int(fields[12]) / _TICKS


def _add_traffic(found: Counter[str]) -> None:
    if "weft.dask.observe.traffic" not in sys.modules:
        return
    from weft import _native
    from weft.dask.observe import traffic

    for lane in list(traffic.by_lanes.values()):
        for name in _TRAFFIC:
            found[f"weft/{name}"] += getattr(lane, name)
    for name, value in _native.pool_statistics().items():
        if name.endswith("total_nbytes"):
            found[f"weft/{name}"] += value


def grown(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return what the counters grew by, without those that did not."""
    growth = {name: value - before.get(name, 0) for name, value in after.items()}
    return {name: round(more, 3) for name, more in growth.items() if more >= 0.001}


def added(each: Mapping[Any, Mapping[str, float]]) -> dict[str, float]:
    """Add up the counters of several processes."""
    total: Counter[str] = Counter()
    for counters in each.values():
        total.update(counters)
    return dict(total)
