# SPDX-License-Identifier: BSD-3-Clause
"""The soak: that a few cycles run, and that its verdict sees growth. ``scripts/soak.py --count`` runs many."""

import asyncio
import contextlib
import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scripts import soak

import weft

ROOT = Path(__file__).parents[1]
CYCLES = int(os.environ.get("WEFT_TEST_SOAK", "16"))


def test_cycles_leave_nothing(capsys):
    seen = soak.soak(soak.cycles, CYCLES, marks=4)
    said = capsys.readouterr().out
    assert len(seen) == 4
    assert soak.verdict(seen) == [], said
    assert said.count("cycles") == 4


def test_handovers_leave_nothing():
    # in a process of its own: the memory of one that has run thousands of tests varies by more than the limit
    program = "from scripts import soak; seen = soak.soak(soak.handovers, 200, marks=4); print(soak.verdict(seen))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=os.environ | {"PYTHONPATH": "scripts"}, capture_output=True
    )
    said = done.stdout.decode()
    assert done.returncode == 0, done.stderr.decode()
    assert said.splitlines()[-1] == "[]", said
    assert said.count("handovers") == 4


def keep_the_last(to_parent):
    """Serve as ``soak.serve``, but hold what the fourth connection lends until after its end."""
    connections = itertools.count(1)

    async def take(peer):
        lent = []
        with contextlib.suppress(weft.PeerClosedError):
            lent.append(await peer.recv())
            if next(connections) < 4:
                lent.clear()
            await peer.recv()
        asyncio.get_running_loop().call_later(0.2, lent.clear)

    async def main():
        async with weft.listen("127.0.0.1:0", take) as listener:
            to_parent.send(listener.address)
            await asyncio.to_thread(to_parent.poll, None)

    asyncio.run(main())


def lend_one(address, numbers):
    async def main():
        async with weft.connect(address) as peer:
            await peer.lend(array)

    with weft.arrays_in_pool():
        array = np.zeros(1 << 20, "u1")
    asyncio.run(main())


def test_what_comes_back_after_the_end_is_not_left(monkeypatch, capsys):
    """The lender's socket of the connection stays until its next operation."""
    monkeypatch.setattr(soak, "serve", keep_the_last)
    seen = soak.soak(lend_one, 4, marks=4)
    assert soak.verdict(seen) == [], capsys.readouterr().out


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (soak.Held(11, 100, 5000, 4000), "10 to 11 descriptors"),
        (soak.Held(10, 120, 5000, 4000), "100 to 120 mappings"),
        (soak.Held(10, 100, 6500, 4000), "resident_kib 5000 to 6500"),
        (soak.Held(10, 100, 5000, 12000), "shared_kib 4000 to 12000"),
    ],
)
def test_growth_is_seen(last, said):
    flat = soak.Held(10, 100, 5000, 4000)
    assert soak.verdict([(flat, flat)] * 8) == []
    assert soak.verdict([(flat._replace(descriptors=9 + i % 2), flat) for i in range(8)]) == []
    assert soak.verdict([(flat, flat)] * 8 + [(flat._replace(shared_kib=4000 + 3072), flat)]) == []
    assert soak.verdict([(flat, flat)] * 8 + [(last, flat)]) == [f"connector: {said}"]
    assert soak.verdict([(flat, flat)] * 8 + [(flat, last)]) == [f"listener: {said}"]
