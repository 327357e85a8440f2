# SPDX-License-Identifier: BSD-3-Clause
"""Whether this machine's packet filter drops a new TCP connection to a port, from the output of its tools.

If ufw or firewalld is in use, its own answer is taken: their rules are too complex to follow here. Otherwise the rules
are followed in the form of nftables' JSON; the output of iptables-save is converted to it first, because nft shows
iptables' rules without most of their conditions. A condition is true for the connection, false, or true for some
connections (None). A port that is open for some counts as open; for which ones is not judged.

Source: libnftables-json(5), iptables-extensions(8).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from weft.doctor.machine import Machine

NFT, IPTABLES, FIREWALLD = "nft -j list ruleset", "iptables-save", "firewall-cmd --list-all-zones"
#: Command lines to run, and the program of each.
PROGRAMS = {NFT: "nft", IPTABLES: "iptables-save", FIREWALLD: "firewall-cmd"}

_VERDICTS = {"accept": True, "drop": False, "reject": False, "return": None, "jump": None, "goto": None}
#: Statements that let every packet continue.
_EFFECTS = ("counter", "log", "mangle", "continue")
_DEEPEST = 16

_FLAGS = {"payload": {"protocol": "tcp", "field": "flags"}}
#: The expression in nftables for each option of iptables.
_LOOKS_AT: Mapping[str, Any] = {
    "-p": {"meta": {"key": "l4proto"}},
    "-i": {"meta": {"key": "iifname"}},
    **{option: {"payload": {"protocol": "tcp", "field": "dport"}} for option in ("--dport", "--dports")},
    **{option: {"ct": {"key": "state"}} for option in ("--state", "--ctstate")},
    "--pkt-type": {"meta": {"key": "pkttype"}},
    "--dst-type": {"fib": {"result": "type", "flags": "daddr"}},
}

#: The statements of a rule, each by its kind; and what a table has, with its kind.
_Rule = list[dict[str, Any]]
_Table = list[tuple[str, Any]]


def closed(machine: Machine, number: int, evidence: list[str]) -> str | None:
    """Name what drops packets to that port; empty if nothing does, None if the rules could not be read.

    The text that was read, or the reason why none was, is added to `evidence`.
    """
    for look in (_ufw, _firewalld):
        why, in_use = look(machine, number, evidence)
        if in_use:
            return why
    found = [_followed(machine, NFT, number, evidence), _followed(machine, IPTABLES, number, evidence)]
    looked = [why for why in found if why is not None]
    return next(filter(None, looked), "") if looked else None


def _ufw(machine: Machine, number: int, evidence: list[str]) -> tuple[str | None, bool]:
    if not re.search(r"^\s*ENABLED=yes", machine.text("etc/ufw/ufw.conf") or "", re.MULTILINE):
        return None, False
    evidence.append("/etc/ufw/ufw.conf: ENABLED=yes")
    if re.search(r'^DEFAULT_INPUT_POLICY="?ACCEPT', machine.text("etc/default/ufw") or "", re.MULTILINE):
        evidence.append("/etc/default/ufw: DEFAULT_INPUT_POLICY ACCEPT")
        return "", True
    rules = machine.text("etc/ufw/user.rules")
    if rules is None:
        evidence.append("/etc/ufw/user.rules: not looked at: reading it needs root")
        return None, True
    allowed = re.findall(r"^### tuple ### (?:allow|limit)\S* (?:tcp|any) (\S+)", rules, re.MULTILINE)
    if any(ports == "any" or _among(ports, number) for ports in allowed):
        return "", True
    return "ufw is on and has no rule that allows it", True


def _firewalld(machine: Machine, number: int, evidence: list[str]) -> tuple[str | None, bool]:
    said = machine.commands.get(FIREWALLD)
    if said is None:
        if FIREWALLD in machine.commands:
            evidence.append(f"{FIREWALLD}: not looked at: firewalld does not run, is slow, or needs root")
        return None, False
    zones = re.findall(r"^(\S+) \((?:[^)]*\b)?active\)\n((?:[ \t].*\n?)*)", said, re.MULTILINE)
    if not zones:
        evidence.append(f"{FIREWALLD}: no zone is active")
        return "", True
    shut: list[str] = []
    for zone, text in zones:
        lines = {name: value for name, _, value in (line.strip().partition(": ") for line in text.splitlines())}
        ports = [word.removesuffix("/tcp") for word in lines.get("ports", "").split() if word.endswith("/tcp")]
        evidence.append(f"{FIREWALLD}: {zone}: target {lines.get('target', '?')}, ports {' '.join(ports) or 'none'}")
        if lines.get("target") != "ACCEPT" and not any(_among(port, number) for port in ports):
            shut.append(zone)
    return f"firewalld's zone {', '.join(shut)} does not have it among its ports" if shut else "", True


def _among(ports: str, number: int) -> bool:
    return bool(_contains(_elements(ports), number))


def _elements(text: str) -> list[Any]:
    """Write a list of iptables', such as ``22,8000:9000`` or ``NEW,RELATED``, as nftables does."""
    ranges = [re.fullmatch("([0-9]{1,5})(?:[:-]([0-9]{1,5}))?", word) or word.lower() for word in text.split(",")]
    return [each if isinstance(each, str) else {"range": [int(each[1]), int(each[2] or each[1])]} for each in ranges]


def _followed(machine: Machine, command: str, number: int, evidence: list[str]) -> str | None:
    said = machine.commands.get(command)
    if said is None:
        why = "not installed" if command not in machine.commands else "it failed; it needs root"
        evidence.append(f"{command}: not looked at: {why}")
        return None
    try:
        tables = _nft(said) if command == NFT else {"": _iptables(said)}
        found = [each for name, table in tables.items() for each in _filtered(name, table, number)]
    except (AttributeError, LookupError, TypeError, ValueError):
        evidence.append(f"{command}: not looked at: it was not understood")
        return None
    for chain, policy, passes in found:
        evidence.append(f"{command}: {chain}: policy {policy}, {'lets it in' if passes else 'drops it'}")
        if not passes:
            return f"the chain {chain} lets no connection to it in"
    if foreign := [name for name, table in tables.items() if _made_by_iptables(table)]:
        evidence.append(f"{command}: {', '.join(foreign)}: not looked at: the table is iptables'")
        return None
    if not found:
        evidence.append(f"{command}: no chain for input")
    return ""


def _nft(said: str) -> dict[str, _Table]:
    """Read the tables of nftables: the objects in each, with their kind."""
    tables: dict[str, _Table] = {}
    for kind, what in (item for entry in json.loads(said)["nftables"] for item in entry.items()):
        if kind in ("set", "map", "chain", "rule") and what["family"] in ("ip", "ip6", "inet"):
            tables.setdefault(f"{what['family']} {what['table']}", []).append((kind, what))
    return tables


def _iptables(said: str) -> _Table:
    """Read iptables' table ``filter``, as `_nft` reads one."""
    entries: _Table = []
    table = ""
    for line in said.splitlines():
        if line.startswith("*"):
            table = line[1:].strip()
        elif table == "filter" and line.startswith(":INPUT "):
            policy = line.split()[1].lower()
            entries.append(("chain", {"name": "INPUT", "type": "filter", "hook": "input", "policy": policy}))
        elif table == "filter" and line.startswith("-A "):
            _, chain, *words = shlex.split(line)
            entries.append(("rule", {"chain": chain, "expr": list(_statements(iter(words)))}))
    return entries


def _statements(words: Iterator[str]) -> Iterator[dict[str, Any]]:
    op = "=="
    for word in words:
        if word in ("-j", "-g"):
            target = next(words, "")
            chain = {"jump" if word == "-j" else "goto": {"target": target}}
            yield {target.lower(): None} if target in ("ACCEPT", "DROP", "REJECT", "RETURN") else chain
            return
        if word == "--tcp-flags":
            mask, wanted = _elements(next(words, "")), _elements(next(words, ""))
            yield {"match": {"left": {"&": [_FLAGS, mask]}, "op": op, "right": wanted}}
        elif word in _LOOKS_AT:
            yield {"match": {"left": _LOOKS_AT[word], "op": op, "right": _elements(next(words, ""))}}
        elif word in ("-m", "--comment"):
            next(words, "")
        elif word != "!":
            yield {"unknown": word}
        op = "!=" if word == "!" else "=="


def _made_by_iptables(table: _Table) -> bool:
    return any("xt" in statement for kind, what in table if kind == "rule" for statement in what["expr"])


def _filtered(name: str, table: _Table, number: int) -> Iterator[tuple[str, str, bool]]:
    """Yield each chain of `table` for input, its policy, and whether it accepts a connection to the port."""
    if _made_by_iptables(table):
        return
    sets = {f"@{what['name']}": what.get("elem", []) for kind, what in table if kind in ("set", "map")}
    chains: dict[str, list[_Rule]] = {}
    for what in (what for kind, what in table if kind == "rule"):
        chains.setdefault(what["chain"], []).extend(_expanded(what["expr"], sets))
    for what in (what for kind, what in table if kind == "chain"):
        if (what.get("type"), what.get("hook")) == ("filter", "input"):
            passes = _passes(chains, what["name"], number)
            yield (
                f"{name} {what['name']}".strip(),
                what["policy"],
                what["policy"] != "drop" if passes is None else passes,
            )


def _expanded(rule: _Rule, sets: Mapping[str, Any]) -> list[_Rule]:
    """Replace named sets by their elements, and verdict maps by a rule for each element."""
    made: _Rule = []
    for statement in rule:
        if "vmap" in statement:
            key, data = statement["vmap"]["key"], statement["vmap"]["data"]
            elements = sets[data] if isinstance(data, str) else data["set"]
            return [[*made, {"match": {"left": key, "op": "==", "right": each}}, verdict] for each, verdict in elements]
        match = statement.get("match")
        if match and isinstance(match["right"], str) and match["right"] in sets:
            statement = {"match": {**match, "right": sets[match["right"]]}}
        made.append(statement)
    return [made]


def _passes(chains: Mapping[str, list[_Rule]], chain: str, number: int, depth: int = 0) -> bool | None:
    """Tell whether `chain` accepts the connection; None if it returns to the calling chain."""
    some_returned = False
    for rule in chains.get(chain, ()) if depth < _DEEPEST else ():
        holds, verdict, target = _verdict(rule, number)
        if holds is False or verdict is None:
            continue
        passes = _passes(chains, target, number, depth + 1) if target else _VERDICTS[verdict]
        if passes or (passes is False and holds and not some_returned):
            return passes
        if verdict in ("return", "goto"):
            if holds:
                return None
            some_returned = True
    return None


def _verdict(rule: _Rule, number: int) -> tuple[bool | None, str | None, str]:
    """Return whether the conditions of `rule` hold, its verdict if it has one, and the chain that the verdict names."""
    holds: bool | None = True
    for kind, what in (item for statement in rule for item in statement.items()):
        if kind in _VERDICTS:
            return holds, kind, what["target"] if kind in ("jump", "goto") else ""
        if kind not in _EFFECTS:
            one = _holds(what["left"], what["op"], what["right"], number) if kind == "match" else None
            holds = False if False in (holds, one) else None if None in (holds, one) else True
    return holds, None, ""


def _holds(left: Any, op: str, right: Any, number: int) -> bool | None:
    match left:
        case {"meta": {"key": "l4proto"}} | {"payload": {"protocol": "ip" | "ip6", "field": "protocol" | "nexthdr"}}:
            inside = _contains(right, "tcp")
        case {"payload": {"protocol": "tcp" | "th", "field": "dport"}}:
            inside = _contains(right, number)
        case {"payload": {"protocol": "udp" | "icmp" | "icmpv6" | "igmp"}}:
            return False
        case {"&": [flags, mask]} if flags == _FLAGS:
            syn = _contains(mask, "syn")  # it is all that the first packet has
            inside = None if syn is None else right in (["syn"] * syn, "syn" if syn else [])
        case {"ct": {"key": "state"}}:
            inside = _contains(right, "new")
        case {"meta": {"key": "pkttype"}}:
            inside = _contains(right, "host") or _contains(right, "unicast")
        case {"fib": {"result": "type", "flags": "daddr" | ["daddr"]}}:
            inside = _contains(right, "local")
        case {"meta": {"key": "iif" | "iifname"}} if right in ("lo", ["lo"]):  # codespell:ignore iif
            inside = False
        case _:
            return None
    return None if inside is None or op not in ("==", "in", "!=") else inside is (op != "!=")


def _contains(right: Any, value: str | int) -> bool | None:
    match right:
        case {"set": [*elements]} | [*elements]:
            found = {_contains(element, value) for element in elements}
            return True if True in found else None if None in found else False
        case {"range": [int(low), int(high)]}:
            return isinstance(value, int) and low <= value <= high
        case {"elem": {"val": element}}:
            return _contains(element, value)
        case str() | int():
            return right == value
        case _:
            return None
