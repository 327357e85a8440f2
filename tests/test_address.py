# SPDX-License-Identifier: BSD-3-Clause
import socket
from types import SimpleNamespace

import psutil
import pytest

import weft
from weft._connect import address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ("", 0)),
        ("host", ("host", 0)),
        ("host:80", ("host", 80)),
        (":80", ("", 80)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:80", ("::1", 80)),
        ("[::1]", ("::1", 0)),
        ("::1", ("::1", 0)),
    ],
)
def test_split(text, expected):
    assert address.split(text) == expected


@pytest.mark.parametrize(
    "text", [None, 5, "host:port", "host:-1", "host:65536", "[::1", "[::1]x", "host:²", "ucx://host:1"]
)
def test_split_refuses(text):
    with pytest.raises(weft.InvalidParamError, match="address"):
        address.split(text)


@pytest.mark.parametrize(("host", "port"), [("10.0.0.1", 80), ("::1", 65535), ("name", 1)])
def test_join_is_what_split_reads(host, port):
    assert address.split(address.join(host, port)) == (host, port)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("fe80::1%lo", False),
    ],
)
def test_loopback(host, loopback):
    assert address.is_loopback(host) is loopback


@pytest.mark.parametrize(
    ("sockaddr", "expected"),
    [(("10.0.0.1", 5), "10.0.0.1:5"), (("fd00::1", 5, 0, 0), "[fd00::1]:5"), (("fe80::1", 5, 0, 1), "[fe80::1%lo]:5")],
)
def test_a_link_local_address_keeps_its_device(sockaddr, expected):
    assert address.join(*address.of_socket(sockaddr)) == expected


def test_devices():
    assert address.device_of("127.0.0.1") == "lo"
    assert address.device_of("127.1.2.3") == "lo"
    assert address.device_of("192.0.2.77") is None


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (["lo", "eth0"], "eth0"),  # a virtual address, as IPVS needs it on the loopback
        (["eth0", "lo"], "eth0"),
        (["lo"], "lo"),
        (["eth0:1"], "eth0"),  # the label of an address, not a device
        (["lo:0", "eth0"], "eth0"),
    ],
)
def test_the_device_of_an_address_that_several_have(devices, expected, monkeypatch):
    entry = SimpleNamespace(family=socket.AF_INET, address="10.0.0.1")
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {device: [entry] for device in devices})
    assert address.device_of("10.0.0.1") == expected


def test_the_source_towards_a_host():
    assert address.source_towards("127.0.0.1") == "127.0.0.1"
    assert address.source_towards("::1") in ("::1", None)
    assert address.source_towards("x" * 70 + ".y") is None


def test_outward_is_an_address_of_this_host():
    assert address.device_of(address.outward(socket.AF_INET)) is not None


def test_the_device_of_an_address_is_found_once(monkeypatch):
    looks = []
    monkeypatch.setattr(address, "_devices", {})
    monkeypatch.setattr(address, "_find_device", lambda host: looks.append(host) or f"eth{len(looks) - 1}")
    first = {"eth0": "10.0.0.7", "eth1": "10.0.0.7"}
    monkeypatch.setattr(address, "_first_address", first.get)
    assert [address.device_of("10.0.0.7") for _ in range(3)] == ["eth0"] * 3
    assert looks == ["10.0.0.7"]
    first["eth0"] = "10.0.0.8"  # the address has moved to another device
    assert [address.device_of("10.0.0.7") for _ in range(3)] == ["eth1"] * 3
    assert looks == ["10.0.0.7"] * 2


def test_the_first_address_of_a_device():
    assert address._first_address("lo") == "127.0.0.1"
    assert address._first_address("nosuch") is None
