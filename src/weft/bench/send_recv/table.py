# SPDX-License-Identifier: BSD-3-Clause
"""What ``weft bench send-recv`` prints: the lines that ucx-py's and UCXX's print, by the same names, and the lanes."""

from __future__ import annotations

import argparse
import os
import statistics
from typing import Any

from weft.bench.send_recv.loops import Parameters, Result
from weft.compat._core.printing import format_bytes

_WIDTH, _KEY = 80, 26


def record(args: argparse.Namespace, parameters: Parameters, result: Result) -> dict[str, Any]:
    """Return what ``--json`` writes; ``seconds`` are those of the round trips, without the first ones that warm up."""
    return {
        "command": "weft bench send-recv",
        "backend": args.backend,
        "object_type": args.object_type,
        "reuse_alloc": args.reuse_alloc,
        "over": parameters.over,
        "api": parameters.api,
        "nbytes": parameters.nbytes,
        "buffers": parameters.buffers,
        "lanes": list(result.lanes),
        "seconds": list(result.seconds[args.n_warmup_iter :]),
    }


def show(args: argparse.Namespace, parameters: Parameters, result: Result) -> None:
    """Print the report of what `args` asked for."""
    seconds = result.seconds[args.n_warmup_iter :]
    moved = 2 * parameters.nbytes * parameters.buffers

    def line(key: object, value: object) -> None:
        print(f"{key!s:<{_KEY}}| {value}")

    def rate(time_s: float) -> str:
        return f"{format_bytes(moved / time_s)}/s"

    mean, middle = statistics.fmean(seconds), statistics.median(seconds)
    print("Roundtrip benchmark")
    print("=" * _WIDTH)
    line("Iterations", args.n_iter)
    line("Bytes", format_bytes(parameters.nbytes))
    if parameters.buffers > 1:
        line("Number of buffers", parameters.buffers)
    line("Object type", args.object_type)
    line("Reuse allocation", args.reuse_alloc)
    line("Backend", args.backend)
    if parameters.over == "weft":
        line("Transfer API", parameters.api.upper())
        line("UCX_TLS", os.environ.get("UCX_TLS", "weft's default"))
        line("UCX_NET_DEVICES", os.environ.get("UCX_NET_DEVICES", "all"))
    line("Lanes", ", ".join(result.lanes))
    print("=" * _WIDTH)
    if args.object_type == "numpy":
        line("Device(s)", "CPU-only")
        for name, core in (("Server CPU", args.server_cpu_affinity), ("Client CPU", args.client_cpu_affinity)):
            line(name, core if core >= 0 else "affinity not set")
    else:
        line("Device(s)", f"{args.server_dev}, {args.client_dev}")
    print("=" * _WIDTH)
    line("Bandwidth (average)", rate(mean))
    line("Bandwidth (median)", rate(middle))
    line("Latency (average)", f"{1e9 * mean / 2:.0f} ns")
    line("Latency (median)", f"{1e9 * middle / 2:.0f} ns")
    if args.no_detailed_report:
        return
    print("=" * _WIDTH)
    line("Iterations", "Bandwidth, Latency")
    print("-" * _WIDTH)
    for i, each in enumerate(seconds):
        line(i, f"{rate(each)}, {1e9 * each / 2:.0f}ns")
