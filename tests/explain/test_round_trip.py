# SPDX-License-Identifier: BSD-3-Clause
import sys

import pytest

import weft
from weft.explain import round_trip


def test_a_child_that_says_nothing(monkeypatch, tmp_path):
    silent = tmp_path / "python"
    silent.write_text("#!/bin/sh\nexec sleep 100\n")
    silent.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(silent))
    monkeypatch.setattr(round_trip, "_PATIENCE_S", 0.2)
    with pytest.raises(weft.TimedOutError, match="did not listen within"), round_trip.child():
        pass


def test_a_child_that_ends_at_once(monkeypatch, tmp_path):
    ended = tmp_path / "python"
    ended.write_text("#!/bin/sh\nexit 3\n")
    ended.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(ended))
    with pytest.raises(weft.UnreachableError, match="exited at once, with status 3"), round_trip.child():
        pass
