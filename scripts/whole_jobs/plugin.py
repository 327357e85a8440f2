# SPDX-License-Identifier: BSD-3-Clause
"""A pytest plugin: Coiled's benchmark functions get a cluster on this machine, and are measured.

Loaded into the pytest of one run, which ``run`` starts. Coiled's ``conftest.py`` and modules stay as they are. Of what
they import, the clients of clouds and databases are replaced by stand-ins that do nothing, and of their fixtures those
that start clusters and clients.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from weft.bench.dask import clusters
from whole_jobs import asked, counters, days, results

#: Imported by Coiled's modules, and not needed here.
STAND_INS = ("adlfs", "benchmark_schema", "boto3", "botocore", "botocore.session", "coiled", "dotenv", "filelock")
STAND_INS += ("gcsfs", "s3fs", "sqlalchemy", "sqlalchemy.orm")
#: Coiled's fixtures that start clusters, and those that are clients of them.
CLUSTERS = ("small_cluster", "spill_cluster", "cluster", "cluster_spec")
#: Coiled's fixtures that say where TPC-H's tables are, and how large, have ours in their place, too.
CLIENTS = ("small_client", "spill_client", "client")

#: Imported in the workers before anything is measured.
IMPORTED = ("dask.array", "dask.dataframe", "pyarrow.compute", "pyarrow.dataset", "pyarrow.parquet")
IMPORTED += ("distributed.shuffle",)


class Measured:
    """One run from within: the cluster, and the clock and the counters around each function."""

    def __init__(self) -> None:
        self.asked = asked.heard()
        self.client: Any = None
        self.found: dict[str, dict[str, Any]] = {}
        self._cluster = contextlib.ExitStack()
        self._killer: Any = None
        self._results = results.Results(check=self.asked.check)
        self._before: tuple[dict[str, Any], dict[str, float]] = {}, {}
        self._begin_s = 0.0

    def watch(self, module: Any) -> None:
        """Watch what functions that are imported from now on wait for; `module` has what they share."""
        self._results.watch()
        self._results.watch_devnull(module)
        if self.asked.day == days.HALF:  # they size their data by what they would have on another day
            module.cluster_memory = lambda client: self.asked.memory_nbytes

    def start(self, **_: Any) -> Any:
        """Stand in for a fixture that is a client: that of the run's one cluster."""
        if self.client is None:
            self.client = self._cluster.enter_context(self._started())
        return self.client

    def stop(self) -> None:
        """Stop the cluster."""
        self._cluster.close()

    @contextlib.contextmanager
    def _started(self) -> Generator[Any]:
        from distributed import Client

        a, inside = self.asked, self.asked.protocol == clusters.INSIDE
        each = (a.memory_nbytes if inside else a.memory_nbytes // a.workers) // (2 if a.day == days.HALF else 1)
        deployment = clusters.Deployment(workers=a.workers, threads=a.threads, memory_nbytes=each)
        with clusters.on_cpus(deployment, a.protocol, a.timeout_s) as cluster, Client(cluster) as client:
            client.wait_for_workers(1 if inside else a.workers, timeout=a.timeout_s)
            client.run(warm)
            self._killer = days.Killer(cluster, 0 if inside else a.kill_after)
            if a.check:
                cluster.scheduler.add_plugin(self._killer)
            yield client

    def begin(self) -> None:
        """Note where the counters and the clock stand."""
        results.seed()
        self._results.forget()
        self._before = self.client.run(counters.read), counters.read()
        self._begin_s = time.monotonic()

    def end(self, node: str) -> None:
        """Note what the function took."""
        end_s, looked = time.monotonic(), self._results
        workers, here = self.client.run(counters.read), counters.read()
        before, here_before = self._before
        if before.keys() != workers.keys() and not self.asked.check:  # the results of a check are right all the same
            raise RuntimeError("a worker died, and another took its place")
        self.found[node] = {
            "wall_s": end_s - self._begin_s - looked.seconds,
            "checking_s": looked.seconds,
            "begin_s": self._begin_s,
            "end_s": end_s,
            "workers": counters.added({w: counters.grown(before.get(w, {}), workers[w]) for w in workers}),
            "client_and_scheduler": counters.grown(here_before, here),
            "checksums": looked.checksums,
            "unchecked": looked.unchecked,
        }
        if self.asked.check:
            self.found[node] |= {
                **days.held(self.client),
                "ended_tasks": self._killer.ended,
                "killed": self._killer.killed,
            }


def warm() -> None:
    """Import what the functions' tasks will; runs in the worker.

    The process of client and scheduler has done so already, and ``inproc`` has no other: what seconds of importing in
    each worker cost would look like the price of moving data.
    """
    for name in IMPORTED:
        importlib.import_module(name)


_RUNS = pytest.StashKey[Measured]()


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Put the stand-ins where Coiled's ``conftest.py`` finds them."""
    for name in STAND_INS:
        sys.modules.setdefault(name, MagicMock())


def pytest_configure(config: pytest.Config) -> None:
    """Watch what is imported from now on."""
    if config.option.collectonly:
        return
    from tests import utils_test  # Coiled's

    config.stash[_RUNS] = Measured()
    config.stash[_RUNS].watch(utils_test)


@pytest.fixture(scope="session")
def testrun_uid() -> str:
    """Stand in for pytest-xdist's."""
    return "here"


@pytest.fixture(scope="session")
def worker_id() -> str:
    """Stand in for pytest-xdist's."""
    return "master"


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: Any, request: pytest.FixtureRequest) -> None:
    """Put ours in place of the fixtures that start clusters and clients."""
    if fixturedef.argname in CLUSTERS:
        fixturedef.func = lambda **_: MagicMock()
    elif fixturedef.argname in CLIENTS and fixturedef.argnames:
        fixturedef.func = request.config.stash[_RUNS].start
    elif fixturedef.argname == "dataset_path":
        fixturedef.func = lambda **_: f"file://{request.config.stash[_RUNS].asked.tpch}/"
    elif fixturedef.argname == "scale":
        fixturedef.func = lambda **_: request.config.stash[_RUNS].asked.scale


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Measure the function."""
    run = pyfuncitem.config.stash[_RUNS]
    run.begin()
    result = yield
    run.end(pyfuncitem.nodeid)
    return result


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write what was found."""
    run = session.config.stash.get(_RUNS, None)
    if run is not None:
        Path(run.asked.outcome).write_text(json.dumps(run.found))
        run.stop()
