# SPDX-License-Identifier: BSD-3-Clause
"""Who raises the limit of open files, each in a process of its own that begins with a soft limit below the hard one."""

import logging
import resource
import subprocess
import sys

import pytest

from weft import _open_files

#: Prints the limits at the end, of the process itself or of one that it starts.
LIMITS = "import resource; print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
SOFT, HARD = 200, 300


def limits_after(code):
    """Run `code` with a soft limit of 200 open files and a hard one of 300; return both as they are at the end."""
    begin = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({SOFT}, {HARD}))\n"
    command = [sys.executable, "-c", f"{begin}{code}\n{LIMITS}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100)
    return tuple(map(int, done.stdout.split()[-2:]))


def test_it_is_raised_to_the_hard_one():
    assert limits_after("from weft import _open_files; _open_files.raise_limit()") == (HARD, HARD)


def test_a_child_inherits_it():
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {LIMITS!r}], check=True)"
    told = limits_after(f"from weft import _open_files; _open_files.raise_limit(); {start}; sys.exit()")
    assert told == (HARD, HARD)


@pytest.mark.parametrize("module", ["weft", "weft.dask", "weft._cli", "weft.worker.nannies", "weft.bench.dask.rounds"])
def test_importing_leaves_it(module):
    assert limits_after(f"import {module}") == (SOFT, HARD)


def test_a_refusal_is_told_and_borne(monkeypatch, caplog):
    def refuse(*_):
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (SOFT, HARD))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    with caplog.at_level(logging.INFO, "weft"):
        _open_files.raise_limit()
    assert caplog.messages == [f"the limit of open files stays {SOFT}: not allowed to raise maximum limit"]


def test_nothing_is_asked_for_where_it_is_the_hard_one(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (HARD, HARD))
    monkeypatch.delattr(resource, "setrlimit")
    _open_files.raise_limit()


def test_weft_worker_raises_it_and_its_plan_does_not():
    run = """
from weft import _cli
from weft.worker import nannies
nannies.run = lambda options: 0
assert _cli.main(["worker", "tcp://127.0.0.1:1", "--workers", "1"{}]) == 0
"""
    assert limits_after(run.format("")) == (HARD, HARD)
    assert limits_after(run.format(', "--plan"')) == (SOFT, HARD)


def test_a_topology_cluster_raises_it():
    make = """
import asyncio
from weft.dask import TopologyCluster

async def main():
    await TopologyCluster(asynchronous=True, dashboard_address=None, n_workers=1).close()

asyncio.run(main())
"""
    assert limits_after(make) == (HARD, HARD)


def test_the_demo_and_its_kin_raise_it():
    assert limits_after("from weft.bench.dask import rounds; rounds.reported('weft demo', lambda: 0)") == (HARD, HARD)
