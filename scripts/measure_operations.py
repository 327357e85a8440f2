#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Time UCP's operations through weft next to ``ucx_perftest``, in turns, two pinned processes, one way.

python scripts/measure_operations.py [--rounds 5] [--json FILE]

Tags and active messages go back and forth (half of a round trip); put and get go one way and are flushed at the end of
every round; a rate is of windows of 256 messages with one request each, of tags and of ``weft.Peer``, whose messages a
ring carries and each of which arrives in memory of its own. ``ucx_perftest`` runs the same test over
the same transport, between the rounds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import weft
from weft._units import format_rate
from weft.bench.common import environment, outcome, stats
from weft.bench.common.options import add_json, add_rounds
from weft.bench.peers import programs

MIB = 1 << 20
WINDOW = 256


class Row(NamedTuple):
    """What is measured: of weft by name, over which transport, and ``ucx_perftest``'s arguments for the same."""

    loop: str
    tls: str
    nbytes: int
    count: int
    perftest: str


ROWS = {
    "tag 1 MiB": Row("tag", "posix", MIB, 2000, "tag_lat"),
    "active message 1 MiB": Row("active", "posix", MIB, 2000, "ucp_am_lat"),
    "active message 1 MiB in 16 parts": Row("gather", "posix", MIB, 2000, ""),
    "put 1 MiB": Row("put", "posix", MIB, 4000, "ucp_put_bw"),
    "get 1 MiB": Row("get", "posix", MIB, 4000, "ucp_get"),
    "tag 1 MiB over tcp": Row("tag", "tcp", MIB, 500, "tag_lat"),
    "tag 8 B, windows of 256": Row("rate", "posix", 8, 2000, "tag_bw"),
    "tag 1 KiB, windows of 256": Row("rate", "posix", 1024, 2000, "tag_bw"),
    "Peer 8 B, windows of 256": Row("many", "ring", 8, 2000, ""),
    "Peer 1 KiB, windows of 256": Row("many", "ring", 1024, 2000, ""),
}


class Process:
    """One of the two processes: a worker for a row, joined to the other's."""

    def __init__(self, pipe: Connection, row: Row, core: int, first: bool) -> None:
        os.sched_setaffinity(0, {core})
        self.row = row
        self.out, self.into = bytearray(row.nbytes), bytearray(row.nbytes)
        self.memory = None
        if row.loop == "many":
            self.peer = self.joined(pipe, first)
            return
        features = ["rma"] if row.loop in ("put", "get") else []
        self.context = weft.config.PairedContext({"TLS": row.tls}, features=features)
        self.worker = weft.Worker(self.context)
        self.memory = self.context.mem_alloc(row.nbytes) if row.loop in ("put", "get") else None
        key = self.memory.rkey_pack() if self.memory else None
        pipe.send((self.worker.address, key))
        address, key = pipe.recv()
        self.endpoint = self.worker.connect(address)
        for i in range(0, row.nbytes, 4096):
            self.out[i] = self.into[i] = 1
        if key:
            # Each waits for the other to have its lane up: a first message both ways.
            self.exchange(True)
            self.rkey = self.endpoint.rkey_unpack(key)

    def joined(self, pipe: Connection, first: bool) -> weft.Peer:
        """Connect to the other process."""
        if first:
            return weft.connect(pipe.recv()).open()
        with weft.listen("127.0.0.1:0") as listener:
            pipe.send(listener.address)
            return listener.accept(30)

    def close(self) -> None:
        if self.row.loop == "many":
            self.peer.abort()
        else:
            self.worker.close()

    def exchange(self, first: bool) -> None:
        """One round trip of one byte."""
        for sends in (first, not first):
            if sends:
                self.endpoint.tag_send(b"x", 9).wait(30)
            else:
                self.worker.tag_recv(bytearray(1), 9).wait(30)

    def run(self, first: bool) -> float:
        """Do the row's loop; return seconds for each message, of the one who begins."""
        begin = time.perf_counter()
        for _ in range(self.row.count):
            getattr(self, self.row.loop)(first)
        if self.row.loop in ("put", "get"):
            self.endpoint.flush().wait(30)
        elapsed = time.perf_counter() - begin
        per_turn = {"rate": WINDOW, "many": WINDOW, "put": 1, "get": 1}.get(self.row.loop, 2)
        return elapsed / self.row.count / per_turn

    def tag(self, first: bool) -> None:
        for sends in (first, not first):
            if sends:
                self.endpoint.tag_send(self.out, 1).wait()
            else:
                self.worker.tag_recv(self.into, 1).wait()

    def active(self, first: bool, data: Any = None) -> None:
        for sends in (first, not first):
            if sends:
                self.endpoint.am_send(1, b"", self.out if data is None else data).wait()
            else:
                self.worker.am_recv(1).wait()

    def gather(self, first: bool) -> None:
        view, part = memoryview(self.out), self.row.nbytes // 16
        self.active(first, [view[i : i + part] for i in range(0, self.row.nbytes, part)])

    def put(self, first: bool) -> None:
        if first:
            self.endpoint.put(self.out, self.rkey).wait()

    def get(self, first: bool) -> None:
        if first:
            self.endpoint.get(self.into, self.rkey).wait()

    def rate(self, first: bool) -> None:
        if first:
            self.endpoint.tag_send_many([self.out] * WINDOW, 1).wait()
            self.worker.tag_recv(bytearray(1), 2).wait()
        else:
            self.worker.tag_recv_many([self.into] * WINDOW, 1).wait()
            self.endpoint.tag_send(b"x", 2).wait()

    def many(self, first: bool) -> None:
        if first:
            self.peer.send_many([self.out] * WINDOW).wait()
            self.peer.recv().wait()
        else:
            self.peer.recv_many(WINDOW).wait()
            self.peer.send(b"x").wait()


def answer(pipe: Connection, row: Row, core: int) -> None:
    """Be the other process."""
    process = Process(pipe, row, core, False)
    if process.memory:
        process.exchange(False)
    for _ in range(2):
        process.run(False)
        if process.memory:  # the other one's puts and gets are over when it says so
            process.worker.tag_recv(bytearray(1), 9).wait(60)
    pipe.recv()
    process.close()


def weft_seconds(row: Row, cores: list[int]) -> float:
    """Measure one round in a fresh pair of processes, after one to warm up."""
    ours, theirs = multiprocessing.Pipe()
    other = multiprocessing.get_context("spawn").Process(target=answer, args=(theirs, row, cores[1]))
    other.start()
    process = Process(ours, row, cores[0], True)
    if process.memory:
        process.exchange(True)
    for _ in range(2):
        seconds = process.run(True)
        if process.memory:
            process.endpoint.tag_send(b"x", 9).wait(30)
    ours.send(None)
    other.join(30)
    process.close()
    return seconds


def perftest_with_errors_seconds(row: Row, cores: list[int]) -> float:
    """Run it as weft has UCX run: told of a peer that dies, for which tcp copies what it sends, in weft's segments."""
    settings = {f"UCX_{name}": value for name, value in weft.config.tcp_segments({}).items()}
    return perftest_seconds(row, cores, ["-e"], settings)


def perftest_seconds(
    row: Row, cores: list[int], options: Sequence[str] = (), settings: Mapping[str, str] | None = None
) -> float:
    """Run the same test of ``ucx_perftest``; return its mean of all messages."""
    count = row.count * (WINDOW if row.loop == "rate" else 1)
    arguments = ["-t", row.perftest, "-s", str(row.nbytes), "-n", str(count), *options]
    arguments += ["-O", str(WINDOW)] if row.loop == "rate" else []
    variables = {"UCX_TLS": row.tls, **(settings or {})}
    library = weft.ucx_library().path
    # the server is pinned to the second core, as the answering process is
    printed = programs.ucx_perftest(library, arguments, cores=cores[::-1], settings=variables, limit_s=120)
    return programs.figure_of(printed, "overall.*lat|average_lat")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_rounds(parser, 5)
    add_json(parser)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    args = parser.parse_args()
    surroundings = environment.collect()
    cores = sorted(os.sched_getaffinity(0))[:2]
    taken: dict[str, dict[str, list[float]]] = {}
    measures: dict[str, Callable[[Row, list[int]], float]] = {
        "weft": weft_seconds,
        "ucx_perftest": perftest_seconds,
        "ucx_perftest -e": perftest_with_errors_seconds,
    }
    for _ in range(args.rounds):
        for name, row in ROWS.items():
            for library, measure in measures.items():
                if args.only not in name or (library != "weft" and not row.perftest):
                    continue
                if library == "ucx_perftest -e" and row.tls != "tcp":  # which alone goes another way then
                    continue
                taken.setdefault(name, {}).setdefault(library, []).append(measure(row, cores))
                os.sched_setaffinity(0, set(cores))
    for name, libraries in taken.items():
        for library, seconds in libraries.items():
            middle = statistics.median(seconds)
            rate = f"{format_rate(ROWS[name].nbytes / middle)}, {1e-6 / middle:.3f} million/s"
            print(f"{name:34} {library:15} {stats.format_rounds(seconds)}, {rate}")
    nbytes = {name: ROWS[name].nbytes for name in taken}
    outcome.write_record(args.json, {"rows": taken, "nbytes": nbytes, "environment": surroundings})


if __name__ == "__main__":
    sys.exit(main())
