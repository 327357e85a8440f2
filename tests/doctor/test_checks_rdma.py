# SPDX-License-Identifier: BSD-3-Clause
import dataclasses
import shutil

import pytest
from tests.machines import hosts, trees

from weft.doctor import checks_rdma
from weft.doctor.finding import Level


def test_a_controller_that_no_driver_has_taken(machine):
    made = machine()
    controller = trees.pci(made.root, "pci0000:80/0000:80:00.0")
    trees.write(controller, {"class": "0x020700", "vendor": "0x15b3"})
    found = checks_rdma.devices(made)
    assert (found.level, found.what) == (
        Level.ERROR,
        "an InfiniBand controller is on the PCI bus, but no RDMA driver handles it",
    )
    assert found.evidence[0] == "/sys/bus/pci/devices: 0000:80:00.0"
    for check in (checks_rdma.ports, checks_rdma.ipoib, checks_rdma.verbs):
        assert check(made).what == "no RDMA device in use: see RDMA devices"


def test_ethernet_that_has_roce_is_a_note(machine):
    made = machine()
    trees.write(trees.pci(made.root, "pci0000:01/0000:01:00.0"), {"class": "0x020000", "vendor": "0x15b3"})
    assert checks_rdma.devices(made).level is Level.NOTE


def test_devices_without_uverbs(machine):
    made = machine("arm")
    assert checks_rdma.devices(made).what == "rocep1s0 (RoCE), by the kernel's own drivers"
    shutil.rmtree(made.root / "dev/infiniband")
    assert checks_rdma.devices(made).remedy.startswith("modprobe ib_uverbs")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "slurm",
            "mlx5_0:1: the port waits for a subnet manager: start opensm on the fabric, or ask its administrator",
        ),
        ("hgx_h100", "mlx5_5:1: no link: check the cable, the switch port and ibstat"),
    ],
)
def test_each_state_of_a_port_has_its_remedy(machine, name, said):
    found = checks_rdma.ports(machine(name))
    assert found.remedy == said
    assert "/sys/class/infiniband/mlx5_0/ports/1/state" in found.evidence[0]


def test_ipoib_on_azure_is_the_agents(machine):
    assert checks_rdma.ipoib(machine("nd40")).remedy.startswith("set OS.EnableRDMA=y in /etc/waagent.conf")
    assert checks_rdma.ipoib(machine("dgx1")).what == "IPoIB is up: ib0, ib1, ib2, ib3"
    assert checks_rdma.ipoib(machine("arm")).what.startswith("no InfiniBand")


@pytest.mark.parametrize(
    ("conf", "level", "remedy"),
    [
        ("OS.EnableRDMA=y", Level.OK, ""),
        ("  OS.EnableRDMA = y  # yes", Level.OK, ""),
        ("# OS.EnableRDMA=y", Level.WARNING, "sed -i"),
        ("OS.EnableRDMA=n", Level.WARNING, "sed -i"),
        ("Logs.Verbose=n", Level.WARNING, "echo OS.EnableRDMA=y >>"),
    ],
)
def test_azures_agent(machine, conf, level, remedy):
    found = checks_rdma.waagent(machine("nd40", {"etc/waagent.conf": conf}))
    assert (found.level, found.remedy[: len(remedy)]) == (level, remedy)


def test_a_device_of_software_needs_settings(machine):
    made = machine("arm", {"sys/class/infiniband/rocep1s0/parent": "eth0"})
    found = checks_rdma.devices(made)
    assert (found.level, found.what) == (Level.NOTE, "an RDMA device made of software (rxe): rocep1s0")
    assert found.remedy.startswith("export UCX_IB_ASYNC_EVENTS=n UCX_IB_GID_INDEX=0,")
    made = dataclasses.replace(made, environ={"UCX_IB_ASYNC_EVENTS": "n", "UCX_IB_GID_INDEX": "1"})
    assert checks_rdma.devices(made).level is Level.OK


def test_a_system_ucx_with_verbs_is_proposed_where_it_is_there(machine):
    made = machine("nd40")
    assert checks_rdma.verbs(made).remedy.startswith("install a UCX from 1.16 up")
    hosts.system_ucx(made.root)
    found = checks_rdma.verbs(made)
    assert found.remedy == "set WEFT_LIBUCX=system"
    assert found.evidence[1] == "/usr/lib/x86_64-linux-gnu/libucp.so.0 (system, 1.18.1+ds-2): has libuct_ib"
    assert checks_rdma.verbs(dataclasses.replace(made, environ={"WEFT_LIBUCX": "system"})).level is Level.OK


def test_amazons_devices(machine):
    made = machine(environ={"WEFT_LIBUCX": "system"}, files={"dev/infiniband/uverbs0": ""})
    hosts.system_ucx(made.root)
    trees.rdma(made.root, "rdmap0s6", "pci0000:00/0000:00:06.0", layer="Unspecified", driver="efa")
    assert checks_rdma.devices(made).what == "rdmap0s6 (EFA), by the kernel's own drivers"
    assert checks_rdma.ipoib(made).what == "no InfiniBand: Ethernet devices carry the addresses"
    found = checks_rdma.verbs(made)
    assert (found.level, found.remedy[:26]) == (Level.WARNING, "build UCX 1.19 or newer wi")
    trees.write(made.root, {"usr/lib/x86_64-linux-gnu/ucx/libuct_ib_efa.so.0": ""})
    assert checks_rdma.verbs(dataclasses.replace(made)).level is Level.OK


def test_a_ucx_with_verbs_needs_their_library(machine):
    made = machine("dgx1")
    cache = made.root / "etc/ld.so.cache"
    cache.write_text(cache.read_text().replace("libibverbs", "libother"))
    assert checks_rdma.verbs(made).remedy.startswith("apt-get install ibverbs-providers")


@pytest.mark.parametrize(
    ("limit", "files", "level", "remedy"),
    [
        ("65536/unlimited", {}, Level.ERROR, "ulimit -l unlimited"),
        ("65536", {}, Level.ERROR, "echo '* - memlock unlimited'"),
        (
            "65536",
            {"etc/security/limits.d/ib.conf": "* soft memlock unlimited\n* hard memlock unlimited"},
            Level.ERROR,
            "/etc/security/limits.d/ib.conf allows it, this process has not got it",
        ),
        ("65536", {"proc/self/status": "CapEff:\t0000000000004000"}, Level.OK, ""),
        (f"{4 << 30}", {}, Level.NOTE, "echo"),
        ("unlimited", {}, Level.OK, ""),
        ("noise", {}, Level.NOTE, ""),
    ],
)
def test_locked_memory(machine, limit, files, level, remedy):
    found = checks_rdma.memlock(machine("arm", {"proc/self/limits": hosts.limits(locked=limit), **files}))
    assert (found.level, found.remedy[: len(remedy)]) == (level, remedy)


def test_without_verbs_what_may_be_locked_does_not_matter_yet(machine):
    assert checks_rdma.memlock(machine("nd40")).level is Level.NOTE


def test_roce_that_leads_nowhere_is_a_note(machine):
    made = machine("arm", {"sys/class/infiniband/rocep1s0/ports/1/state": "1: DOWN"}, environ={})
    assert checks_rdma.ports(made).what == "not active: rocep1s0:1; active: none"
    assert [check(made).level for check in (checks_rdma.ports, checks_rdma.verbs)] == [Level.NOTE, Level.NOTE]


def test_locked_memory_in_slurm_is_slurms(machine):
    assert "PropagateResourceLimitsExcept=MEMLOCK" in checks_rdma.memlock(machine("slurm")).remedy
