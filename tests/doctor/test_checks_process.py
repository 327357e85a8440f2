# SPDX-License-Identifier: BSD-3-Clause
import pytest
from tests.machines import hosts

from weft.doctor import checks_process
from weft.doctor.finding import Level


def test_a_container(machine):
    found = checks_process.namespaces(machine("container"))
    assert found.what.startswith("a container, with ipc, pid, cgroup of its own")
    assert "/.dockerenv" in found.evidence


def test_the_marks_of_an_image_do_not_make_a_container(machine):
    assert checks_process.namespaces(machine(files={".dockerenv": ""})).level is Level.OK


@pytest.mark.parametrize(
    ("tls", "scope", "level"),
    [(None, 3, Level.OK), ("^sysv,cma", 3, Level.OK), ("posix,cma", 0, Level.OK), ("all", 1, Level.NOTE)],
)
def test_ptrace_matters_to_who_asks_for_cma(machine, tls, scope, level):
    environ = {} if tls is None else {"UCX_TLS": tls}
    made = machine(files={"proc/sys/kernel/yama/ptrace_scope": scope}, environ=environ)
    assert checks_process.ptrace(made).level is level


@pytest.mark.parametrize(
    ("limit", "level", "remedy"),
    [
        ("256", Level.WARNING, "raise nofile"),
        ("1024/524288", Level.NOTE, "ulimit -n 524288"),
        ("1024/unlimited", Level.NOTE, "ulimit -n unlimited"),
        ("65536", Level.OK, ""),
        ("unlimited", Level.OK, ""),
    ],
)
def test_open_files(machine, limit, level, remedy):
    found = checks_process.open_files(machine(files={"proc/self/limits": hosts.limits(files=limit)}))
    assert (found.level, found.remedy[: len(remedy)]) == (level, remedy)


@pytest.mark.parametrize(("synchronised", "level"), [(True, Level.OK), (False, Level.NOTE), (None, Level.NOTE)])
def test_clock(machine, synchronised, level):
    assert checks_process.clock(machine(synchronised=synchronised)).level is level


@pytest.mark.parametrize(("available", "remedy"), [("tsc hpet", "echo tsc > "), ("hpet", "the kernel gave tsc up")])
def test_a_slow_clock_source(machine, available, remedy):
    folder = "sys/devices/system/clocksource/clocksource0"
    made = machine(files={f"{folder}/current_clocksource": "hpet", f"{folder}/available_clocksource": available})
    assert checks_process.clock_source(made).remedy.startswith(remedy)
