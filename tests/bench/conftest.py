# SPDX-License-Identifier: BSD-3-Clause
"""A sweep's record from known rounds, and what no benchmark may leave behind."""

import os

import psutil
import pytest

from weft.bench.pingpong import command as pingpong
from weft.bench.sweep import command as sweep


@pytest.fixture
def nothing_left(monkeypatch):
    """Whatever happens, no child survives and this process may run where it could before."""
    for module in (pingpong, sweep):
        monkeypatch.setattr(module, "LIMIT_S", 200.0)  # a pair is slow, not hanging, on a busy machine
    cores = os.sched_getaffinity(0)
    before = psutil.Process().children()
    yield
    assert set(psutil.Process().children()) <= set(before)  # what an earlier test left may have ended meanwhile
    assert os.sched_getaffinity(0) == cores


@pytest.fixture
def swept():
    """Two sizes over two transports, both ways to wait, two rounds of known times; cma is missing."""
    records = []
    for transport, us in (("posix", 1.0), ("tcp", 10.0)):
        for wait in ("block", "await"):
            line = sweep.Line(transport, wait, "reused")
            for measure in ("latency", "bandwidth", "bibandwidth"):
                for nbytes in (8, 4096):
                    rounds = [sweep.Taken(transport, [k * us * 1e-6] * 3) for k in (1.0, 1.5)]
                    records.append(sweep.entry(sweep.Cell(line, measure, nbytes), rounds, 64))
    return {
        "command": "weft bench sweep",
        "quick": False,
        "measures": ["latency", "bandwidth", "bibandwidth", "rate"],
        "rounds": 2,
        "seconds_per_cell": 0.1,
        "records": records,
        "missing": [
            {"transport": "cma", "wait": wait, "memory": "reused", "reason": "UCX takes <posix> instead"}
            for wait in ("block", "await")
        ],
        "cells_left_out": 0,
        "environment": {
            "cpu_model": "a <CPU> & more",
            "cores_usable": 2,
            "load_average": [0.1, 0.1, 0.1],
            "date_utc": "2026-01-02T03:04:05+00:00",
            "weft": "0.1.0",
            "ucx": {"version": "1.22.0", "origin": "wheel"},
        },
    }
