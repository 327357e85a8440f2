# SPDX-License-Identifier: BSD-3-Clause
import pytest
from tests.doctor.firewalls import nft

from weft.doctor import checks_network
from weft.doctor.finding import Level
from weft.doctor.firewall import NFT


@pytest.mark.parametrize(
    ("said", "level"),
    [
        ("10.0.0.5        STREAM node1\n10.0.0.5        DGRAM", Level.OK),
        ("fe80::1%eth0 STREAM node1", Level.OK),
        ("127.0.1.1 STREAM node1", Level.NOTE),
        ("noise", Level.NOTE),
        ("", Level.NOTE),
        (None, Level.NOTE),
    ],
)
def test_what_the_hosts_name_leads_to(machine, said, level):
    assert checks_network.host_name(machine(commands={"getent ahosts node1": said})).level is level


def test_the_line_that_says_so_is_evidence(machine):
    assert "/etc/hosts: 127.0.1.1 laptop" in checks_network.host_name(machine("laptop")).evidence


def test_a_loopback_name_is_a_warning_in_a_cluster(machine):
    found = checks_network.host_name(machine("dgx1", commands={"getent ahosts node1": "127.0.1.1 STREAM node1"}))
    assert found.level is Level.WARNING


@pytest.mark.parametrize(("flags", "level"), [("0x9", Level.OK), ("0x8", Level.ERROR), ("noise", Level.NOTE)])
def test_the_loopback(machine, flags, level):
    found = checks_network.loopback(machine(files={"sys/class/net/lo/flags": flags}))
    assert found.level is level
    assert (found.remedy == "ip link set lo up") is (level is Level.ERROR)
    assert found.evidence == (f"/sys/class/net/lo/flags: {flags}",)


def test_sys_of_another_network_namespace_does_not_count(machine):
    found = checks_network.loopback(machine(files={"sys/class/net/lo/flags": "0x9", "proc/net/fib_trie": ""}))
    assert (found.level, found.evidence) == (Level.ERROR, ("/proc/net/fib_trie: no 127.0.0.0",))


def test_mtu(machine):
    assert "eth0 (1500)" in checks_network.mtu(machine("epyc")).what
    assert checks_network.mtu(machine("arm")).level is Level.OK
    assert (
        "ib0 (datagram, 2044)"
        in checks_network.mtu(
            machine(
                "nd40",
                {
                    "sys/class/net/ib0/operstate": "up",
                    "sys/class/net/ib0/mtu": 2044,
                    "sys/class/net/ib0/mode": "datagram",
                },
            )
        ).what
    )


TCP = "  sl  local_address rem_address   st\n   0: {}:2222 00000000:0000 0A 00000000:00000000 00:00000000 00000000\n"


@pytest.mark.parametrize(
    ("address", "level", "said"),
    [
        ("00000000", Level.OK, "0.0.0.0 listens"),
        ("0100007F", Level.WARNING, "listens on the loopback only"),
        (None, Level.OK, "free"),
    ],
)
def test_who_listens(machine, address, level, said):
    files = {"proc/net/tcp": TCP.format(address)} if address else {}
    found = checks_network.port(0x2222)(machine(files=files, commands={NFT: nft("empty")}))
    assert found.level is level
    assert said in found.what
