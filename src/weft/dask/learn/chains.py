# SPDX-License-Identifier: BSD-3-Clause
"""Requests about chains (``fanout``) that every worker answers, and the part that this process's workers have in them.

Any worker may receive such a request, also one that does not learn. So this module is loaded in each; it is small.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from weft.dask import patches

if TYPE_CHECKING:
    from distributed.worker import Worker

    from weft.dask.learn.fanout import Fanout

#: For workers that learn, their part in chains.
of: weakref.WeakKeyDictionary[Worker, Fanout] = weakref.WeakKeyDictionary()


def serve(worker: Worker) -> None:
    """Register handlers on a worker that answer peers, also while it does not learn: the peers may."""
    here = weakref.ref(worker)

    def fanout() -> Fanout | None:
        worker = here()
        return None if worker is None else of.get(worker)

    async def join(**what: Any) -> dict[str, Any]:
        known = fanout()
        return {"status": "OK", "answers": []} if known is None else await known.offers.join(**what)

    async def hand_on(comm: Any, chain: str, begin: int, who: str = "") -> Any:
        known = fanout()
        return {"status": "gone"} if known is None else await known.offers.hand_on(comm, chain, begin, who)

    async def hand_slices(comm: Any, chain: str, flow: int = 0, who: str = "") -> Any:
        known = fanout()
        return {"status": "gone"} if known is None else await known.offers.hand_slices(comm, chain, flow, who)

    async def relay(**what: Any) -> dict[str, Any]:
        known = fanout()
        return {"status": "no"} if known is None else known.relay(**what)

    async def lend(comm: Any, chain: str, who: str = "") -> Any:
        known = fanout()
        return {"status": "gone"} if known is None else await known.offers.lend(comm, chain, who)

    async def took(chain: str, who: str, whole: bool) -> None:
        known = fanout()
        if known is not None:
            known.offers.took(chain, who, whole=whole)

    async def there() -> None:
        """Answer, to show that this worker's event loop runs."""

    handlers: dict[str, Callable[..., Any]] = {
        "join": join,
        "pieces": hand_on,
        "slices": hand_slices,
        "relay": relay,
        "borrow": lend,
        "took": took,
        "there": there,
    }
    patches.serve(worker, {f"weft_{name}": handler for name, handler in handlers.items()})
