#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Time 128 MiB from one process of this host to another, answered with 8 B: lent, and sent; and a copy in one."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable

import numpy as np

import weft

NBYTES = 128 << 20
ROUNDS = 21


def answer(address: str) -> None:
    """Take every array and answer with its first element."""
    with weft.connect(address) as peer:
        for _ in range(2 * ROUNDS):
            array = np.frombuffer(peer.recv().wait(30), "f8")
            peer.send(array[:1].copy()).wait(30)


def main() -> None:
    source, into = np.full(NBYTES // 8, 1.5), np.empty(NBYTES // 8)
    with weft.listen("127.0.0.1:0") as listener:
        child = multiprocessing.get_context("spawn").Process(target=answer, args=(listener.address,))
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
        "copy": lambda: np.copyto(into, source),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            begin = time.perf_counter()
            way()
            taken[name].append(time.perf_counter() - begin)
    for name, seconds in taken.items():
        low, middle, high = (s * 1e6 for s in (min(seconds), statistics.median(seconds), max(seconds)))
        print(f"{name}: median {middle:,.0f} us ({low:,.0f} to {high:,.0f})")
    peer.close().wait(30)
    child.join()


if __name__ == "__main__":
    main()
