# SPDX-License-Identifier: BSD-3-Clause
"""This machine."""

import os
import subprocess
import sys

import psutil

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


def test_what_commands_say():
    programs = {"echo -n x": "echo", "false": "false", "weft-none": "weft-none"}
    assert here._ask(programs, os.environ, 20) == {"echo -n x": "x", "false": None}


def test_a_command_that_hangs_is_ended():
    assert here._ask({"sleep 60": "sleep"}, os.environ, 0.05) == {"sleep 60": None}
    assert "sleep" not in {child.name() for child in psutil.Process().children()}


def test_ucx_is_not_loaded():
    code = """
from weft import _cli as cli
cli.main(["doctor", "--json"])
maps = open("/proc/self/maps").read()
assert "libucp" not in maps and "libucs" not in maps
"""
    environment = {**os.environ, "UCX_NET_DEVICE": "x"}
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=100, capture_output=True, env=environment)
    assert b'"evidence"' in done.stdout
