# SPDX-License-Identifier: BSD-3-Clause
"""The two ends of one trial, each a process of its own: ``UCX_TLS`` is read when UCX is loaded.

``python -m weft.doctor.trial_end listen HOST:0`` prints its address and serves one caller; ``connect ADDRESS``
prints what it measured, as JSON. Either exits after `LIMIT_S`, even if its parent is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import statistics
import sys
import time
import zlib

import weft
from weft._connect.address import join, resolve, split
from weft.peer import Peer

#: Seconds for a whole trial.
LIMIT_S = 30
_STEP_S = 8.0
_TRIPS = 50
_LARGE_NBYTES, _LARGE_COUNT = 1 << 20, 8
#: The first round includes page faults.
_ROUNDS = 2


def main(arguments: list[str]) -> int:
    """Run one end."""
    signal.alarm(LIMIT_S)
    role, address = arguments
    try:
        return _listen(address) if role == "listen" else _connect(address)
    except weft.Error as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 1


def _with_ucx_s_port(address: str) -> str:
    """Return `address` with a free port of UCX_TCP_PORT_RANGE if that is set: a firewall may let only these in."""
    first, _, last = os.environ.get("UCX_TCP_PORT_RANGE", "").partition("-")
    if not (first.isdecimal() and last.isdecimal()):
        return address
    host, _ = split(address)
    family, _ = resolve(host, 0, passive=True)[0]
    for port in range(int(first), min(int(last), 65535) + 1):
        with contextlib.suppress(OSError), socket.create_server((host, port), family=family):
            return join(host, port)
    return address


def _listen(address: str) -> int:
    with weft.listen(_with_ucx_s_port(address)) as listener:
        print(json.dumps({"address": listener.address}), flush=True)
        peer = listener.accept(LIMIT_S)  # the other end's process may be slow to start
    for _ in range(_TRIPS):
        peer.send(peer.recv().wait(_STEP_S)).wait(_STEP_S)
    for _ in range(_ROUNDS):
        check = 0
        for _ in range(_LARGE_COUNT):
            check = zlib.crc32(peer.recv().wait(_STEP_S), check)
        peer.send(check.to_bytes(4, "little")).wait(_STEP_S)
    with contextlib.suppress(weft.PeerLostError):
        peer.recv().wait(_STEP_S)  # its closing message
    return 0


def _connect(address: str) -> int:
    with weft.connect(address, timeout=_STEP_S) as peer:
        said = {"transports": peer.transports, "same_host": peer.same_host, **_measured(peer)}
    print(json.dumps(said), flush=True)
    return 0


def _measured(peer: Peer) -> dict[str, float]:
    trips_s: list[float] = []
    for _ in range(_TRIPS):
        since = time.perf_counter()
        peer.send(bytes(8)).wait(_STEP_S)
        peer.recv().wait(_STEP_S)
        trips_s.append(time.perf_counter() - since)
    seconds = min(_sent(peer, os.urandom(_LARGE_NBYTES)) for _ in range(_ROUNDS))
    return {"one_way_s": statistics.median(trips_s) / 2, "bandwidth_Bps": _LARGE_NBYTES * _LARGE_COUNT / seconds}


def _sent(peer: Peer, data: bytes) -> float:
    """Send `data` several times; return the seconds until the other end confirms that it arrived unchanged."""
    check = 0
    for _ in range(_LARGE_COUNT):
        check = zlib.crc32(data, check)
    since = time.perf_counter()
    sent = [peer.send(data) for _ in range(_LARGE_COUNT)]
    told = int.from_bytes(peer.recv().wait(_STEP_S), "little")
    seconds = time.perf_counter() - since
    for request in sent:
        request.wait(_STEP_S)
    if told != check:
        raise weft.Error(f"{_LARGE_COUNT} messages of 1 MiB to {peer.remote_address} arrived corrupted")
    return seconds


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
