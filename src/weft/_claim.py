# SPDX-License-Identifier: BSD-3-Clause
"""How ``ucx://`` comes to mean weft in every Dask process, without a line in the user's program.

distributed finds a comm by its entry point, but not this one: where distributed-ucxx is missing, distributed puts a
placeholder that only raises in the scheme's place (``distributed/comm/__init__.py``), and entry points are then
never asked; where it is installed, both claim the scheme, and whichever the file system lists first wins.

dask calls the ``dask.sizeof`` entry points in every process before distributed loads its comms. That is the moment
to keep the placeholder out, or, with distributed-ucxx installed, to have weft's comm loaded by the preloads that run
before a scheduler, nanny, worker or client listens or connects. ``DASK_WEFT__CLAIM_UCX=false``, or ``weft.claim-ucx``
in Dask's configuration, leaves ``ucx://`` to distributed-ucxx.

Nothing of Dask is imported at the top: weft works without it.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import types

PRELOAD = "weft.dask"
_ROLES = ("scheduler", "nanny", "worker", "client")

log = logging.getLogger("weft")


def claim(_sizeof: object = None) -> None:
    """Make ``ucx`` weft's. The argument is what dask passes to its ``sizeof`` entry points."""
    import dask.config

    if importlib.util.find_spec("distributed") is None:
        return
    if importlib.util.find_spec("distributed_ucxx") is None:
        sys.modules.setdefault("distributed.comm.ucx", types.ModuleType("distributed.comm.ucx"))
        return
    if not dask.config.get("weft.claim-ucx", True):
        return
    log.info("ucx:// is weft's; distributed-ucxx is installed too and gets it with DASK_WEFT__CLAIM_UCX=false")
    for role in _ROLES:
        key = f"distributed.{role}.preload"
        preload = dask.config.get(key, None) or []
        if PRELOAD not in preload:
            dask.config.set({key: [*([preload] if isinstance(preload, str) else preload), PRELOAD]})
