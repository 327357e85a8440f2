#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Time 128 MiB from one process of this host to another, answered with 8 B: lent, and sent; and a copy in one.

python scripts/measure_lend.py [--rounds 5] [--json FILE]

All three take turns. A round's figure is the median of its exchanges.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable

import numpy as np

import weft
from weft.bench.common import environment, outcome, stats
from weft.bench.common.options import add_json, add_rounds

NBYTES = 128 << 20
EXCHANGES = 9


def answer(address: str, count: int) -> None:
    """Take every array and answer with its first element."""
    with weft.connect(address) as peer:
        for _ in range(count):
            array = np.frombuffer(peer.recv().wait(30), "f8")
            peer.send(array[:1].copy()).wait(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    add_rounds(parser, 5)
    add_json(parser)
    args = parser.parse_args()
    surroundings = environment.collect()
    source, into = np.full(NBYTES // 8, 1.5), np.empty(NBYTES // 8)
    with weft.listen("127.0.0.1:0") as listener:
        count = 2 * EXCHANGES * args.rounds
        child = multiprocessing.get_context("spawn").Process(target=answer, args=(listener.address, count))
        child.start()
        peer = listener.accept(30)
    with weft.arrays_in_pool():
        born_shared = np.full(NBYTES // 8, 1.5)

    def exchange(post: Callable[[], weft.Request]) -> None:
        posted, answered = post(), peer.recv()
        posted.wait(30)
        if np.frombuffer(answered.wait(30))[0] != 1.5:
            raise SystemExit("another array arrived")

    ways: dict[str, Callable[[], None]] = {
        "lend": lambda: exchange(lambda: peer.lend(born_shared)),
        "send": lambda: exchange(lambda: peer.send(source)),
        "a copy in one process": lambda: np.copyto(into, source),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(args.rounds):
        samples: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(EXCHANGES):
            for name, way in ways.items():
                begin = time.perf_counter()
                way()
                samples[name].append(time.perf_counter() - begin)
        for name, seconds in samples.items():
            taken[name].append(statistics.median(seconds))
    for name, seconds in taken.items():
        print(f"{name}: {stats.format_rounds(seconds)}")
    outcome.write_record(args.json, {"rows": {"128 MiB, answered": taken}, "environment": surroundings})
    peer.close().wait(30)
    child.join()


if __name__ == "__main__":
    main()
