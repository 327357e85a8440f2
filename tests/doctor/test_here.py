# SPDX-License-Identifier: BSD-3-Clause
"""This machine."""

import errno
import fcntl
import os
import subprocess
import sys

import psutil

import weft
from weft.doctor import checks_ucx, here, ucx
from weft.doctor.finding import Level


def test_what_is_read_of_this_machine():
    machine = here.read()
    assert machine.has("proc/self/status")
    assert machine.shm_nbytes is not None
    assert machine.memfd == ""
    assert machine.copies is not None
    assert min(machine.copies) > 0
    assert "weft-ucx" in machine.distributions
    assert not machine.has("/no/such/file")


def test_a_read_only_dev_shm(monkeypatch):
    mounted = [*os.statvfs("/dev/shm")]
    mounted[8] |= os.ST_RDONLY
    assert not here.files().shm_read_only
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(mounted))
    assert here.files().shm_read_only


def test_the_libucp_that_is_named_is_the_one_that_is_loaded():
    chosen = ucx.chosen(here.read())
    assert chosen is not None
    library = weft.ucx_library()
    assert (chosen.path, chosen.origin) == (library.path, library.origin)
    if chosen.origin == "wheel":
        assert chosen.version.startswith(".".join(map(str, library.version)))


def test_a_libucp_that_cannot_be_loaded_is_an_error(monkeypatch):
    monkeypatch.setenv("WEFT_LIBUCX", "/etc/passwd")
    monkeypatch.setattr(here, "LIMIT_S", 60)
    found = checks_ucx.library(here.read())
    assert found.level is Level.ERROR
    assert found.what.startswith("load UCX: cannot load /etc/passwd: ")
    assert found.remedy.startswith("pip install libucx-cu12")


def test_a_libucp_that_can_be_loaded(monkeypatch):
    monkeypatch.setenv("WEFT_LIBUCX", weft.ucx_library().path)
    monkeypatch.setattr(here, "LIMIT_S", 60)
    machine = here.read()
    assert machine.commands[ucx.LOAD] == ".".join(map(str, weft.ucx_library().version)) + "\n"
    assert checks_ucx.library(machine).level is Level.OK


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


def test_a_memfd_that_a_filter_refuses(monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    with monkeypatch.context() as patched:
        patched.setattr(os, "memfd_create", refuse)
        assert here.memfd() == "memfd_create: Operation not permitted"
    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "fcntl", refuse)
        assert here.memfd() == "F_ADD_SEALS: Operation not permitted"


def test_a_kernel_without_a_flag_of_its_own_for_what_is_not_run(monkeypatch):
    make, tried = os.memfd_create, []

    def as_before_6_3(name, flags):
        tried.append(flags)
        if flags & 8:
            raise OSError(errno.EINVAL, "Invalid argument")
        return make(name, flags)

    monkeypatch.setattr(os, "memfd_create", as_before_6_3)
    assert here.memfd() == ""
    assert len(tried) == 2


def test_files_that_the_kernel_makes_for_each_read():
    """Linux allocates as much as is asked for, and has no 4 MiB: a check would say that the file is not there."""
    machine = here.read()
    assert machine.release == os.uname().release
    assert machine.number("proc/sys/vm/max_map_count")
