# SPDX-License-Identifier: BSD-3-Clause
"""The command as a shell sees it."""

import os
import subprocess
import sys

import pytest

import weft
from weft import _cli


@pytest.mark.parametrize(
    "arguments", [["info"], ["info", "--json"], ["topo"], ["topo", "--json"], ["topo", "--plan"], ["doctor"]]
)
def test_a_reader_that_has_seen_enough(arguments):
    command = [sys.executable, "-m", "weft", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait(100) == 141
    assert "Traceback" not in said


@pytest.mark.parametrize("arguments", [["info"], ["topo", "--plan"], ["doctor"], ["bench", "peers", "--help"]])
def test_a_user_without_a_home(arguments):
    """As in a container that runs with any number as its user."""
    code = """
import pwd, sys
def unknown(uid): raise KeyError(uid)
pwd.getpwuid = unknown
from weft._cli import main
sys.exit(main(sys.argv[1:]))
"""
    environment = {name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_CACHE_HOME")}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=100)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.stdout


def test_info_tells_settings_of_the_environment_too():
    environment = {**os.environ, "UCX_RNDV_THRESH": "1m", "UCX_TLS": "tcp,self"}
    command = [sys.executable, "-m", "weft", "info"]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=100).stdout
    assert {"UCX_RNDV_THRESH=1m (environment)", "UCX_TLS=tcp,self (environment)"} <= {*said.splitlines()}


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(("stdout", "why"), [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")])
@pytest.mark.parametrize("command", ["info", "topo", "--help", "--version"])
def test_output_that_cannot_be_written(command, stdout, why, unbuffered):
    shell = f'exec "{sys.executable}" -m weft {command} {stdout}'
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(
        shell, shell=True, env=environment, stderr=subprocess.PIPE, text=True, check=False, timeout=100
    )
    assert (
        done.stderr
        == f"weft{'' if command.startswith('-') else f' {command}'}: cannot write to standard output: {why}\n"
    )
    assert done.returncode == 1


def test_a_usage_error_without_standard_output():
    shell = f'exec "{sys.executable}" -m weft topo --no-such-option >&-'
    done = subprocess.run(shell, shell=True, stderr=subprocess.PIPE, check=False, timeout=100)
    assert done.returncode == 2


def test_help_without_docstrings():
    done = subprocess.run([sys.executable, "-OO", "-m", "weft", "--help"], capture_output=True, text=True, check=True)
    assert str(weft.__doc__).splitlines()[0] in done.stdout


def test_other_errors_of_the_system_keep_their_traceback(monkeypatch):
    def fail(args):
        raise OSError("mine")

    monkeypatch.setattr(_cli, "_info", fail)
    with pytest.raises(OSError, match="mine"):
        _cli.main(["info"])


def test_ctrl_c_while_the_commands_are_imported(monkeypatch, capsys):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(_cli, "parser", interrupted)
    assert _cli.main(["info"]) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_explain_where_the_output_is_ascii():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "weft", "explain"]
    done = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    assert b"one way" in done.stdout
