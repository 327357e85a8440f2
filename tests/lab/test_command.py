# SPDX-License-Identifier: BSD-3-Clause
"""``weft lab`` where there is no lab to be had, and what it makes of its arguments."""

import pytest

from weft import _cli as cli
from weft.lab import command
from weft.lab import lab as labs

FILE = "[hosts.a]\n"


@pytest.mark.parametrize("arguments", [[], ["x.toml"], ["x.toml", "--"], ["x.toml", "--on", "a"]])
def test_a_file_and_a_command_are_needed(arguments, capsys):
    assert cli.main(["lab", *arguments]) == 2
    assert "no file or no command" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--clean", "--no-such", "-x"])
def test_options_after_the_file_are_not_a_command(option, capsys):
    assert cli.main(["lab", "x.toml", option]) == 2
    assert f"{option} after the file is no option" in capsys.readouterr().err


def test_it_needs_root(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(labs.os, "geteuid", lambda: 1000)
    (tmp_path / "one.toml").write_text(FILE)
    for arguments in ([str(tmp_path / "one.toml"), "true"], ["--clean"]):
        assert cli.main(["lab", *arguments]) == 1
        assert capsys.readouterr().err.startswith("weft lab: network namespaces need root")


def test_it_needs_tools(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(labs.os, "geteuid", lambda: 0)
    monkeypatch.setattr(labs.shutil, "which", lambda _: None)
    (tmp_path / "one.toml").write_text(FILE)
    assert cli.main(["lab", str(tmp_path / "one.toml"), "true"]) == 1
    assert "ip, tc, unshare, nsenter, taskset not found; apt-get install iproute2 util-linux" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("Error: Specified qdisc kind is unknown.", "no sch_netem: modprobe sch_netem, or leave delay out"),
        ("mount: Operation not permitted", "without CAP_NET_ADMIN"),
        ("Cannot find device", ""),
    ],
)
def test_what_can_be_done(said, remedy):
    told = labs._remedy(["tc", "qdisc", "add", "netem"], said)
    assert (remedy in told) if remedy else told == ""


@pytest.mark.parametrize(
    ("rest", "split"),
    [
        (["ls", "-l"], (None, ["ls", "-l"])),
        (["--", "ls", "--on", "x"], (None, ["ls", "--on", "x"])),
        (["--on", "b", "--", "ls"], ("b", ["ls"])),
        (["--on=b", "ls"], ("b", ["ls"])),
        (["--on"], ("", [])),
    ],
)
def test_what_stands_between_the_file_and_the_command(rest, split):
    assert command._split(rest) == split
