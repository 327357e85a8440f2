# SPDX-License-Identifier: BSD-3-Clause
"""This machine."""

import os
import subprocess
import sys

import weft
from weft.doctor import here, ucx


def test_what_is_read_of_this_machine():
    machine = here.read()
    assert machine.has("proc/self/status")
    assert machine.shm_nbytes is not None
    assert "weft" in machine.distributions
    assert not machine.has("/no/such/file")


def test_the_libucp_that_is_named_is_the_one_that_is_loaded():
    chosen = ucx.chosen(here.read())
    assert chosen is not None
    library = weft.ucx_library()
    assert (chosen.path, chosen.origin) == (library.path, library.origin)
    if chosen.origin == "wheel":
        assert chosen.version.startswith(".".join(map(str, library.version)))


def test_a_command_that_hangs_is_ended_and_a_missing_one_is_left_out(monkeypatch, tmp_path):
    (tmp_path / "hangs").write_text("#!/bin/sh\necho $$ > pid\nexec sleep 60\n")
    (tmp_path / "fails").write_text("#!/bin/sh\necho nothing\nexit 3\n")
    for name in ("hangs", "fails"):
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    programs = {"hangs": "hangs", "fails": "fails", "echo -n x": "echo", "weft-none": "weft-none"}
    assert here._ask(programs, os.environ, 0.5) == {"hangs": None, "fails": None, "echo -n x": "x"}
    assert not os.path.exists(f"/proc/{(tmp_path / 'pid').read_text().strip()}")


def test_ucx_is_not_loaded():
    code = """
from weft import cli
cli.main(["doctor", "--json"])
maps = open("/proc/self/maps").read()
assert "libucp" not in maps and "libucs" not in maps
"""
    environment = {**os.environ, "UCX_NET_DEVICE": "x"}
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=30, capture_output=True, env=environment)
    assert b"this UCX does not know UCX_NET_DEVICE" in done.stdout
