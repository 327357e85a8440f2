# SPDX-License-Identifier: BSD-3-Clause
"""The two processes of ``weft explain``: one echoes each message, the other measures and explains the connection.

They exchange their locations, which an ordinary connection does not. ``python -m weft.explain.round_trip`` is
the echo that `child` starts: it prints its address and serves one caller.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Generator

import weft
from weft.errors import HandshakeError, PeerClosedError, PeerLostError, TimedOutError, UnreachableError
from weft.explain import LOCATION, TIMED_NBYTES, evidence
from weft.explain.explanation import Explanation

#: Seconds that either process waits for the other's next message.
_PATIENCE_S = 30.0
#: Limits for one size: round trips, and seconds. The first round trips are warm-up.
_ROUNDS, _MEASURE_S, _WARM_UP = 200, 1.0, 3


def explain(address: str) -> Explanation:
    """Connect to the echo at `address`, measure, and explain.

    Raises
    ------
    HandshakeError
        Another program of weft's answers, Dask for example.
    """
    with weft.connect(address, info={LOCATION: evidence.location()}) as peer:
        if LOCATION not in peer.remote:
            text = "what answers is not weft explain --listen; start that there, at a port of its own"
            raise HandshakeError(f"explain {address}: {text}")
        observed = {nbytes: _one_way(peer, nbytes) for nbytes in TIMED_NBYTES}
        explanation = peer.explain()  # after the transfers: UCX has now chosen for large messages, too
    times = [dataclasses.replace(each, observed_s=observed[each.nbytes]) for each in explanation.times]
    return dataclasses.replace(explanation, times=times)


def _one_way(peer: weft.Peer, nbytes: int) -> float:
    """Send `nbytes` back and forth; return half of the median round trip, in seconds."""
    data, trips_s, end = bytes(nbytes), list[float](), time.perf_counter() + _MEASURE_S
    for _ in range(_WARM_UP + _ROUNDS):
        since = time.perf_counter()
        sent = peer.send(data)
        peer.recv().wait(_PATIENCE_S)
        sent.wait(_PATIENCE_S)
        trips_s.append(time.perf_counter() - since)
        if trips_s[-1] + since > end:
            break
    return statistics.median(trips_s[_WARM_UP:] or trips_s[-1:]) / 2


def echo(address: str, *, once: bool = False) -> None:
    """Listen at `address`, print where, and send each message of each caller back; with `once`, for one caller.

    Raises
    ------
    TimedOutError
        With `once`: nobody was answered.
    """
    with weft.listen(address, info={LOCATION: evidence.location()}) as listener:
        line = listener.address  # alone where a script reads it
        if sys.stdout.isatty():
            line = f"listening on {listener.bound_address}; on the other machine: weft explain {listener.address}"
        print(f"{line}\n", end="", flush=True)
        called = False
        while not (once and called):
            try:
                with listener.accept(_PATIENCE_S if once else None) as peer, contextlib.suppress(PeerClosedError):
                    called = True
                    while True:
                        peer.send(peer.recv().wait(_PATIENCE_S)).wait(_PATIENCE_S)
            except PeerLostError:
                called = True
            except TimedOutError:
                if not called:
                    raise TimedOutError(f"listen on {address}: nobody was answered within {_PATIENCE_S:g} s") from None


@contextlib.contextmanager
def child() -> Generator[str]:
    """Start an echo on this host; yield its address."""
    command = [sys.executable, "-m", "weft.explain.round_trip"]
    # A group of its own: the Ctrl-C of a terminal would interrupt it, too, with a traceback.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0)
    assert process.stdout is not None
    with process.stdout:
        try:
            if not select.select([process.stdout], [], [], _PATIENCE_S)[0]:
                raise TimedOutError(f"explain: the child process did not listen within {_PATIENCE_S:g} s")
            address = process.stdout.readline().strip()
            if not address:
                raise UnreachableError(f"explain: the child process exited at once, with status {process.wait(10)}")
            yield address
            process.wait(10)
        finally:
            process.kill()
            process.wait(10)


if __name__ == "__main__":
    try:
        echo("127.0.0.1:0", once=True)
    except BrokenPipeError:  # the parent was interrupted, and reads nothing
        os._exit(1)  # Python's own exit would write again what it could not
