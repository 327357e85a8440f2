# SPDX-License-Identifier: BSD-3-Clause
"""What weft replaces in distributed for workers on one host: how many requests for values one serves at once.

All else is in ``patches``.
"""

from __future__ import annotations

import weakref
from typing import Any

from weft.dask import patches

#: Of values on their way from a worker: while they are smaller than this, no worker of its host is refused.
FREELY_NBYTES = 64 << 20


class _Limit(int):
    """Dask's limit of requests served at once, and none for the worker's own host while little is on its way.

    Dask doubles the limit for a peer on the worker's host, and has none where it is False (worker.py:1642).
    """

    worker: weakref.ref[Any]

    def __mul__(self, factor: int) -> Any:
        worker = self.worker()
        little = worker is not None and worker.transfer_outgoing_bytes < FREELY_NBYTES
        return False if little else int(self) * factor


def serve_host_freely(worker: Any) -> None:
    """Have a worker refuse no worker of its host for their number alone, unless the user has chosen a limit.

    The limit is there for the network. Who is refused asks again after 150 ms: of 32 workers that fetch from each
    other, one request in seven was refused over ucx, one in five over tcp.
    """
    from distributed.config import defaults

    limit: Any = getattr(worker, "transfer_outgoing_count_limit", None)
    known = isinstance(limit, int) and isinstance(getattr(worker, "transfer_outgoing_bytes", None), int)
    if not patches.as_known(known, "Worker.transfer_outgoing_count_limit", "a host's workers are refused above 20"):
        return
    if limit == defaults["distributed"]["worker"]["connections"]["incoming"]:
        most = _Limit(limit)
        most.worker = weakref.ref(worker)
        worker.transfer_outgoing_count_limit = most
