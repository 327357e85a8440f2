# SPDX-License-Identifier: BSD-3-Clause
"""The progress bar of a benchmark."""

import pytest

from weft.bench.common.rounds import progress


@pytest.mark.parametrize(("terminal", "color"), [(False, "auto"), (False, "always"), (True, "auto"), (True, "never")])
def test_progress_is_for_a_terminal_and_coloured_as_asked_for(terminal, color, capsys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1") if terminal else monkeypatch.delenv("FORCE_COLOR", raising=False)
    with progress("all of it", 2, color) as step:
        step("one half")
        step("the other")
    said = capsys.readouterr().err
    assert ("one half" in said) is terminal
    assert ("\x1b[3" in said) is (terminal and color != "never")
    if not terminal:
        assert said == ""
