# SPDX-License-Identifier: BSD-3-Clause
"""Switches the use of links on a running cluster: learn and decide, only learn, or off."""

from __future__ import annotations

from typing import Any

import dask.config

from weft.dask import config
from weft.dask.observe.traffic import EXTENSION
from weft.errors import InvalidParamError, UnsupportedError


def _on_worker(mode: config.LinksMode, dask_worker: Any) -> None:
    from weft.dask.learn import fetch  # lazy: distributed may load this package while half imported

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
    """Change the setting ``weft.links`` of a running cluster: of its scheduler and its current workers.

    Parameters
    ----------
    client : distributed.Client
        A client of the cluster.
    mode : str
        ``learn``: measure, and use it for decisions. ``observe``: only measure. ``off``: neither. Measurements stay.
        Existing connections go on measuring, or not, as before.

    Raises
    ------
    InvalidParamError
        `mode` is another string.
    UnsupportedError
        The scheduler does not listen on ``ucx://``.
    """
    if mode not in config.LINKS:
        raise InvalidParamError(f"set_links: {mode!r} is not one of {', '.join(config.LINKS)}")
    return client.sync(_switch, client, mode)
