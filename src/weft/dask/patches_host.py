# SPDX-License-Identifier: BSD-3-Clause
"""The part of distributed that weft replaces for workers on one host: the limit of requests served at once.

See also ``patches``.
"""

from __future__ import annotations

import weakref
from typing import Any

from weft.dask import patches

#: While a worker sends fewer bytes than this, it refuses no request from its host.
FREELY_NBYTES = 64 << 20
#: And while it serves fewer requests than this.
FREELY_COUNT = 1024


class _Limit(int):
    """Dask's limit of requests served at once; none for the worker's own host while few bytes are in flight.

    Dask multiplies the limit by 2 for a peer on the worker's host; False means no limit (worker.py:1642).
    """

    worker: weakref.ref[Any]

    def __mul__(self, factor: int) -> Any:
        worker = self.worker()
        if worker is None or worker.transfer_outgoing_count >= FREELY_COUNT:
            return int(self) * factor
        return False if worker.transfer_outgoing_bytes < FREELY_NBYTES else int(self) * factor


def serve_host_freely(worker: Any) -> None:
    """Let a worker serve any number of requests from its host at once, unless the user has set a limit.

    The limit protects the network. A refused worker asks again after 150 ms: when 32 workers fetched from each
    other, one request in seven was refused over ucx, one in five over tcp.
    """
    from distributed.config import defaults

    limit: Any = getattr(worker, "transfer_outgoing_count_limit", None)
    counts = (getattr(worker, name, None) for name in ("transfer_outgoing_bytes", "transfer_outgoing_count"))
    known = isinstance(limit, int) and all(isinstance(count, int) for count in counts)
    if not patches.as_known(known, "Worker.transfer_outgoing_count_limit", "a host's workers are refused above 20"):
        return
    if limit == defaults["distributed"]["worker"]["connections"]["incoming"]:
        most = _Limit(limit)
        most.worker = weakref.ref(worker)
        worker.transfer_outgoing_count_limit = most
