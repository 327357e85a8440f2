# SPDX-License-Identifier: BSD-3-Clause
"""Whether the packet filter of this machine drops a new TCP connection to a port, by what its tools print.

ufw and firewalld are believed where they are in use: their rules are beyond this reading. Else the rules themselves are
followed, as nft or iptables-save prints them. A rule for some sources only counts as open; who those are is not judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from weft.doctor.machine import Machine

NFT, IPTABLES, FIREWALLD = "nft list ruleset", "iptables-save", "firewall-cmd --list-all-zones"
#: Command lines to ask, and the program of each.
PROGRAMS = {NFT: "nft", IPTABLES: "iptables-save", FIREWALLD: "firewall-cmd"}

#: Rules that a new TCP connection from another machine does not meet.
_OTHERS = re.compile(
    r"\b(?:udp|icmp\w*|ipv6-icmp|igmp|multicast|broadcast)\b|\"lo\"|-i lo\b"
    r"|^(?!.*\bnew\b).*\b(?:established|invalid)\b",
    re.IGNORECASE,
)
#: Conditions that this reading does not follow: what they drop, they may drop for some.
_SOME = re.compile(r"\b(?:[sd]addr|[io]if\w*|limit|recent|hashlimit|sport|sports)\b|(?:^|\s)-[sdio] |@")
_DEEPEST = 16

#: A rule: what it looks at, and the verdict or the chain that it leads to.
_Chains = Mapping[str, list[tuple[str, str]]]


def closed(machine: Machine, number: int, evidence: list[str]) -> str | None:
    """Say what drops packets to that port; empty if nothing does, None if that could not be looked at.

    What was read, or why it could not be, goes to `evidence`.
    """
    for look in (_ufw, _firewalld):
        why, in_use = look(machine, number, evidence)
        if in_use:
            return why
    found = [_rules(machine, NFT, number, evidence), _rules(machine, IPTABLES, number, evidence)]
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
    if any(_names(ports, number) for ports in allowed):
        return "", True
    return "ufw is on and has no rule that allows it", True


def _firewalld(machine: Machine, number: int, evidence: list[str]) -> tuple[str | None, bool]:
    said = machine.commands.get(FIREWALLD)
    if said is None:
        if FIREWALLD in machine.commands:
            evidence.append(f"{FIREWALLD}: not looked at: firewalld does not run, is slow, or wants root")
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
        if lines.get("target") != "ACCEPT" and not any(_names(port, number) for port in ports):
            shut.append(zone)
    return f"firewalld's zone {', '.join(shut)} does not have it among its ports" if shut else "", True


def _rules(machine: Machine, command: str, number: int, evidence: list[str]) -> str | None:
    said = machine.commands.get(command)
    if said is None:
        why = "not installed" if command not in machine.commands else "it failed; it needs root"
        evidence.append(f"{command}: not looked at: {why}")
        return None
    chains, bases = _nft(said) if command == NFT else _iptables(said)
    for base, policy in bases.items():
        passes = _walk(chains, base, number, 0)
        passes = policy != "drop" if passes is None else passes
        evidence.append(f"{command}: {base}: policy {policy}, {'lets it in' if passes else 'drops it'}")
        if not passes:
            return f"the chain {base} lets no connection to it in"
    if not bases:
        evidence.append(f"{command}: no chain for input")
    return ""


def _nft(said: str) -> tuple[_Chains, dict[str, str]]:
    """Read chains, by table and name, and the policies of those that see input."""
    chains: dict[str, list[tuple[str, str]]] = {}
    bases: dict[str, str] = {}
    table = chain = ""
    for line in map(str.strip, said.splitlines()):
        if match := re.fullmatch(r"table (\S+ \S+) \{", line):
            table = match[1]
        elif match := re.fullmatch(r"chain (\S+) \{", line):
            chain = f"{table} {match[1]}"
            chains[chain] = []
        elif match := re.match(r"type filter hook input .*policy (\w+);", line):
            bases[chain] = match[1]
        elif chain and (match := re.search(r"\b(?:(accept|drop)|(reject)|(?:jump|goto) (\S+))(?: |$)", line)):
            verdict = match[1] or match[2] or f"{table} {match[3]}"
            chains[chain].append((line[: match.start()], verdict))
    return chains, bases


def _iptables(said: str) -> tuple[_Chains, dict[str, str]]:
    """Read the chains of the table ``filter``."""
    chains: dict[str, list[tuple[str, str]]] = {}
    bases: dict[str, str] = {}
    table = ""
    for line in said.splitlines():
        if line.startswith("*"):
            table = line[1:].strip()
        elif table == "filter" and (match := re.match(r":INPUT (\w+)", line)):
            bases["INPUT"] = match[1].lower()
        elif table == "filter" and (match := re.match(r"-A (\S+) (.*?)-[jg] (\S+)", line)):
            verdict = match[3].lower() if match[3] in ("ACCEPT", "DROP", "REJECT") else match[3]
            chains.setdefault(match[1], []).append((match[2], verdict))
    return chains, bases


def _walk(chains: _Chains, chain: str, number: int, depth: int) -> bool | None:
    """Tell whether `chain` lets a new connection to the port in; None if it leaves that to who called it."""
    for looks_at, verdict in chains.get(chain, ()) if depth < _DEEPEST else ():
        ports = re.search(r"\bdports? (\{[^}]*\}|\S+)", looks_at)
        if _OTHERS.search(looks_at) or (ports and not _names(ports[1], number)):
            continue
        passes = {"accept": True, "drop": False, "reject": False}.get(verdict)
        if passes is None:
            passes = _walk(chains, verdict, number, depth + 1)
        if passes or (passes is False and not _SOME.search(looks_at)):
            return passes
    return None


def _names(ports: str, number: int) -> bool:
    """Tell whether `ports`, such as ``22,8000:9000`` or ``{ 22, 8000-9000 }`` or ``any``, has the port `number`."""
    return ports == "any" or any(low <= number <= high for low, high in _ranges(ports))


def _ranges(ports: str) -> Iterable[tuple[int, int]]:
    for low, high in re.findall(r"([0-9]{1,5})(?:[:-]([0-9]{1,5}))?", ports):
        yield int(low), int(high or low)
