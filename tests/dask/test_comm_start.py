# SPDX-License-Identifier: BSD-3-Clause
"""What a worker imports when it starts, and what it leaves alone."""

import subprocess
import sys

import pytest

pytest.importorskip("distributed")

_IMPORTED = """
import sys
print(*(name for name in {names} if name in sys.modules))
"""
_WORKER = """
import asyncio
from distributed import Scheduler, Worker

async def main():
    async with Scheduler(protocol="{protocol}", host="127.0.0.1", dashboard_address=":0") as scheduler:
        async with Worker(scheduler.address, dashboard=False):
            pass

asyncio.run(main())
"""


def _loaded(code: str, *names: str) -> list[str]:
    """Run `code` in a new process, and return which modules of `names` it has imported."""
    script = code + _IMPORTED.format(names=names)
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return ran.stdout.split()


def test_a_worker_leaves_the_schedulers_part_alone() -> None:
    parts = ("dask.learn.fanout", "dask.learn.collect", "dask.learn.placing", "dask.learn.roots", "links.store")
    names = [f"weft.{part}" for part in parts]
    assert _loaded("import weft.dask\nfrom weft.dask.learn import fanout, fetch", *names) == names[:1]


def test_a_worker_has_numpys_serializers_before_its_first_array() -> None:
    late = ("distributed.protocol.numpy", "numpy.ma")
    assert _loaded(_WORKER.format(protocol="tcp"), *late) == []  # as Dask has it
    assert _loaded(_WORKER.format(protocol="ucx"), *late) == list(late)


def test_a_comm_does_not_import_the_model_of_machines() -> None:
    assert _loaded("import weft.dask.comm", "weft.topo.sysfs", "weft.topo.model") == ["weft.topo.sysfs"]
