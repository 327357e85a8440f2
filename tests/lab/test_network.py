# SPDX-License-Identifier: BSD-3-Clause
"""A lab's file, and the commands that it turns into."""

import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft.lab import network, shaping
from weft.lab.network import Cable, Host, Network

TWO = """
[hosts.a]
cpus = "0-1"
[hosts.b]
[[links]]
between = ["a", "b"]
rate = "100mbit"
delay = "5ms"
"""
LINKED = "[hosts.a]\n[hosts.b]\n[[links]]\nbetween = ['a', 'b']\n"
PAIRED = f"{LINKED}[[links.pairs]]\n"
THREE = Network((Host("a"), Host("b"), Host("c")), (Cable(("a", "b")), Cable(("a", "b", "c"), "1gbit", "2ms")))


def commands(described):
    return [" ".join(command) for command in network.commands(described, network.namespaces(described, "weft-1-0"))]


def test_a_file(tmp_path):
    (tmp_path / "two.toml").write_text(TWO)
    assert network.read(tmp_path / "two.toml") == Network(
        (Host("a", "0-1"), Host("b")), (Cable(("a", "b"), "100mbit", "5ms"),)
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no hosts"),
        ("hosts = 1", "no hosts"),
        ("[hosts.a]\n[host.b]", "the file: unknown key host; the keys are hosts, links"),
        ("[hosts.A]", "host 'A': a name is"),
        ("[hosts.switch]", "host 'switch': switches have this name"),
        ("[hosts.switch1]", "host 'switch1': switches have this name"),
        ("[hosts.localhost]", "host 'localhost': each host has this name for itself"),
        ("[hosts.a]\ncpu = '0'", "host a: unknown key cpu"),
        ("[hosts]\na = 1", "host a: 1 is not a table"),
        ("[hosts.a]\ncpus = 'x'", "host a: cpus='x'"),
        ("[hosts.a]\ncpus = ''", "host a: cpus=''"),
        ("links = 1\n[hosts.a]", "links must be tables"),
        ("[hosts.a]\n[[links]]\nbetween = ['a']", "must name two hosts or more"),
        ("[hosts.a]\n[[links]]\nbetween = [['a'], 'a']", "must name two hosts or more"),
        ("[hosts.a]\n[[links]]\nbetween = ['a', 'a']", "must name two hosts or more"),
        ("[hosts.a]\n[[links]]\nbetween = ['a', 'x']", "link 0: no such host: x"),
        ("[hosts.a]\n[hosts.b]\n[[links]]\nbetween = ['a', 'b']\nrate = 'fast'", "rate='fast'"),
        ("[hosts.a]\n[hosts.b]\n[[links]]\nbetween = ['a', 'b']\ndelay = 5", "delay=5"),
        (f"{PAIRED}between = ['a', 'b']\nrate = 'fast'", "link 0, pair 0: rate='fast'"),
        (f"{PAIRED}between = ['a', 'c']", "must name two hosts of the link"),
        (f"{PAIRED}between = ['a', 'b']\n[[links.pairs]]\nbetween = ['b', 'a']", "are the same hosts"),
        ("[hosts.a]\n[hosts.b]\n[[links]]\nbetween = ['a', 'b']\npairs = 1", "pairs must be tables"),
        ("[hosts.a]\n[hosts.b]\n[[links]]\nbetween = ['a', 'b']\nrate_per_flow = 1", "rate_per_flow=1 is not a rate"),
        (f"{LINKED}rate = '0mbit'", "link 0: rate='0mbit' is not between 1kbit and 1000gbit"),
        (f"{LINKED}rate = '100000gbit'", "rate='100000gbit' is not between 1kbit and 1000gbit"),
        (f"{LINKED}rate_per_flow = '0kbit'", "rate_per_flow='0kbit' is not between 1kbit and 1000gbit"),
        (f"{PAIRED}between = ['a', 'b']\nrate = '0.1kbit'", "link 0, pair 0: rate='0.1kbit' is not between"),
        (f"{LINKED}delay = '275s'", "link 0: delay='275s' is longer than 270s"),
        ("[hosts.a", "not TOML: "),
    ],
)
def test_what_is_no_lab(text, said, tmp_path):
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(weft.InvalidParamError, match=r"^/.*x\.toml: ") as e:
        network.read(tmp_path / "x.toml")
    assert said in str(e.value)


def test_no_file(tmp_path):
    with pytest.raises(weft.InvalidParamError, match=r"none\.toml: No such file or directory$"):
        network.read(tmp_path / "none.toml")
    (tmp_path / "x.toml").write_bytes(b"\xff")
    with pytest.raises(weft.InvalidParamError, match=r"x\.toml: not text in UTF-8$"):
        network.read(tmp_path / "x.toml")


def test_a_cable_with_rate_and_delay():
    built = commands(network.parse(tomllib.loads(TWO)))
    assert built[2] == "ip link add lab0 netns weft-1-0-a type veth peer name lab0 netns weft-1-0-b"
    assert built[3:8] == [
        "ip -n weft-1-0-a addr add 10.77.0.1/24 dev lab0",
        "ip -n weft-1-0-a addr add fd77::1/64 dev lab0 nodad",
        "ip -n weft-1-0-a link set lab0 up",
        "tc -n weft-1-0-a qdisc add dev lab0 root handle 1: tbf rate 100mbit burst 131072b latency 50ms",
        "tc -n weft-1-0-a qdisc add dev lab0 parent 1:1 netem delay 5ms limit 100000",
    ]
    assert len(built) == 13


def test_a_switch():
    built = commands(THREE)
    assert network.namespaces(THREE, "p") == {"a": "p-a", "b": "p-b", "c": "p-c", "switch1": "p-switch1"}
    assert "ip link add lab1 netns weft-1-0-c type veth peer name port2 netns weft-1-0-switch1" in built
    assert [line for line in built if "tbf" in line and "burst 1250000b" in line] == [
        line for line in built if "tbf" in line
    ]
    assert len([line for line in built if "tbf" in line]) == 6  # both ways of three cables
    assert len([line for line in built if "netem" in line]) == 3  # one way: from the hosts


def test_pairs_behind_a_switch():
    pairs = [{"between": ["b", "a"], "rate": "10mbit", "delay": "5ms"}]
    link = {"between": ["a", "b", "c"], "rate": "100mbit", "pairs": pairs}
    built = commands(network.parse({"hosts": {"a": {}, "b": {}, "c": {}}, "links": [link]}))
    of_a = [line for line in built if line.startswith("tc -n weft-1-0-a ")]
    assert of_a[1].endswith("1:1 htb rate 100mbit ceil 100mbit burst 131072b cburst 131072b quantum 60000")
    assert "parent 1:1 classid 1:10 htb rate 64kbit ceil 10mbit " in of_a[3]
    assert of_a[4].endswith("parent 1:10 netem delay 5ms limit 100000")
    assert of_a[5].endswith("protocol ip prio 1 u32 match ip dst 10.77.0.2/32 flowid 1:10")
    assert of_a[6].endswith("protocol ipv6 prio 2 u32 match ip6 dst fd77::2/128 flowid 1:10")
    assert len(of_a) == 7
    assert [line for line in built if line.startswith("tc -n weft-1-0-b ") and "dst 10.77.0.1/32" in line]
    assert sum("tbf" in line for line in built) == 4  # the switch's ports, and c


def test_a_cap_for_each_flow():
    link = {"between": ["a", "b"], "rate": "200mbit", "rate_per_flow": "50mbit"}
    built = commands(network.parse({"hosts": {"a": {}, "b": {}}, "links": [link]}))
    assert sum("ceil 50mbit" in line for line in built) == 2 * shaping.FLOW_CLASSES
    assert sum("bpf bytecode 10,177 0 0 14," in line for line in built) == 2


def test_names_lead_over_cables_that_are_shared():
    assert THREE.seen_from("a") == {"a": "10.77.0.1", "b": "10.77.0.2", "c": "10.77.1.3"}
    assert THREE.seen_from("c") == {"a": "10.77.1.1", "b": "10.77.1.2", "c": "10.77.1.3"}
    assert THREE.address("b", cable=1, version=6) == "fd77:0:0:1::2"


@settings(max_examples=50)
@given(st.lists(st.sets(st.sampled_from("abcdefgh"), min_size=2), min_size=1, max_size=8))
def test_no_address_is_given_twice(links):
    described = Network(tuple(map(Host, "abcdefgh")), tuple(Cable(tuple(sorted(between))) for between in links))
    given_out = [line.split()[5] for line in commands(described) if " addr add " in line]
    assert len(set(given_out)) == len(given_out) == 2 * sum(map(len, links))
