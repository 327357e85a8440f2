#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Time what comes before the first message, and count what a peer costs: import, connecting on one host.

python scripts/measure_start.py [--rounds 5] [--json FILE]

A round is a fresh interpreter. It imports weft with asyncio already there, connects to each of several processes, then
again and again to the last, and keeps every peer. Descriptors and resident memory are those of the side that connects.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
from typing import Any

from weft.bench.common import environment, outcome, stats
from weft.bench.common.options import add_json, add_rounds

PROCESSES = 6
AGAIN = 20

LISTENER = """
import asyncio, contextlib, sys, weft

async def hold(peer):
    with contextlib.suppress(weft.Error):
        await peer.recv()

async def main():
    async with weft.listen("127.0.0.1:0", hold) as listener:
        print(listener.address, flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""

CONNECTOR = """
import asyncio, json, os, sys, time
began = time.perf_counter()
import weft
imported = time.perf_counter() - began

def taken():
    with open("/proc/self/statm") as statm:
        resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return len(os.listdir("/proc/self/fd")), resident

peers, seconds, counts = [], [], []
for address in sys.argv[1:]:
    began = time.perf_counter()
    peers.append(weft.connect(address, timeout=30).open())
    seconds.append(time.perf_counter() - began)
    counts.append(taken())
print(json.dumps([imported, seconds, counts]))
"""


def measured(rounds: int) -> dict[str, Any]:
    """Run the rounds; return seconds by row, and what a further process takes."""
    rows: dict[str, list[float]] = {}
    descriptors, resident = list[float](), list[float]()
    with contextlib.ExitStack() as stack:
        addresses = []
        for _ in range(PROCESSES):
            command = [sys.executable, "-c", LISTENER]
            process = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            assert process.stdout is not None
            addresses.append(process.stdout.readline().strip())
        for _ in range(rounds):
            argv = [sys.executable, "-c", CONNECTOR, *addresses, *addresses[-1:] * AGAIN]
            imported, seconds, counts = json.loads(subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout)
            for name, value in (
                ("import weft (asyncio already imported)", imported),
                ("first connect of a process", seconds[0]),
                ("connect to another process", statistics.median(seconds[1:PROCESSES])),
                ("connect again to the same", statistics.median(seconds[PROCESSES:])),
            ):
                rows.setdefault(name, []).append(value)
            for i, each in enumerate((descriptors, resident)):
                each.append((counts[PROCESSES - 1][i] - counts[0][i]) / (PROCESSES - 1))
    return {
        "rows": {name: {"weft": seconds} for name, seconds in rows.items()},
        "descriptors_per_process": statistics.median(descriptors),
        "resident_nbytes_per_process": statistics.median(resident),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    add_rounds(parser, 5)
    add_json(parser)
    args = parser.parse_args()
    surroundings = environment.collect()
    record = measured(args.rounds)
    for name, row in record["rows"].items():
        print(f"{name:34} {stats.format_rounds(row['weft'])}")
    taken = record["descriptors_per_process"], record["resident_nbytes_per_process"] / 2**20
    print("each further process: {:.1f} descriptors, {:.2f} MiB".format(*taken))
    outcome.write_record(args.json, record | {"environment": surroundings})


if __name__ == "__main__":
    main()
