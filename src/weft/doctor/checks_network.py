# SPDX-License-Identifier: BSD-3-Clause
"""Host names, MTU, and reasons why a port cannot be reached."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable

from weft.doctor import firewall
from weft.doctor.finding import Finding, error, not_applicable, note, ok, warning
from weft.doctor.machine import Machine, brief

_LISTENING = "0A"
_IFF_UP = 1
_EPHEMERAL = "proc/sys/net/ipv4/ip_local_port_range"


def host_name(machine: Machine) -> Finding:
    """Check the address that the machine's own name resolves to: Debian's is 127.0.1.1."""
    command = f"getent ahosts {machine.host}"
    said = machine.commands.get(command)
    if command not in machine.commands:
        return note("the address of the host's name is not known", "getent: not found")
    source = "Debian reference: the hostname resolution; dask.distributed: --host, --interface"
    if said is None:
        return note(
            f"the name {brief(machine.host)} does not resolve, or its name server is slow",
            f"{command}: no answer",
            remedy="give scheduler and workers --host or --interface; or a line in /etc/hosts with its address",
            source=source,
        )
    found = [address for line in said.splitlines() if line.split() and (address := _address(line.split()[0]))]
    addresses = list(dict.fromkeys(found))
    evidence = [f"{command}: {', '.join(map(str, addresses)) or brief(said)}"]
    if not addresses:
        return note(f"the address of the name {brief(machine.host)} is not known", *evidence)
    if not all(address.is_loopback for address in addresses):
        return ok(f"{machine.host} is {addresses[0]}", *evidence)
    for line in (machine.text("etc/hosts") or "").splitlines():
        if machine.host in line.partition("#")[0].split()[1:]:
            evidence.append(f"/etc/hosts: {brief(line)}")
    what = (
        f"{machine.host} resolves to {addresses[0]}: other machines cannot connect to this host by that name or address"
    )
    remedy = "give scheduler and workers --host ADDRESS or --interface NAME; or put its real address in /etc/hosts"
    if machine.slurm or any(nic.rdma for nic in machine.topology.nics):
        return warning(what, *evidence, remedy=remedy, source=source)
    return note(what, *evidence, remedy=remedy, source=source)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None


def loopback(machine: Machine) -> Finding:
    """Check that the loopback is up: in a new network namespace it is not."""
    file = "sys/class/net/lo/flags"
    flags = machine.text(file) or ""
    evidence = machine.quote(file)
    trie = machine.text("proc/net/fib_trie")
    if trie is not None and "127.0.0." not in trie:  # /sys can be another network namespace's
        evidence = "/proc/net/fib_trie: no 127.0.0.0"
    elif not re.fullmatch("0x[0-9a-f]{1,8}", flags):
        return note("cannot tell whether the loopback is up", evidence)
    elif int(flags, 16) & _IFF_UP:
        return ok("the loopback is up", evidence)
    return error(
        "the loopback is down: this host cannot connect to its own addresses",
        evidence,
        remedy="ip link set lo up",
        source="netdevice(7): IFF_UP",
    )


def mtu(machine: Machine) -> Finding:
    """Check the MTU of the network devices that are up."""
    evidence: list[str] = []
    small: list[str] = []
    for nic in machine.topology.nics:
        value = machine.number(f"sys/class/net/{nic.name}/mtu")
        if nic.rdma or value is None or not any(port.up for port in nic.ports):
            continue
        evidence.append(machine.quote(f"sys/class/net/{nic.name}/mtu"))
        fast = any((port.rate_bps or 0) >= 10e9 for port in nic.ports)
        if nic.kind == "ipoib" and value < 4000:
            mode = machine.text(f"sys/class/net/{nic.name}/mode") or ""
            small.append(f"{nic.name} ({brief(mode) or 'IPoIB'}, {value})")
        elif fast and value <= 1500:
            small.append(f"{nic.name} ({value})")
    if not evidence:
        return not_applicable("no network device of hardware is up", "/sys/class/net: none with a device and an mtu")
    if not small:
        return ok("the MTU suits the devices", *evidence)
    return note(
        f"a fast network with small packets: {', '.join(small)}; tcp costs more CPU than necessary",
        *evidence,
        remedy="if switches and all hosts allow it: ip link set DEVICE mtu 9000 (IPoIB: echo connected > mode, 65520)",
        source="Linux, Documentation/infiniband/ipoib.rst; ip-link(8)",
    )


def port(number: int) -> Callable[[Machine], Finding]:
    """Make the check of a port: which process listens there, and whether a packet filter blocks it."""

    def reachable(machine: Machine) -> Finding:
        low_high = (machine.text(_EPHEMERAL) or "").split()
        spread = "-".join(low_high) if len(low_high) == 2 and all(w.isdecimal() for w in low_high) else "32768-60999"
        listening = _listening(machine, number)
        evidence = [f"/proc/net/tcp, tcp6: {', '.join(listening) or 'nobody'} listens at {number}"]
        closed = firewall.closed(machine, number, evidence)
        tail = f"UCX listens at ports of its own, {spread}, for tcp: those must be open between the machines too"
        if closed:
            return warning(
                f"port {number} looks closed from outside: {closed}",
                *evidence,
                remedy=f"open it; {tail}; `weft doctor --listen` here and `--pair` there try it",
                source="weft's docs, design: connections",
            )
        if listening and all(address.startswith("127.") or address == "::1" for address in listening):
            return warning(
                f"port {number} listens on the loopback only: no other machine reaches it",
                *evidence,
                remedy="listen on an address of the network: --host or --interface",
                source="tcp(7)",
            )
        state = f"{', '.join(listening)} listens" if listening else "free"
        if closed is None:
            return note(f"port {number}: {state}; whether a packet filter drops it was not looked at", *evidence)
        return ok(f"port {number}: {state}; no filter seen that drops it", *evidence)

    return reachable


def _listening(machine: Machine, number: int) -> list[str]:
    found: list[str] = []
    for table in ("tcp", "tcp6"):
        for line in (machine.text(f"proc/net/{table}") or "").splitlines():
            match = re.match(rf"\s*\d+: ((?:[0-9A-F]{{8}}){{1,4}}):{number:04X} \S+ {_LISTENING} ", line)
            if match:
                words = [bytes.fromhex(match[1][i : i + 8])[::-1] for i in range(0, len(match[1]), 8)]
                packed = b"".join(words)
                if len(packed) in (4, 16):
                    found.append(str(ipaddress.ip_address(packed)))
    return list(dict.fromkeys(found))
