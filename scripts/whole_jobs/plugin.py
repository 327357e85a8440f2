# SPDX-License-Identifier: BSD-3-Clause
"""A pytest plugin: Coiled's benchmark functions get a cluster on this machine, and are measured.

Loaded into the pytest of one run, which ``run`` starts. Coiled's ``conftest.py`` and modules stay as they are. Of what
they import, the clients of clouds and databases are replaced by stand-ins that do nothing, and of their fixtures those
that start clusters and clients.
"""

from __future__ import annotations

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
from whole_jobs import asked, counters, results

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
    """One run from within: the cluster, the clock and the counters around the function."""

    def __init__(self) -> None:
        self.asked = asked.heard()
        self.results = results.Results(check=self.asked.check)
        self.client: Any = None
        self.found: dict[str, Any] = {}
        self._before: tuple[dict[str, Any], dict[str, float]] = {}, {}

    def start(self, **_: Any) -> Generator[Any]:
        """Stand in for a fixture that is a client: a fresh cluster's."""
        from distributed import Client

        a, inside = self.asked, self.asked.protocol == clusters.INSIDE
        each = a.memory_nbytes if inside else a.memory_nbytes // a.workers
        deployment = clusters.Deployment(workers=a.workers, threads=a.threads, memory_nbytes=each)
        begin = time.perf_counter()
        with clusters.on_cpus(deployment, a.protocol, a.timeout_s) as cluster, Client(cluster) as client:
            client.wait_for_workers(1 if inside else a.workers, timeout=a.timeout_s)
            self.found["start_s"] = time.perf_counter() - begin
            client.run(warm)
            self.client = client
            try:
                yield client
            finally:
                self.client = None

    def begin(self) -> None:
        """Note where the counters and the clock stand."""
        results.seed()
        self._before = self.client.run(counters.read), counters.read()
        self.found["begin_s"] = time.monotonic()

    def end(self) -> None:
        """Note what the function took."""
        end_s, seconds = time.monotonic(), self.results.seconds
        workers, here = self.client.run(counters.read), counters.read()
        before, here_before = self._before
        if before.keys() != workers.keys() and not self.asked.check:  # the results of a check are right all the same
            raise RuntimeError("a worker died, and another took its place")
        self.found |= {
            "wall_s": end_s - self.found["begin_s"] - seconds,
            "checking_s": seconds,
            "end_s": end_s,
            "workers": counters.added({w: counters.grown(before.get(w, {}), workers[w]) for w in workers}),
            "client_and_scheduler": counters.grown(here_before, here),
            "checksums": self.results.checksums,
            "unchecked": self.results.unchecked,
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

    run = config.stash[_RUNS] = Measured()
    run.results.watch()
    run.results.watch_devnull(utils_test)


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
    run.end()
    return result


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write what was found."""
    run = session.config.stash.get(_RUNS, None)
    if run is not None:
        Path(run.asked.outcome).write_text(json.dumps(run.found))
