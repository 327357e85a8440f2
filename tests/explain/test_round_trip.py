# SPDX-License-Identifier: BSD-3-Clause
import os
import subprocess
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


def test_a_child_gets_no_ctrl_c_of_the_terminal(monkeypatch, tmp_path):
    listening = tmp_path / "python"
    listening.write_text("#!/bin/sh\necho $$\nexec sleep 100\n")
    listening.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(listening))
    with pytest.raises(KeyboardInterrupt), round_trip.child() as address:
        assert os.getpgid(int(address)) == int(address) != os.getpgid(0)
        raise KeyboardInterrupt
    with pytest.raises(ProcessLookupError):
        os.kill(int(address), 0)


@pytest.mark.slow
def test_a_child_whose_parent_was_interrupted_says_nothing():
    command = [sys.executable, "-m", "weft.explain.round_trip"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        child.stdout.close()
        try:
            said = child.communicate(timeout=100)[1]
        finally:
            child.kill()
    assert (child.returncode, said) == (1, "")
