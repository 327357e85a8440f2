# SPDX-License-Identifier: BSD-3-Clause
"""A nanny for each worker: all start together, and a signal or the scheduler stops them together."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import dask.config
import dask.utils
from distributed import Nanny

from weft.errors import Error, InvalidParamError, TimedOutError
from weft.worker import scheduler_file

logger = logging.getLogger("weft")
_config: Any = dask.config  # these have only some of their types
_utils: Any = dask.utils

#: Seconds that workers have to leave the cluster after a signal, as with dask worker.
_CLOSE_S = 10.0
#: Seconds between looks for the scheduler's file.
_LOOK_S = 0.1


def run(options: Sequence[dict[str, Any]]) -> int:
    """Run a nanny for each entry of `options`, until a signal or until the scheduler has retired them all.

    Returns
    -------
    int
        0.

    Raises
    ------
    InvalidParamError
        No scheduler is named, neither in `options` nor in Dask's configuration; a file for TLS is missing; the death
        timeout cannot be read.
    TimedOutError
        The scheduler's file was not written within the death timeout.
    Error
        A worker could not be started; none is left.
    """
    named = options[0]["scheduler_ip"] or options[0]["scheduler_file"] or _config.get("scheduler-address", None)
    if not named:
        raise InvalidParamError("no scheduler: give its address, ucx://HOST:8786, or --scheduler-file FILE")
    _refuse_half_tls(options[0].get("security", {}))
    try:
        patience_s: float | None = _utils.parse_timedelta(options[0]["death_timeout"])
    except (ValueError, KeyError, OverflowError) as error:
        raise InvalidParamError(f"--timeout {options[0]['death_timeout']!r}: {error}; write 60, or 5m") from error
    asyncio.run(_run(options, patience_s))
    return 0


def _refuse_half_tls(security: Mapping[str, str]) -> None:
    """Raise where some files for TLS are given, and Dask's configuration does not name the others."""
    needed = {"tls_ca_file": ("--tls-ca-file", "ca-file"), "tls_worker_cert": ("--tls-cert", "worker.cert")}
    for name, (option, key) in needed.items():
        if security and name not in security and _config.get(f"distributed.comm.tls.{key}", None) is None:
            raise InvalidParamError(f"TLS also needs {option}, or distributed.comm.tls.{key} in Dask's configuration")


async def _run(options: Sequence[dict[str, Any]], patience_s: float | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    stopped = asyncio.create_task(stop.wait())
    if file := options[0]["scheduler_file"]:
        # A nanny would wait for it in its constructor, where signals are not handled.
        address = asyncio.create_task(_address(file, patience_s))
        await asyncio.wait([stopped, address], return_when=asyncio.FIRST_COMPLETED)
        if not address.done():
            address.cancel()
            return
        options = [{**each, "scheduler_ip": address.result(), "scheduler_file": None} for each in options]
    try:
        nannies = [Nanny(**each) for each in options]
    except (OSError, ValueError) as error:
        raise _not_started(options, error) from error
    ended = asyncio.create_task(_until_ended(nannies))
    try:
        await asyncio.wait([stopped, ended], return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            ended.result()
    except (OSError, RuntimeError, ValueError) as error:
        raise _not_started(options, error) from error
    finally:
        for task in (stopped, ended):
            task.cancel()
        closing = [nanny.close(timeout=_CLOSE_S, reason="weft worker ends") for nanny in nannies]
        for failure in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(failure, Exception):
                logger.warning("a nanny did not close: %s", failure)


def _not_started(options: Sequence[dict[str, Any]], error: Exception) -> Error:
    """Make the error of workers that did not start; the cause of a nanny's own error says why."""
    scheduler = options[0]["scheduler_ip"] or _config.get("scheduler-address")
    cause = error.__cause__ or error
    return Error(f"start workers for {scheduler}: {str(cause) or type(cause).__name__}")


async def _address(file: str, patience_s: float | None) -> str:
    """Wait for a scheduler's file, which may be half written, and return the scheduler's address."""
    said, end = False, None if patience_s is None else time.monotonic() + patience_s
    while (address := scheduler_file.address(file)) is None:
        if not said:
            print(f"weft worker: waiting for a scheduler to write {file}", file=sys.stderr, flush=True)
            said = True
        if end is not None and time.monotonic() > end:
            raise TimedOutError(f"start workers: {file}: no scheduler has written it within {patience_s:g} s")
        await asyncio.sleep(_LOOK_S)
    return address


async def _until_ended(nannies: Sequence[Nanny]) -> None:
    await asyncio.gather(*nannies)
    await asyncio.gather(*(nanny.finished() for nanny in nannies))
