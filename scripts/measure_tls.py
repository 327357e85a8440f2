#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Time messages that a connection carries over its TLS socket, next to asyncio's TLS streams, in turns.

python scripts/measure_tls.py [--rounds 3] [--sizes 8,1MiB,128MiB] [--json FILE]

Two processes on the loopback, which is treated as a network (``UCX_TLS=tcp``); certificates are made for the occasion.
A message goes one way and is answered with 8 B; half the median of small ones is their latency. A round's figure is
the median of its exchanges.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import ssl
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path

import trustme

import weft
from weft._units import format_rate, format_seconds, format_size
from weft.bench.common import environment, outcome, stats
from weft.bench.common.options import add_json, add_rounds, add_sizes

#: Of each size in a round.
EXCHANGED_NBYTES, FEWEST, MOST = 64 << 20, 5, 500
SETTINGS = {"TLS": "tcp,self"}
ANSWER = bytes(8)

Exchange = Callable[[bytes], Awaitable[None]]


def context(folder: Path, side: int) -> ssl.SSLContext:
    made = ssl.SSLContext(side)
    made.load_cert_chain(folder / "pair.pem")
    made.load_verify_locations(folder / "ca.pem")
    made.verify_mode = ssl.CERT_REQUIRED
    return made


def serve(folder: Path, to_parent: Connection) -> None:
    """Answer what arrives, on a listener of each kind, until the parent is gone."""
    tls = context(folder, ssl.PROTOCOL_TLS_SERVER)

    async def on_peer(peer: weft.Peer) -> None:
        with contextlib.suppress(weft.Error):
            while True:
                await peer.recv()
                await peer.send(ANSWER)

    async def on_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                await reader.readexactly(struct.unpack("<Q", await reader.readexactly(8))[0])
                writer.write(ANSWER)

    async def main() -> None:
        streams = await asyncio.start_server(on_stream, "127.0.0.1", 0, ssl=tls, limit=1 << 24)
        async with weft.listen("127.0.0.1:0", on_peer, ssl=tls, payload="tls", settings=SETTINGS) as listener:
            to_parent.send((listener.address, streams.sockets[0].getsockname()[1]))
            await asyncio.to_thread(to_parent.poll, None)

    asyncio.run(main())


@contextlib.asynccontextmanager
async def over_weft(address: str, tls: ssl.SSLContext) -> AsyncIterator[Exchange]:
    async with weft.connect(address, ssl=tls, payload="tls", settings=SETTINGS) as peer:
        assert peer.transports[0].startswith("tls/"), peer.transports

        async def exchange(message: bytes) -> None:
            sent = peer.send(message)
            assert (await peer.recv()).nbytes == 8
            await sent

        yield exchange


@contextlib.asynccontextmanager
async def over_streams(port: int, tls: ssl.SSLContext) -> AsyncIterator[Exchange]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, limit=1 << 24)

    async def exchange(message: bytes) -> None:
        writer.write(struct.pack("<Q", len(message)))
        writer.write(message)
        await writer.drain()
        await reader.readexactly(8)

    yield exchange
    writer.close()


async def measure(
    address: str, port: int, tls: ssl.SSLContext, args: argparse.Namespace
) -> dict[int, dict[str, list[float]]]:
    """Return, by size and library, the median seconds of each round."""
    taken: dict[int, dict[str, list[float]]] = {}
    async with over_weft(address, tls) as weft_tls, over_streams(port, tls) as asyncio_tls:
        for nbytes in args.sizes:
            message, count = bytes(nbytes), max(FEWEST, min(MOST, EXCHANGED_NBYTES // nbytes))
            for _ in range(args.rounds):
                for name, exchange in (("weft", weft_tls), ("asyncio", asyncio_tls)):
                    await exchange(message)
                    seconds = []
                    for _ in range(count):
                        began = time.perf_counter()
                        await exchange(message)
                        seconds.append(time.perf_counter() - began)
                    taken.setdefault(nbytes, {}).setdefault(name, []).append(statistics.median(seconds))
    return taken


def show(taken: dict[int, dict[str, list[float]]]) -> None:
    for nbytes, libraries in taken.items():
        for name, seconds in libraries.items():
            median = statistics.median(seconds)
            rate = format_rate(nbytes / median) if nbytes > 8 else f"{format_seconds(median / 2)} one way"
            print(f"{format_size(nbytes):>9}  {name:>8}: {stats.format_rounds(seconds)} there and back, {rate}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    add_rounds(parser, 3)
    add_sizes(parser, "8,1MiB,128MiB")
    add_json(parser)
    args = parser.parse_args()
    surroundings = environment.collect()
    authority = trustme.CA()
    pair = authority.issue_cert("127.0.0.1")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        authority.cert_pem.write_to_path(str(folder / "ca.pem"))
        pair.private_key_and_cert_chain_pem.write_to_path(str(folder / "pair.pem"))
        here, there = multiprocessing.Pipe()
        child = multiprocessing.get_context("spawn").Process(target=serve, args=(folder, there), daemon=True)
        child.start()
        there.close()
        address, port = here.recv()
        try:
            taken = asyncio.run(measure(address, port, context(folder, ssl.PROTOCOL_TLS_CLIENT), args))
        finally:
            child.terminate()
            child.join(10)
    show(taken)
    rows = {f"{format_size(nbytes)}, answered": libraries for nbytes, libraries in taken.items()}
    nbytes_of = {f"{format_size(nbytes)}, answered": nbytes for nbytes in taken}
    outcome.write_record(args.json, {"rows": rows, "nbytes": nbytes_of, "environment": surroundings})
    return 0


if __name__ == "__main__":
    sys.exit(main())
