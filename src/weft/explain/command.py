# SPDX-License-Identifier: BSD-3-Clause
"""``weft explain``: two processes, one that answers and one that measures and then explains what is between them.

Without an address the one that answers is started here, as a child; with one it is a ``weft explain --listen``
elsewhere. Both tell each other where they are, which an ordinary connection does not.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Generator

from rich.console import Console

import weft
from weft.errors import PeerClosedError, PeerLostError, TimedOutError, UnreachableError
from weft.explain import PLACE, TIMED_NBYTES, Explanation, evidence

#: Seconds that either side waits for the other's next message.
PATIENCE_S = 30.0
#: A size is measured so often, for so long at most; the first rounds warm memory up.
_ROUNDS, _MEASURE_S, _WARM_UP = 200, 1.0, 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``weft explain`` to `parser`."""
    parser.add_argument("address", nargs="?", help="host:port of a weft explain --listen; without it, a child here")
    parser.add_argument("--listen", metavar="HOST:PORT", help="answer those who explain the way to here, until Ctrl-C")
    parser.add_argument("--once", action="store_true", help="with --listen: answer one, who has to come within 30 s")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Explain, or answer until interrupted.

    Returns
    -------
    int
        0.

    Raises
    ------
    UnreachableError, HandshakeError, TimedOutError
        Nobody answers at the address.
    InvalidParamError
        Both an address and ``--listen``.
    """
    if args.listen is not None:
        if args.address is not None:
            raise weft.InvalidParamError("give an address to explain the way there, or --listen, not both")
        answer(args.listen, once=args.once)
        return 0
    with contextlib.nullcontext(args.address) if args.address else _child() as address:
        told = explain(address)
    if args.json:
        print(json.dumps(told.json(), indent=2))
    elif sys.stdout.isatty():
        Console(highlight=False, markup=False).print(told)
    else:
        print(told)
    return 0


def explain(address: str) -> Explanation:
    """Connect to who answers at `address`, measure, and explain."""
    with weft.connect(address, info={PLACE: evidence.place()}) as peer:
        observed = {nbytes: _one_way(peer, nbytes) for nbytes in TIMED_NBYTES}
        told = peer.explain()  # only now: by now UCX has chosen for large messages, too
    times = [dataclasses.replace(each, observed_s=observed[each.nbytes]) for each in told.times]
    return dataclasses.replace(told, times=times)


def _one_way(peer: weft.Peer, nbytes: int) -> float:
    """Send `nbytes` there and back for a while; return half of the median round trip."""
    data, took, end = bytes(nbytes), list[float](), time.perf_counter() + _MEASURE_S
    for _ in range(_WARM_UP + _ROUNDS):
        since = time.perf_counter()
        sent = peer.send(data)
        peer.recv().wait(PATIENCE_S)
        sent.wait(PATIENCE_S)
        took.append(time.perf_counter() - since)
        if took[-1] + since > end:
            break
    return statistics.median(took[_WARM_UP:] or took[-1:]) / 2


def answer(address: str, *, once: bool = False) -> None:
    """Listen at `address`, print where, and send each message of each caller back; with `once`, for one caller."""
    with weft.listen(address, info={PLACE: evidence.place()}) as listener:
        print(listener.address, flush=True)
        while True:
            with (
                contextlib.suppress(PeerLostError, TimedOutError),
                listener.accept(PATIENCE_S if once else None) as peer,
            ):
                _echo(peer)
            if once:
                return


def _echo(peer: weft.Peer) -> None:
    with contextlib.suppress(PeerClosedError):
        while True:
            peer.send(peer.recv().wait(PATIENCE_S)).wait(PATIENCE_S)


@contextlib.contextmanager
def _child() -> Generator[str]:
    """Start a process here that answers; yield its address."""
    child = subprocess.Popen([sys.executable, "-m", "weft.explain.command"], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child.stdout:
        try:
            address = child.stdout.readline().strip()
            if not address:
                raise UnreachableError(f"explain: the child that should answer ended at once, with {child.wait(10)}")
            yield address
            child.wait(10)
        finally:
            child.kill()
            child.wait(10)


if __name__ == "__main__":
    answer("127.0.0.1:0", once=True)
