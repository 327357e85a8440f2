# SPDX-License-Identifier: BSD-3-Clause
import json

import pytest
from tests.doctor import firewalls
from tests.doctor.firewalls import nft

from weft.doctor import checks_network, here
from weft.doctor.finding import Level
from weft.doctor.firewall import FIREWALLD, IPTABLES, NFT

UFW = {"etc/ufw/ufw.conf": "ENABLED=yes", "etc/default/ufw": 'DEFAULT_INPUT_POLICY="DROP"'}


def port(machine, number=8786, files=None, **commands):
    said = {{"nft": NFT, "iptables": IPTABLES, "firewalld": FIREWALLD}[name]: text for name, text in commands.items()}
    return checks_network.port(number)(machine(files=files, commands=said))


@pytest.mark.parametrize(
    ("tool", "rules", "open_too"),
    [
        ("nft", nft("workstation"), ()),
        ("nft", nft("jumps"), ()),
        ("nft", nft("for_some"), (9000,)),
        ("nft", nft("sets"), ()),
        ("iptables", firewalls.IPTABLES_RHEL, ()),
        ("iptables", firewalls.IPTABLES_CHAINS, ()),
        ("nft", nft("empty"), (9000,)),
        ("nft", nft("workstation").replace('"policy": "drop"', '"policy": "accept"'), (9000,)),
    ],
)
def test_rules_are_followed(machine, tool, rules, open_too):
    assert port(machine, 8786, **{tool: rules}).level is Level.OK
    assert port(machine, 9000, **{tool: rules}).level is (Level.OK if open_too else Level.WARNING)


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        ("--tcp-flags FIN,SYN,RST,ACK SYN", Level.WARNING),  # --syn
        ("! --tcp-flags FIN,SYN,RST,ACK SYN", Level.OK),
        ("--tcp-flags SYN,ACK SYN,ACK", Level.OK),
    ],
)
def test_flags_of_a_new_connection(machine, flags, level):
    said = f"*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -p tcp -m tcp {flags} -j DROP\nCOMMIT\n"
    assert port(machine, iptables=said).level is level
    mask = {"&": [{"payload": {"protocol": "tcp", "field": "flags"}}, ["fin", "syn", "rst", "ack"]]}
    table = {"family": "inet", "table": "t"}
    rule = [{"match": {"left": mask, "op": "==", "right": "syn"}}, {"drop": None}]
    chain = {"type": "filter", "hook": "input", "policy": "accept", "name": "c", **table}
    told = {"nftables": [{"chain": chain}, {"rule": {**table, "chain": "c", "expr": rule}}]}
    assert port(machine, nft=json.dumps(told)).level is Level.WARNING


@pytest.mark.parametrize(("number", "level"), [(9000, Level.WARNING), (9001, Level.OK), (9100, Level.WARNING)])
def test_verdict_maps_and_chains_that_some_leave(machine, number, level):
    """What the chain vpn drops, it drops for some only; after a goto, the rest of a chain is not for who went."""
    assert port(machine, number, nft=nft("maps")).level is level


def test_a_table_of_iptables_is_left_to_its_own_tool(machine):
    for number, level in ((8786, Level.OK), (9000, Level.WARNING)):
        found = port(machine, number, nft=nft("of_iptables"), iptables=firewalls.IPTABLES_RHEL)
        assert found.level is level
        assert "nft -j list ruleset: ip filter: not looked at: the table is iptables'" in found.evidence
    assert port(machine, nft=nft("of_iptables")).what.endswith("was not looked at")


def test_one_of_two_filters_drops_it(machine):
    found = port(machine, 9000, nft=nft("empty"), iptables=firewalls.IPTABLES_RHEL)
    assert found.what == "port 9000 looks closed from outside: the chain INPUT lets no connection to it in"
    assert "nft -j list ruleset: no chain for input" in found.evidence
    assert "iptables-save: INPUT: policy accept, drops it" in found.evidence


@pytest.mark.parametrize(
    ("ports", "level"),
    [("", Level.WARNING), ("8786/tcp", Level.OK), ("8000-9000/tcp", Level.OK), ("8786/udp", Level.WARNING)],
)
def test_firewalld(machine, ports, level):
    # its rules in nftables accept by policy, and reject at the end of chains that nobody should have to read
    found = port(machine, firewalld=firewalls.FIREWALLD.format(ports=ports), nft=nft("empty"))
    assert found.level is level
    assert any("internal: target default, ports 8786 13337-13338" in said for said in found.evidence)
    if level is Level.WARNING:
        assert "firewalld's zone public does not have it" in found.what


@pytest.mark.parametrize(
    ("rule", "level"),
    [
        ("", Level.WARNING),
        ("### tuple ### allow tcp 8786 0.0.0.0/0 any 0.0.0.0/0 in", Level.OK),
        ("### tuple ### allow any 8700:8800 0.0.0.0/0 any 10.0.0.0/8 in_eth0", Level.OK),
        ("### tuple ### allow any any 0.0.0.0/0 any 10.0.0.0/8 in", Level.OK),
        ("### tuple ### allow udp 8786 0.0.0.0/0 any 0.0.0.0/0 in", Level.WARNING),
        ("### tuple ### deny tcp 8786 0.0.0.0/0 any 0.0.0.0/0 in", Level.WARNING),
        ("### tuple ### limit tcp 22,8786 0.0.0.0/0 any 0.0.0.0/0 in", Level.OK),
    ],
)
def test_ufw(machine, rule, level):
    assert port(machine, files=UFW | {"etc/ufw/user.rules": rule}).level is level


def test_ufw_that_lets_all_in(machine):
    assert port(machine, files=UFW | {"etc/default/ufw": 'DEFAULT_INPUT_POLICY="ACCEPT"'}).level is Level.OK


@pytest.mark.parametrize(
    ("files", "commands", "said"),
    [
        (UFW, {}, "/etc/ufw/user.rules: not looked at: reading it needs root"),
        ({}, {}, "nft -j list ruleset: not looked at: not installed"),
        ({}, {"nft": None}, "nft -j list ruleset: not looked at: it failed; it needs root"),
        ({}, {"iptables": None}, "iptables-save: not looked at: it failed; it needs root"),
        ({}, {"firewalld": None}, "firewall-cmd --list-all-zones: not looked at: firewalld does not run, is slow, or"),
    ],
)
def test_what_was_not_looked_at_is_said(machine, files, commands, said):
    found = port(machine, files=files, **commands)
    assert (found.level, found.what) == (
        Level.NOTE,
        "port 8786: free; whether a packet filter drops it was not looked at",
    )
    assert any(line.startswith(said) for line in found.evidence), found.evidence


@pytest.mark.parametrize("tool", ["nft", "iptables", "firewalld"])
def test_noise_closes_nothing(machine, tool):
    loop = nft("jumps").replace('"target": "opened"', '"target": "inbound"')
    odd = [nft("workstation").replace(old, new) for old, new in (('"vmap"', '"?"'), ('"set"', '"?"'), ("{", "["))]
    for noise in (
        "}}} chain {{{\n-A\n:INPUT\n*filter\n:INPUT",
        loop,
        *odd,
        "{}",
        "[]",
        '{"nftables": [[]]}',
        '{"nftables": [{"rule": 1}]}',
        "x (active)\n",
        "\0" * 100,
    ):
        assert port(machine, **{tool: noise}).level is not Level.ERROR


def test_the_tools_are_asked_only_for_a_port(monkeypatch):
    asked = []
    monkeypatch.setattr(here, "_ask", lambda programs, *_: asked.append(set(programs)) or {})
    here.read()
    here.read(firewall=True)
    assert asked[1] - asked[0] == {NFT, IPTABLES, FIREWALLD}
