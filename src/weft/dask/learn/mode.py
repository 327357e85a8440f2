# SPDX-License-Identifier: BSD-3-Clause
"""Switching on a running cluster whether links are learned, and whether anything is decided by them."""

from __future__ import annotations

from typing import Any

import dask.config

from weft.dask import config
from weft.dask.observe.traffic import EXTENSION
from weft.errors import InvalidParamError, UnsupportedError


def _on_worker(mode: config.LinksMode, dask_worker: Any) -> None:
    from weft.dask.learn import fetch  # distributed may load this package while it is itself half imported

    dask.config.set({"weft.links": mode})
    fetch.switch(dask_worker, mode)


def _on_scheduler(mode: config.LinksMode, dask_scheduler: Any) -> bool:
    extension = dask_scheduler.extensions.get(EXTENSION)
    if extension is None:
        return False
    dask.config.set({"weft.links": mode})
    extension.links.set_mode(mode)
    return True


async def _switch(client: Any, mode: config.LinksMode) -> None:
    if not await client.run_on_scheduler(_on_scheduler, mode):
        raise UnsupportedError("set_links: the cluster's scheduler does not listen on ucx://")
    await client.run(_on_worker, mode)


def set_links(client: Any, mode: config.LinksMode) -> Any:
    """Change ``weft.links`` on a running cluster: its scheduler, and the workers that it has now.

    Parameters
    ----------
    client : distributed.Client
        Of the cluster.
    mode : str
        ``learn``, ``observe`` or ``off``. What was learned stays. Connections that are open go on measuring, or not,
        as they began.

    Raises
    ------
    InvalidParamError
        `mode` is none of these.
    UnsupportedError
        The scheduler does not listen on ``ucx://``.
    """
    if mode not in config.LINKS:
        raise InvalidParamError(f"set_links: {mode!r} is none of {', '.join(config.LINKS)}")
    return client.sync(_switch, client, mode)
