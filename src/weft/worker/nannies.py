# SPDX-License-Identifier: BSD-3-Clause
"""A nanny for each worker: started together, ended together, by a signal or by the scheduler."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Sequence
from typing import Any

import dask.config
from distributed import Nanny

from weft.errors import Error, InvalidParamError

logger = logging.getLogger("weft")

#: Seconds that workers have for their farewell after a signal, as dask worker gives them.
_CLOSE_S = 10.0


def run(options: Sequence[dict[str, Any]]) -> int:
    """Run a nanny for each entry of `options`, until a signal or until the scheduler has retired them all.

    Returns
    -------
    int
        0.

    Raises
    ------
    InvalidParamError
        No scheduler is named, neither in `options` nor in Dask's configuration.
    Error
        A worker could not be started; none is left.
    """
    named = options[0]["scheduler_ip"] or options[0]["scheduler_file"] or dask.config.get("scheduler-address", None)
    if not named:
        raise InvalidParamError("start workers: no scheduler; weft worker ucx://HOST:8786, or --scheduler-file FILE")
    asyncio.run(_run(options))
    return 0


async def _run(options: Sequence[dict[str, Any]]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    nannies = [Nanny(**each) for each in options]
    stopped = asyncio.create_task(stop.wait())
    ended = asyncio.create_task(_until_ended(nannies))
    try:
        await asyncio.wait([stopped, ended], return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            ended.result()
    except (OSError, RuntimeError, ValueError) as error:
        raise Error(f"start workers for {nannies[0].scheduler_addr}: {error}") from error
    finally:
        for task in (stopped, ended):
            task.cancel()
        closing = [nanny.close(timeout=_CLOSE_S, reason="weft worker ends") for nanny in nannies]
        for failure in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(failure, Exception):
                logger.warning("a nanny did not close: %s", failure)


async def _until_ended(nannies: Sequence[Nanny]) -> None:
    await asyncio.gather(*nannies)
    await asyncio.gather(*(nanny.finished() for nanny in nannies))
