# SPDX-License-Identifier: BSD-3-Clause
"""Options, and what they come to; the scripts have tests of their own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from weft import _cli as cli

AZURE = ["azure", "--package", "weft.whl"]


def printed(capsys, *arguments):
    assert cli.main(["deploy", *arguments]) == 0
    return capsys.readouterr().out


def test_slurm(capsys):
    options = "--nodes 3 --cpus 4 --gpus 2 --mem 8G --time 10:00 --partition p --account a --job-name j --folder /f"
    cluster = "--protocol tcp,ucx --interface ib0 --per l3 --workers 2 --threads 1 --memory-limit 1GiB --python /py"
    more = ["--sbatch=-C ib", "--env", "A=b c", "--setup", "module load x", "--setup", "cd y"]
    said = printed(capsys, "slurm", *options.split(), *cluster.split(), *more, "--", "python", "x.py", "--nodes", "9")
    assert said.splitlines()[:23] == [
        "#!/bin/bash",
        "#SBATCH --job-name=j",
        "#SBATCH --nodes=3",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --cpus-per-task=4",
        "#SBATCH --gpus-per-node=2",
        "#SBATCH --mem=8G",
        "#SBATCH --time=10:00",
        "#SBATCH --partition=p",
        "#SBATCH --account=a",
        "#SBATCH -C ib",
        "",
        "module load x",
        "cd y",
        "export A='b c'",
        "python=/py",
        "protocols=(tcp ucx)",
        "placing=(--per l3 --workers 2 --threads 1 --memory-limit 1GiB)",
        "interface=(--interface ib0)",
        "step=(--cpus-per-task=4 --cpu-bind=cores)",
        "program=(python x.py --nodes 9)",
        "folder=/f/weft-$SLURM_JOB_ID",
        "",
    ]


def test_ssh(capsys):
    said = printed(capsys, "ssh", "--hosts", "a,u@b", "--address", "ib-a", "--port", "90", "--ssh=-p", "--ssh=22", "ls")
    assert said.splitlines()[1:7] == [
        f"python={sys.executable}  # of this machine",
        "hosts=(a u@b)",
        "options=(-p 22)",
        "addresses=(ucx://ib-a:90)",
        "program=(ls)",
        "",
    ]


def test_azure(capsys):
    said = printed(capsys, *AZURE, "--ssh-from", "203.0.113.7", "--size", "Standard_ND96asr_v4", "--count", "3")
    assert "\nsize=Standard_ND96asr_v4\n" in said
    assert "\ncount=3\n" in said
    only = printed(capsys, *AZURE, "--cloud-init", "--drivers", "inbox", "--nvidia-driver", "590")
    assert only.startswith("#cloud-config\n")
    assert "\n      nvidia_driver=590\n" in only


def test_the_page_shows_what_is_printed(capsys, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/home/me/env/bin/python")
    page = (Path(__file__).parents[2] / "docs/deploy.md").read_text()
    shown = re.findall(r"^\$ weft (deploy .*)\n(#!/bin/bash\n(?:.*\n)*?)\.\.\.\n", page, flags=re.MULTILINE)
    assert len(shown) == 2
    for command, text in shown:
        assert printed(capsys, *command.split()[1:]).startswith(text), command


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["slurm", "--partition", "a\nb"], "--partition 'a\\nb': a control character"),
        (["slurm", "--sbatch", "x"], "--sbatch 'x': write an option of sbatch"),
        (["slurm", "--env", "x"], "--env 'x': write NAME=VALUE"),
        (["slurm", "--", "\udcff"], "deploy slurm: an option is not UTF-8"),
        (["ssh", "--hosts", "a"], "give the scheduler's host, then at least one for workers"),
        (["ssh", "--hosts", "a,b c"], "--hosts 'b c': not a host"),
        (["ssh", "--hosts", "a,b", "--protocol", "tcp,ucx", "--port", "65534"], "needs 65536; choose a lower one"),
        (["slurm", "--per", "socket"], "plan per 'socket': write gpu, numa, l3 or a number of cores"),
        (["slurm", "--memory-limit", "much"], "memory limit 'much': write a size"),
        (["slurm", "--python", ""], "--python is empty"),
        (["slurm", "--interface="], "--interface is empty"),
        ([*AZURE, "--ssh-from", "203.0.113.7", "--subnet", "x"], "give --ssh-from or --subnet, not both"),
        (AZURE, "give --ssh-from ADDRESS, or --subnet ID"),
    ],
)
def test_errors_are_one_line(arguments, why, capsys):
    assert cli.main(["deploy", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert why in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["slurm", "--nodes", "0"],
        ["slurm", "--workers", "0"],
        ["slurm", "--threads", "two"],
        ["slurm", "--protocol", "ucx,ucx"],
        ["slurm", "--protocol", "../x"],
        ["ssh"],
        ["ssh", "--hosts", "a,b", "--port", "99999"],
        ["slurm", "--nodes", "9" * 20],
        ["azure"],
        [*AZURE, "--drivers", "x"],
    ],
)
def test_usage(arguments):
    with pytest.raises(SystemExit):
        cli.main(["deploy", *arguments])


def test_a_package_without_a_name(capsys):
    assert cli.main(["deploy", "azure", "--package", "", "--cloud-init"]) == 2
    assert "--package is empty" in capsys.readouterr().err


def test_a_script_is_utf_8_in_any_locale():
    command = [sys.executable, "-m", "weft", "deploy", "slurm", "--job-name", "größe"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=100)
    assert "größe".encode() in done.stdout
