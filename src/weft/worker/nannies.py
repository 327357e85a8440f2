# SPDX-License-Identifier: BSD-3-Clause
"""A nanny for each worker: all start together, and a signal or the scheduler stops them together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

import dask.config
from distributed import Nanny, Security
from distributed.comm import registry
from distributed.comm.addressing import get_address_host_port
from distributed.comm.core import FatalCommClosedError, connect

import weft
from weft._connect.address import join
from weft._reachable import first_cause, why_unreachable
from weft.dask import patches
from weft.errors import Error, InvalidParamError, TimedOutError, TlsError
from weft.worker import scheduler_file

logger = logging.getLogger("weft")
_config: Any = dask.config  # it has only some of its types

#: Seconds that workers have to leave the cluster after a signal, as with dask worker.
_CLOSE_S = 10.0
#: Seconds between looks for the scheduler's file.
_LOOK_S = 0.1
#: Seconds after which the wait for the scheduler is said.
_SAY_S = 1.0
#: Seconds of each attempt to reach the scheduler: Dask's own, which give a slow network the time of a fifth.
_ATTEMPT_S = 30.0
#: Seconds that workers have at least to start, once the scheduler was reached: on a busy machine they take 10 and more.
_START_S = 60.0
#: Seconds between attempts that fail at once: at first `_LOOK_S`, twice as many each time, at most these.
_MOST_PAUSE_S = 1.0
#: Seconds in which a listener of weft's answers.
_PROBE_S = 3.0
_OTHER_PROTOCOL = "it listens on ucx://, and {} is another protocol"


def run(options: Sequence[dict[str, Any]]) -> int:
    """Run a nanny for each entry of `options`, until a signal or until the scheduler has retired them all.

    Returns
    -------
    int
        0; 130 after SIGINT before the scheduler was reached.

    Raises
    ------
    InvalidParamError
        No scheduler is named, neither in `options` nor in Dask's configuration, or its address or the protocol cannot
        be used; a file for TLS is missing.
    TimedOutError
        The scheduler's file was not written, or the scheduler did not answer, within the death timeout.
    Error
        A worker could not be started, or did not start within the death timeout or a minute; none is left.
    """
    named = options[0]["scheduler_ip"] or options[0]["scheduler_file"] or _config.get("scheduler-address", None)
    if not named:
        raise InvalidParamError("no scheduler: give its address, ucx://HOST:8786, or --scheduler-file FILE")
    _refuse_half_tls(options[0].get("security", {}))
    if protocol := options[0].get("protocol"):
        refuse_protocol(protocol)
    if not options[0]["scheduler_file"]:
        _refuse_address(named)
    return asyncio.run(_run(options, options[0]["death_timeout"]))


def refuse_protocol(name: str) -> None:
    """Raise for a protocol that Dask does not know."""
    try:
        registry.get_backend(name.removesuffix("://"))
    except ValueError as error:
        raise InvalidParamError(f"--protocol {name}: {error}") from error


def _refuse_address(address: str) -> None:
    """Raise for what cannot be a scheduler's address."""
    try:
        _, port = get_address_host_port(address)
        if not 0 < port < 65536:
            raise ValueError(f"{port} is not a port between 1 and 65535")
    except ValueError as error:
        raise InvalidParamError(f"start workers for {address}: {error}; write it like ucx://HOST:8786") from error


def _refuse_half_tls(security: Mapping[str, str]) -> None:
    """Raise where some files for TLS are given, and Dask's configuration does not name the others."""
    needed = {"tls_ca_file": ("--tls-ca-file", "ca-file"), "tls_worker_cert": ("--tls-cert", "worker.cert")}
    for name, (option, key) in needed.items():
        if security and name not in security and _config.get(f"distributed.comm.tls.{key}", None) is None:
            raise InvalidParamError(f"TLS also needs {option}, or distributed.comm.tls.{key} in Dask's configuration")


async def _run(options: Sequence[dict[str, Any]], patience_s: float | None) -> int:
    loop = asyncio.get_running_loop()
    stop: asyncio.Queue[int] = asyncio.Queue()
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 0)):
        loop.add_signal_handler(number, stop.put_nowait, code)
    stopped = asyncio.create_task(stop.get())
    if file := options[0]["scheduler_file"]:
        # A nanny would wait for it in its constructor, where signals are not handled.
        address = asyncio.create_task(_address(file, patience_s))
        await asyncio.wait([stopped, address], return_when=asyncio.FIRST_COMPLETED)
        if not address.done():
            address.cancel()
            return stopped.result()
        options = [{**each, "scheduler_ip": address.result(), "scheduler_file": None} for each in options]
    named = options[0]["scheduler_ip"] or _config.get("scheduler-address")
    reached = asyncio.create_task(_reach(named, options[0].get("security", {}), patience_s))
    await asyncio.wait([stopped, reached], return_when=asyncio.FIRST_COMPLETED)
    if not reached.done():
        reached.cancel()
        await asyncio.wait([reached])
        return stopped.result()
    try:
        reached.result()
    except (OSError, RuntimeError, ValueError, TypeError) as error:
        raise error if isinstance(error, Error) else _not_started(options, error) from error
    try:
        nannies = [Nanny(**{**each, "death_timeout": None}) for each in options]  # its own limit ends in tracebacks
    except (OSError, ValueError) as error:
        raise _not_started(options, error) from error
    ended = asyncio.create_task(_until_ended(nannies, None if patience_s is None else max(patience_s, _START_S)))
    try:
        await asyncio.wait([stopped, ended], return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            ended.result()
    except (OSError, RuntimeError, ValueError) as error:
        raise _not_started(options, error) from error
    finally:
        for task in (stopped, ended):
            task.cancel()
        await asyncio.wait([ended], timeout=_CLOSE_S)
        closing = [_close(nanny) for nanny in nannies]
        for failure in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(failure, Exception):
                logger.warning("a nanny did not close: %s", failure)
    return 0


def _not_started(options: Sequence[dict[str, Any]], error: Exception) -> Error:
    """Make the error of workers that did not start; the first cause of a nanny's own error says why."""
    scheduler = options[0]["scheduler_ip"] or _config.get("scheduler-address")
    cause = first_cause(error)
    if isinstance(cause, KeyError):  # that is how a nanny takes an answer without the fields that it expects
        return Error(f"start workers for {scheduler}: what answers there is no Dask scheduler; correct its address")
    return Error(f"start workers for {scheduler}: {str(cause) or type(cause).__name__}")


async def _address(file: str, patience_s: float | None) -> str:
    """Wait for a scheduler's file, which may be half written, and return the scheduler's address."""
    said, end = False, None if patience_s is None else time.monotonic() + patience_s
    while (address := scheduler_file.address(file)) is None:
        has = ", which has no JSON with a scheduler's address" if os.path.exists(file) else ""  # noqa: ASYNC240
        if not said:
            print(f"weft worker: waiting for a scheduler to write {file}{has}", file=sys.stderr, flush=True)
            said = True
        if end is not None and time.monotonic() > end:
            raise TimedOutError(f"start workers: no scheduler has written {file} within {patience_s:g} s{has}")
        await asyncio.sleep(_LOOK_S)
    return address


async def _reach(address: str, security: Mapping[str, str], patience_s: float | None) -> None:
    """Connect to the scheduler once, as the workers will; say so if that takes long."""
    connecting = asyncio.create_task(_connect(address, Security(**security), patience_s))
    try:
        done, _ = await asyncio.wait([connecting], timeout=_SAY_S)
        if not done:
            print(f"weft worker: waiting for the scheduler at {address} ...", file=sys.stderr, flush=True)
        await connecting
    finally:
        connecting.cancel()


async def _connect(address: str, security: Security, patience_s: float | None) -> None:
    end = math.inf if patience_s is None else time.monotonic() + patience_s
    arguments: dict[str, Any] = cast("Any", security).get_connection_args("worker")
    pause_s = _LOOK_S
    while True:
        left_s = max(end - time.monotonic(), 1e-3)
        try:
            attempt_s = min(left_s, _ATTEMPT_S)
            comm = await asyncio.wait_for(connect(address, timeout=attempt_s, **arguments), attempt_s + _LOOK_S)
            await comm.close()
            return
        except FatalCommClosedError:
            raise
        except OSError as error:  # a timeout is one, too
            if time.monotonic() >= end:
                why = f"{await _reason(address, error)}; start the scheduler, or correct its address"
                text = f"start workers for {address}: no answer within {patience_s:g} s: {why}"
                raise TimedOutError(text) from error
            if await _is_other_protocol(address):  # waiting does not help; the other way round, distributed says so
                raise Error(f"start workers for {address}: {_OTHER_PROTOCOL.format(address)}") from error
            await asyncio.sleep(min(pause_s, max(end - time.monotonic(), 0.0)))
            pause_s = min(2 * pause_s, _MOST_PAUSE_S)


async def _reason(address: str, error: OSError) -> str:
    """Find out why the scheduler was not reached: distributed says only that the time is up."""
    host, port = get_address_host_port(address)
    why = await asyncio.to_thread(why_unreachable, host, port)
    if not why and await _is_other_protocol(address):
        return _OTHER_PROTOCOL.format(address)
    return why or str(first_cause(error)) or "it accepts connections, and says nothing"


async def _is_other_protocol(address: str) -> bool:
    if address.startswith("ucx://"):
        return False
    host, port = get_address_host_port(address)
    try:
        (await weft.connect(join(host, port), timeout=_PROBE_S)).abort()
    except TlsError:
        return True
    except Error:
        return False
    return True


async def _until_ended(nannies: Sequence[Nanny], start_s: float | None) -> None:
    limit = asyncio.timeout(start_s)
    try:
        async with limit:
            await asyncio.gather(*nannies)
    except TimeoutError:
        if not limit.expired():
            raise
        text = f"not every worker process started within {start_s:g} s; give a longer --timeout"
        raise TimeoutError(text) from None
    await asyncio.gather(*(nanny.finished() for nanny in nannies))


async def _close(nanny: Nanny) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CLOSE_S):
            await patches.kill_worker_that_starts(nanny)
    await nanny.close(timeout=_CLOSE_S, reason="weft worker ends")
