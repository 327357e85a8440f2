# SPDX-License-Identifier: BSD-3-Clause
"""Connections between two hosts: two network namespaces, joined by a veth pair, with a process in each.

Abstract Unix sockets belong to a network namespace, so neither side can prove that it is on the other's host. The
processes have IPC namespaces of their own too, because UCX takes those who share one for neighbours. What only looks
alike here stays alike: processor, clock, user. A child ends itself after `WATCHDOG_S`: no line is awaited for ever.
"""

import ipaddress
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import weft
from weft import lab

WATCHDOG_S = 50
#: In place of weft._connect.sockets's 60 s. Below 10 the count of keepalive probes is 0, which the kernel refuses.
VANISHED_AFTER_S = 10
#: The kernel's keepalive timer runs in steps, and two cores run all that is here.
MARGIN_S = 5

PREAMBLE = f"""
import asyncio, faulthandler, functools, itertools, os, sys, time
faulthandler.dump_traceback_later({WATCHDOG_S}, exit=True)
import numpy as np
import weft, weft._connect.sockets
say = functools.partial(print, flush=True)
def meet(role, address):
    if role == "connect":
        return weft.connect(address, timeout=10).open()
    with weft.listen(address) as listener:
        say(listener.address)
        return listener.accept(100)
"""


class Host:
    """One side: its device and addresses, and processes in it."""

    def __init__(self, lab, name, spawn):
        self.ipv4, self.ipv6 = lab.address(name), lab.address(name, version=6)
        self.device = lab.device()
        self._lab, self._name, self._spawn = lab, name, spawn

    def ip(self, *arguments):
        return self._lab.ip(self._name, *arguments)

    def firewall(self, family, *arguments):
        """Change the rules of this host's firewall."""
        tables = "iptables" if family == "IPv4" else "ip6tables"
        command = self._lab.command(self._name, [tables, *arguments])
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"{tables} sets no rules here: {done.stderr.strip()}")

    def python(self, code, *arguments, own_ipc=True):
        """Run `code` here. The child turns into what the lab says, and that into Python: one process id, one pipe."""
        command = [sys.executable, "-c", PREAMBLE + code, *map(str, arguments)]
        return self._spawn(
            "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])",
            *self._lab.command(self._name, command, own_ipc=own_ipc),
            env={"UCX_LOG_FILE": "stderr"},  # its errors would come between the lines
        )


@pytest.fixture
def cable():
    """Two hosts, joined by a cable; taken down after `spawn` has ended the children."""
    try:
        with lab.Lab(lab.parse({"hosts": {"a": {}, "b": {}}, "links": [{"between": ["a", "b"]}]})) as standing:
            yield standing
    except weft.UnsupportedError as e:
        pytest.skip(str(e))


@pytest.fixture
def hosts(cable, spawn):
    return Host(cable, "a", spawn), Host(cable, "b", spawn)


ECHO = """
with meet("listen", sys.argv[1]) as peer:
    say(peer.same_host, *peer.transports)
    try:
        while True:
            peer.send(peer.recv().wait(100)).wait(100)
    except weft.PeerClosedError:
        say("goodbye")
"""

CALLER = """
async def main():
    async with asyncio.timeout(40), weft.connect(sys.argv[1], timeout=10) as peer:
        say(peer.same_host, *peer.transports)
        for nbytes in map(int, sys.argv[2:]):
            data = os.urandom(nbytes)
            sent = peer.send(data)
            assert bytes(await peer.recv()) == data, f"{nbytes} B came back changed"
            await sent
            say(nbytes)
        await asyncio.to_thread(sys.stdin.readline)
asyncio.run(main())
"""


def bound(host, family):
    return f"[{host.ipv6}]:0" if "IPv6" in family else f"{host.ipv4}:0"


@pytest.mark.parametrize("family", ["IPv4", "IPv6", "IPv6 alone"])
def test_messages_both_ways(hosts, family):
    """The listener blocks, the caller is in a loop."""
    a, b = hosts
    if family == "IPv6 alone":
        for host in hosts:
            host.ip("addr", "del", f"{host.ipv4}/24", "dev", host.device)
    listening = a.python(ECHO, bound(a, family))
    sizes = [8, 1 << 20, 64 << 20]
    calling = b.python(CALLER, listening.line(), *sizes)
    assert (listening.line(), calling.line()) == (f"False tcp/{a.device}", f"False tcp/{b.device}")
    assert [int(calling.line()) for _ in sizes] == sizes
    calling.say()
    assert listening.line() == "goodbye"
    assert (calling.wait(), listening.wait()) == (0, 0)


def test_a_link_local_address_keeps_its_device(hosts):
    """Without the device, nobody can connect to what a peer names as its address."""
    a, b = hosts
    ends = "\nwith meet(*sys.argv[1:]) as peer: say(peer.local_address, peer.remote_address)"

    for host, own in ((a, "fe80::a"), (b, "fe80::b")):
        host.ip("-6", "addr", "flush", "dev", host.device, "scope", "link")
        host.ip("addr", "add", f"{own}/64", "dev", host.device, "nodad")  # usable at once
    listening = a.python(ends, "listen", f"[fe80::a%{a.device}]:0")
    address = listening.line()
    calling = b.python(ends, "connect", address.replace(f"%{a.device}", f"%{b.device}"))
    assert listening.line().startswith(f"{address} [fe80::b%{a.device}]:")
    local, remote = calling.line().split()
    assert local.startswith(f"[fe80::b%{b.device}]:")
    assert remote == address.replace(f"%{a.device}", f"%{b.device}")


@pytest.mark.skipif(shutil.which("iptables") is None, reason="needs iptables")
@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
@pytest.mark.parametrize("firewalled", ["caller", "listener"])
def test_a_firewall_that_drops_incoming_connects_of_one_side_is_no_obstacle(hosts, family, firewalled):
    """UCX's own connection goes the other way: its blocking connect would stop the thread for two minutes."""
    if firewalled == "listener" and weft.ucx_library().version < (1, 17):
        pytest.skip("UCX 1.16 takes TCP_CONN_NB from the environment only")
    a, b = hosts
    listening = a.python(ECHO, bound(a, family))
    address = listening.line()
    behind, open_port = (b, []) if firewalled == "caller" else (a, ["!", "--dport", address.rpartition(":")[2]])
    behind.firewall(family, "-A", "INPUT", "-p", "tcp", "--syn", *open_port, "-j", "DROP")
    calling = b.python(CALLER, address, 8, 1 << 20)
    assert (listening.line(), calling.line()) == (f"False tcp/{a.device}", f"False tcp/{b.device}")
    assert [calling.line(), calling.line()] == ["8", str(1 << 20)]
    behind.firewall(family, "-D", "INPUT", "1")
    calling.say()
    assert listening.line() == "goodbye"
    assert (calling.wait(), listening.wait()) == (0, 0)


@pytest.mark.skipif(shutil.which("iptables") is None, reason="needs iptables")
@pytest.mark.skipif(weft.ucx_library().version < (1, 17), reason="UCX 1.16 takes TCP_CONN_NB from the environment only")
def test_a_firewall_that_refuses_ucx_is_named(hosts):
    a, b = hosts
    address = a.python(ECHO, bound(a, "IPv4")).line()
    rule = f"-A INPUT -p tcp --syn ! --dport {address.rpartition(':')[2]} -j REJECT --reject-with tcp-reset"
    a.firewall("IPv4", *rule.split())
    calling = b.python("try: meet('connect', sys.argv[1])\nexcept weft.UnreachableError as e: say(e)", address)
    assert "UCX's connection was refused (are UCX's own ports filtered" in calling.line()


READS_ROUTES = """
context = weft.Context({"TLS": "tcp"})
workers = [weft.Worker(context) for _ in range(2)]
workers[0].connect(workers[1].address)
async def main():
    async def echo(peer):
        await peer.send(await peer.recv())
    async with weft.listen(sys.argv[1], echo) as listener:
        say(listener.address)
        await asyncio.to_thread(sys.stdin.readline)
        say("still here")
asyncio.run(main())
"""


@pytest.mark.skipif(weft.ucx_library().version < (1, 20), reason="UCX before 1.20 reads routes for each connection")
@pytest.mark.parametrize("calls", [1, 2])
def test_a_caller_that_ucx_cannot_answer_is_refused_and_harms_nobody(hosts, calls):
    """UCX keeps the routes that it read first. Without a look at the way back, it crashes as it answers."""
    a, b = hosts
    a.ip("link", "add", "aside", "type", "veth", "peer", "name", "elsewhere")
    for device in ("aside", "elsewhere"):
        a.ip("link", "set", device, "up")
    a.ip("route", "add", f"{b.ipv4}/32", "dev", "aside")
    listening = a.python(READS_ROUTES, bound(a, "IPv4"))
    address = listening.line()
    a.ip("route", "del", f"{b.ipv4}/32", "dev", "aside")
    code = f"for _ in range({calls}):\n  try: meet('connect', sys.argv[1])\n  except weft.UnreachableError as e: say(e)"
    calling = b.python(code, address)
    for _ in range(calls):
        assert "UCX has no route back to it over the device that it came by" in calling.line()
    assert calling.wait() == 0
    listening.say()
    assert listening.line() == "still here"


COMES_TOO_EARLY = """
import subprocess
device, made, plain = sys.argv[2], [], weft.Context.__init__
def while_down(self, *args, **kwargs):
    made.append(self)
    if len(made) > 1:
        return plain(self, *args, **kwargs)
    subprocess.run(["ip", "link", "set", device, "down"], check=True)
    try:
        plain(self, *args, **kwargs)
    finally:
        subprocess.run(["ip", "link", "set", device, "up"], check=True)
weft.Context.__init__ = while_down
for _ in range(20):
    try:
        with meet("connect", sys.argv[1]) as peer:
            peer.send(b"x").wait(10)
            from weft._connect import links
            (worker,) = links._thread.workers._workers.values()
            say(bytes(peer.recv().wait(10)), worker.handshakes)
        break
    except weft.UnreachableError:
        say("unreachable")
        time.sleep(0.5)
"""


def test_a_process_that_started_without_its_network_finds_it_later(hosts):
    """UCX looks for devices only when a context is made."""
    a, b = hosts
    listening = a.python(ECHO, bound(a, "IPv4"))
    calling = b.python(COMES_TOO_EARLY, listening.line(), b.device)
    lines = [calling.line()]
    while lines[-1] == "unreachable":
        lines.append(calling.line())
    assert lines[-1] == "b'x' 0"
    assert len(lines) > 1, "the device was down too late"


def test_a_device_that_is_down_is_named(hosts):
    a, _ = hosts
    code = """
        context = weft.Context({"TLS": "tcp", "NET_DEVICES": sys.argv[1]})
        say("made")
        sys.stdin.readline()
        try:
            weft.Worker(context)
        except weft.UnreachableError as e:
            say(e)
    """
    child = a.python(textwrap.dedent(code), a.device)
    assert child.line() == "made"
    a.ip("link", "set", a.device, "down")
    child.say()
    assert "is its network device down?" in child.line()


def test_who_shares_the_ipc_namespace_but_not_the_host_gets_tcp(hosts):
    """As two containers with ``--ipc=host`` do."""
    a, b = hosts
    listening = a.python(ECHO, bound(a, "IPv4"), own_ipc=False)
    calling = b.python(CALLER, listening.line(), own_ipc=False)
    assert (listening.line(), calling.line()) == (f"False tcp/{a.device}", f"False tcp/{b.device}")


@pytest.mark.parametrize("wildcard", ["0.0.0.0:0", "[::]:0"])
@pytest.mark.parametrize("routed", [True, False], ids=["default route", "no route"])
def test_a_wildcard_tells_an_address_that_the_other_host_can_use(hosts, wildcard, routed):
    a, b = hosts
    if routed:
        a.ip("route", "add", "default", "via", b.ipv4)
        a.ip("-6", "route", "add", "default", "via", b.ipv6)
    listening = a.python(ECHO, wildcard)
    address = listening.line()
    assert address.rpartition(":")[0].strip("[]") in (a.ipv4, a.ipv6)
    calling = b.python(CALLER, address, 8)
    assert [calling.line(), calling.line()] == [f"False tcp/{b.device}", "8"]


def listening_at(pid):
    """All (address, port) pairs at which anybody listens in the namespace of that process."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            local, _, state = line.split()[1:4]
            if state == "0A":
                packed, port = local.split(":")
                words = [bytes.fromhex(packed[i : i + 8])[::-1] for i in range(0, len(packed), 8)]
                found.add((str(ipaddress.ip_address(b"".join(words))), int(port, 16)))
    return found


@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
def test_ucx_listens_on_the_device_of_the_connection_only(hosts, family):
    a, b = hosts
    a.ip("link", "add", "other0", "type", "veth", "peer", "name", "other1")
    a.ip("addr", "add", "10.78.0.1/24", "dev", "other0")
    a.ip("link", "set", "other0", "up")
    a.ip("link", "set", "other1", "up")
    listening = a.python(ECHO, bound(a, family))
    host, _, port = listening.line().rpartition(":")
    own = (host.strip("[]"), int(port))
    assert listening_at(listening.pid) == {own}
    calling = b.python(CALLER, f"{host}:{port}", 8)
    assert [calling.line(), calling.line()] == [f"False tcp/{b.device}", "8"]
    ucx = listening_at(listening.pid) - {own}
    assert ucx
    assert {address for address, _ in ucx} <= {a.ipv4, a.ipv6}
    assert {address for address, _ in listening_at(calling.pid)} <= {b.ipv4, b.ipv6}


TWO = """
with weft.listen(sys.argv[1]) as listener:
    say(listener.address)
    for peer in [listener.accept(20) for _ in range(2)]:
        peer.send(peer.recv().wait(20)).wait(20)
        peer.close().wait(20)
"""
COUNTS = """
from weft._connect import handshake
sent, encode = [], handshake.encode
handshake.encode = lambda **message: sent.append(message) or encode(**message)
peers = []
for _ in range(2):
    peers.append(weft.connect(sys.argv[1], timeout=20).open())
    say(len(sent))
for peer in peers:
    peer.send(b"x").wait(20)
    say(bytes(peer.recv().wait(20)))
"""


def test_a_listener_that_has_a_worker_names_it_at_once(hosts):
    a, b = hosts
    listening = a.python(TWO, bound(a, "IPv4"))
    calling = b.python(COUNTS, listening.line())
    assert [calling.line() for _ in range(4)] == ["4", "7", "b'x'", "b'x'"]


def test_an_address_that_the_loopback_has_too(hosts):
    """As a host behind IPVS has it."""
    a, b = hosts
    a.ip("addr", "add", f"{a.ipv4}/32", "dev", "lo")
    listening = a.python(ECHO, bound(a, "IPv4"))
    calling = b.python(CALLER, listening.line(), 8)
    assert [listening.line(), calling.line()] == [f"False tcp/{a.device}", f"False tcp/{b.device}"]


@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
@pytest.mark.parametrize("bind", ["the address", "all addresses"])
@pytest.mark.parametrize("device", ["lo", "none0"])
def test_addresses_of_a_device_that_leads_nowhere(hosts, family, bind, device):
    """As a service's address that a host announces itself: both ends may have one."""
    at_a, at_b, prefix = ("10.98.0.1", "10.98.0.2", 32) if family == "IPv4" else ("fd98::1", "fd98::2", 128)
    a, b = hosts
    for host, own, other, way in ((a, at_a, at_b, b), (b, at_b, at_a, a)):
        way = way.ipv4 if family == "IPv4" else way.ipv6
        if device != "lo":  # as a dummy, which not all kernels have
            host.ip("link", "add", device, "type", "veth", "peer", "name", "none1")
            host.ip("link", "set", device, "arp", "off", "up")
            host.ip("link", "set", "none1", "up")
        host.ip("addr", "add", f"{own}/{prefix}", "dev", device)
        host.ip("route", "add", f"{other}/{prefix}", "via", way, "src", own)
    wildcard, service = ("0.0.0.0", at_a) if family == "IPv4" else ("[::]", f"[{at_a}]")
    listening = a.python(ECHO, f"{service if bind == 'the address' else wildcard}:0")
    port = listening.line().rpartition(":")[2]
    calling = b.python(CALLER, f"{service}:{port}", 8, 1 << 20)
    assert (listening.line(), calling.line()) == (f"False tcp/{a.device}", f"False tcp/{b.device}")
    assert [calling.line(), calling.line()] == ["8", str(1 << 20)]


FLOWS_SERVED = """
async def answer(peer):
    while True:
        await peer.send(await peer.recv())
async def main():
    async with weft.listen(sys.argv[1], answer) as listener:
        say(listener.address)
        await asyncio.to_thread(sys.stdin.readline)
asyncio.run(main())
"""
FLOWS = """
async def main():
    async with asyncio.timeout(40):
        for flow in (0, 0, 1, 1, 2):
            peer = await weft.connect(sys.argv[1], flow=flow)
            await peer.send(bytes(1 << 20))
            assert len(await peer.recv()) == 1 << 20
            say(flow)
            await asyncio.to_thread(sys.stdin.readline)
            globals().setdefault("peers", []).append(peer)
asyncio.run(main())
"""


def established_at(pid):
    return sum(line.split()[3] == "01" for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:])


def test_each_flow_has_its_own_tcp_connection(hosts):
    a, b = hosts
    listening = a.python(FLOWS_SERVED, bound(a, "IPv4"))
    calling = b.python(FLOWS, listening.line())
    counts = []
    for _ in range(5):
        calling.line()
        counts.append(established_at(calling.pid))
        calling.say()
    assert counts[1] == counts[0], "two connections of one flow share it"
    assert counts[2] == counts[3] == 2 * counts[0]
    assert counts[4] == 3 * counts[0]


#: One side that works, or waits, until the other is lost; then it tells when, and how each operation ended.
PARTY = """
phase, weft._connect.sockets.VANISHED_AFTER_S = sys.argv[3], int(sys.argv[4])
peer = meet(*sys.argv[1:3])
data = bytes(64 << 20)
pending = []
def outcome(operation):
    try:
        operation().wait(5)
    except Exception as e:
        return type(e).__name__
try:
    if phase == "deaf":
        say("ready")
        sys.stdin.readline()
    if phase in ("idle", "unheard"):
        pending = [peer.recv(), peer.recv()] if phase == "idle" else [peer.send(data) for _ in range(3)]
        say("ready")
        pending[-1].wait(30)
    waiting = [] if phase == "receives" else [peer.recv()]
    for i in itertools.count():
        if i == 3:
            say("ready")
        pending = [peer.recv() if phase == "receives" else peer.send(data), *waiting]
        pending[0].wait(30)
except weft.Error as e:
    say(time.monotonic(), type(e).__name__)
later = [lambda: peer.send(b"x"), lambda: peer.send(data), peer.recv, peer.close]
say(*map(outcome, [(lambda request=request: request) for request in pending] + later))
peer.abort()
"""


def loss(party):
    """Return when the party lost the other, by the clock that all processes share; check that all it did failed."""
    when, error = party.line().split()
    assert error == "PeerLostError"
    assert set(party.line().split()) == {"PeerLostError"}
    assert party.wait() == 0
    return float(when)


@pytest.mark.parametrize("killed", ["listen", "connect"])
@pytest.mark.parametrize(
    ("victim", "survivor"), [("idle", "idle"), ("sends", "receives"), ("receives", "sends"), ("deaf", "unheard")]
)
def test_sigkill_on_the_other_host(hosts, victim, survivor, killed):
    a, b = hosts
    phases = (victim, survivor) if killed == "listen" else (survivor, victim)
    listening = a.python(PARTY, "listen", bound(a, "IPv4"), phases[0], 60)
    calling = b.python(PARTY, "connect", listening.line(), phases[1], 60)
    assert (listening.line(), calling.line()) == ("ready", "ready")
    dies, lives = (listening, calling) if killed == "listen" else (calling, listening)
    since = time.monotonic()
    os.kill(dies.pid, signal.SIGKILL)
    assert loss(lives) - since < MARGIN_S


@pytest.mark.slow
@pytest.mark.parametrize("phases", [("idle", "idle"), ("sends", "receives")], ids=["idle", "in mid-transfer"])
def test_a_cable_that_is_pulled_is_noticed_on_both_sides(hosts, phases):
    a, b = hosts
    parties = {}
    for family in ("IPv4", "IPv6"):
        listening = a.python(PARTY, "listen", bound(a, family), phases[0], VANISHED_AFTER_S)
        calling = b.python(PARTY, "connect", listening.line(), phases[1], VANISHED_AFTER_S)
        assert (listening.line(), calling.line()) == ("ready", "ready")
        parties |= {f"{family}, its own end": listening, f"{family}, the other end": calling}
    since = time.monotonic()
    a.ip("link", "set", a.device, "down")
    lost_s = {name: loss(party) - since for name, party in parties.items()}
    assert max(lost_s.values()) < VANISHED_AFTER_S + MARGIN_S, lost_s


@pytest.mark.slow
def test_a_host_that_came_back_without_its_processes_is_noticed(hosts):
    """Half-open: one side is gone and could not say so. The cable is back, so its kernel answers the next probe."""
    a, b = hosts
    listening = a.python(PARTY, "listen", bound(a, "IPv4"), "idle", 60)
    calling = b.python(PARTY, "connect", listening.line(), "idle", VANISHED_AFTER_S)
    assert (listening.line(), calling.line()) == ("ready", "ready")
    a.ip("link", "set", a.device, "down")
    listening.kill()
    a.ip("link", "set", a.device, "up")
    since = time.monotonic()
    assert loss(calling) - since < VANISHED_AFTER_S + MARGIN_S


LENDER = """
with meet(*sys.argv[1:]) as peer, weft.arrays_in_pool():
    lent = peer.lend(np.full(8 << 20, 3, "u1"))
    received = peer.recv().wait(100)
    assert np.frombuffer(received, "u1").sum(dtype="u8") == 3 * (8 << 20)
    lent.wait(100)
    peer.lend(received).wait(100)
    assert peer.recv().wait(100) == received
    say(*peer.lent_nbytes)
"""


def test_what_is_lent_across_the_network_is_sent(hosts):
    a, b = hosts
    listening = a.python(LENDER, "listen", bound(a, "IPv4"))
    calling = b.python(LENDER, "connect", listening.line())
    assert (listening.line(), calling.line()) == ("0 0", "0 0")
    assert (listening.wait(), calling.wait()) == (0, 0)


EXPLAINED = """
import json
from weft.explain import round_trip
round_trip._MEASURE_S = 0.05
say(json.dumps(round_trip.explain(sys.argv[1]).json()))
"""


def test_explained_from_the_other_host(hosts):
    a, b = hosts
    echo = "from weft.explain import round_trip; round_trip.echo(sys.argv[1], once=True)"
    answering = a.python(echo, bound(a, "IPv4"))
    told = json.loads(b.python(EXPLAINED, answering.line()).line())
    assert (told["same_host"], told["lines"][1].split(" ", 1)[1]) == (False, f"inter-node cfg#0 tag(tcp/{b.device})")
    assert told["apart"] == "same boot of the same kernel, but another net namespace, another ipc namespace"
    assert told["settings"]["NET_DEVICES"]["value"].split(",")[0] == b.device
    posix = next(each for each in told["transports"] if each["transport"] == "posix")
    assert not posix["chosen"]
    assert posix["reason"].endswith(told["apart"])
    assert {size["lanes"] for size in told["sizes"] if size["layer"] == "UCX"} == {f"tcp/{b.device}"}
    assert all(time["observed_s"] > 0 for time in told["times"])
    assert answering.wait() == 0
