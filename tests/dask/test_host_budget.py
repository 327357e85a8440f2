# SPDX-License-Identifier: BSD-3-Clause
"""Workers of one nanny process share a budget of idle memory."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from distributed import Client
from tests.dask.clusters import local_cluster

from weft.dask.memory import host_budget


def budgets() -> list[str]:
    """Return the inodes of the budgets that this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line.split()[4] for line in lines if "weft-host-budget" in line]


def test_workers_of_one_process_share_a_budget() -> None:
    with local_cluster() as cluster, Client(cluster) as client:
        first, second = client.run(budgets).values()
    assert len(first) == 1
    assert first == second


@pytest.mark.parametrize("path", ["", "/proc/0/fd/3", "/", os.devnull])
def test_a_budget_that_cannot_be_opened_is_none(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_HOST_BUDGET", path)
    assert not host_budget.join()


def test_a_file_that_is_no_budget_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "file").open("w+b") as file:
        monkeypatch.setenv("WEFT_HOST_BUDGET", f"/proc/{os.getpid()}/fd/{file.fileno()}")
        assert not host_budget.join()
        assert os.fstat(file.fileno()).st_size == 0


def test_a_process_offers_one_budget_to_all_its_workers() -> None:
    nannies = [SimpleNamespace(env={}) for _ in range(3)]
    before = len(os.listdir("/proc/self/fd"))
    for nanny in nannies:
        host_budget.offer(cast("Any", nanny))
    assert len({nanny.env["WEFT_HOST_BUDGET"] for nanny in nannies}) == 1
    assert len(os.listdir("/proc/self/fd")) <= before + 1
