# SPDX-License-Identifier: BSD-3-Clause
"""The soak: that a few cycles run, and that its verdict sees growth. ``scripts/soak.py --count`` runs many."""

import os

import pytest
from scripts import soak

CYCLES = int(os.environ.get("WEFT_TEST_SOAK", "16"))


def test_cycles_leave_nothing(capsys):
    seen = soak.soak(soak.cycles, CYCLES, marks=4)
    assert len(seen) == 4
    assert soak.verdict(seen) == []
    assert capsys.readouterr().out.count("cycles") == 4


def test_handovers_leave_nothing(capsys):
    seen = soak.soak(soak.handovers, 200, marks=4)
    assert soak.verdict(seen) == []
    assert capsys.readouterr().out.count("handovers") == 4


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (soak.Held(11, 100, 5000), "10 to 11 descriptors"),
        (soak.Held(10, 120, 5000), "100 to 120 mappings"),
        (soak.Held(10, 100, 9000), "5000 to 9000 KiB"),
    ],
)
def test_growth_is_seen(last, said):
    flat = soak.Held(10, 100, 5000)
    assert soak.verdict([(flat, flat)] * 8) == []
    assert soak.verdict([(flat._replace(descriptors=9 + i % 2), flat) for i in range(8)]) == []
    assert soak.verdict([(flat, flat)] * 8 + [(last, flat)]) == [f"connector: {said}"]
    assert soak.verdict([(flat, flat)] * 8 + [(flat, last)]) == [f"listener: {said}"]
