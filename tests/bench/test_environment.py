# SPDX-License-Identifier: BSD-3-Clause
"""What a record tells of how it was taken: its commit and its command, and nothing of its user."""

import subprocess
import sys

import pytest

from weft.bench.common import environment


def git(folder, *words):
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *who, "-C", str(folder), *words], check=True, capture_output=True)


def test_the_commit_is_that_of_the_sources_and_says_if_they_were_changed(tmp_path):
    source = tmp_path / "src"
    source.mkdir()
    (source / "a.py").write_text("1")
    (tmp_path / "record.json").write_text("{}")
    assert environment.commit(source) is None
    git(tmp_path, "init")
    assert environment.commit(source) is None
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    named = environment.commit(source)
    assert len(named) == 10
    (tmp_path / "record.json").write_text("{1}")
    assert environment.commit(source) == named
    (source / "a.py").write_text("2")
    assert environment.commit(source) == f"{named}+"


def test_an_environment_inside_another_projects_checkout_is_not_of_its_commit(tmp_path):
    git(tmp_path, "init")
    (tmp_path / ".gitignore").write_text(".venv")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "theirs")
    installed = tmp_path / ".venv/site-packages"
    installed.mkdir(parents=True)
    (installed / "weft.py").write_text("")
    assert environment.commit(installed) is None


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["/home/me/env/bin/weft", "bench", "fetch", "--sizes", "1KiB"], "weft bench fetch --sizes 1KiB"),
        (["/x/weft/__main__.py", "bench", "peers", "--json=/home/me/a.json"], "weft bench peers --json=..."),
        (["scripts/soak.py", "--json", "/home/me/a.json", "--rounds", "3"], "soak.py --json ... --rounds 3"),
        (["weft", "--hosts", "n0,n1", "--scheduler-address", "ucx://n0:1"], "weft --hosts ... --scheduler-address ..."),
        (["weft", "--hosts=n0,n1"], "weft --hosts=..."),
    ],
)
def test_the_command_names_no_folder_and_no_host(argv, told, monkeypatch):
    monkeypatch.setattr(sys, "argv", argv)
    assert environment.collect()["command"] == told
