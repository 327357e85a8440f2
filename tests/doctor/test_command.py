# SPDX-License-Identifier: BSD-3-Clause
import io
import json

import pytest
from rich.console import Console
from tests.machines import hosts

from weft import _cli as cli
from weft.doctor import draw, here
from weft.doctor.checks import examine
from weft.doctor.finding import Level, exit_code


@pytest.fixture
def nd40(tmp_path, monkeypatch):
    made = hosts.nd40(tmp_path)
    monkeypatch.setattr(here, "read", lambda **_: made)
    return made


def test_lines_where_nobody_looks(nd40, capsys):
    assert cli.main(["doctor"]) == 1
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert "\x1b" not in out
    assert "error    GPU driver         8 NVIDIA GPUs on the PCI bus, and no driver is loaded" in lines
    assert "         source: guide: NVIDIA drivers" in lines
    assert lines[-1] == "2 errors, 3 warnings, 3 notes, 22 ok, 3 n/a"
    assert [sum(line.startswith(level) for line in lines) for level in ("ok ", "n/a ")] == [22, 0]
    assert "/sys/devices/system/node: one node" not in out
    assert cli.main(["doctor", "-v"]) == 1
    all_lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("n/a ") for line in all_lines) == 3
    assert len(all_lines) > len(lines) + 20


def test_json(nd40, capsys):
    assert cli.main(["doctor", "--json", "--port", "8786"]) == 1
    made = json.loads(capsys.readouterr().out)
    assert made["exit"] == 1
    by_name = {finding["check"]: finding for finding in made["findings"]}
    assert len(by_name) == 34
    assert by_name["port"]["level"] == "note"  # no packet filter's tool is there to ask
    assert by_name["locked memory"]["remedy"].startswith("echo '* - memlock unlimited'")


def test_a_table_on_a_narrow_terminal(nd40, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    console = Console(width=80, file=io.StringIO(), highlight=False, markup=False)
    console.print(draw.table(examine(nd40), verbose=True))
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "\N{HORIZONTAL ELLIPSIS}" not in console.file.getvalue()


@pytest.mark.parametrize(
    ("levels", "code"),
    [
        ([], 0),
        ([Level.OK], 0),
        ([Level.NOTE, Level.OK], 0),
        ([Level.WARNING], 1),
        ([Level.ERROR, Level.WARNING], 1),
        ([Level.NOT_APPLICABLE], 0),
    ],
)
def test_exit_code(levels, code):
    assert exit_code(levels) == code


@pytest.mark.parametrize("port", ["0", "65536", "x", "9" * 5000])
def test_ports_that_are_none(port):
    with pytest.raises(SystemExit):
        cli.main(["doctor", "--port", port])


@pytest.mark.parametrize("option", ["--listen", "--pair"])
def test_a_variable_that_the_shell_leaves_empty_is_no_address(option, capsys):
    with pytest.raises(SystemExit):
        cli.main(["doctor", option, ""])
    assert capsys.readouterr().err.endswith("is empty\n")
