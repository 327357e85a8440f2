# SPDX-License-Identifier: BSD-3-Clause
"""Clusters over ``ucx://`` for the tests that need one, and who works in them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from distributed import Client, LocalCluster

#: A bound of what hangs: Dask's processes take half a minute to start on a machine that is busy.
TIMEOUT_S = 100


@contextlib.contextmanager
def local_cluster(**kwargs: Any) -> Iterator[LocalCluster]:
    options: dict[str, Any] = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with LocalCluster(protocol="ucx", **(options | kwargs)) as cluster:
        yield cluster


def workers_of(client: Client) -> list[str]:
    # Not client.scheduler_info(): it answers from a cache that the client refreshes without workers every two seconds.
    return sorted(client.nthreads())
