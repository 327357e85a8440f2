# SPDX-License-Identifier: BSD-3-Clause
"""The path between two machines: a short transfer over each transport, between two processes started for it.

The two doctors exchange lines of JSON over a plain TCP socket, so that they can report the cause even if UCX cannot
connect. Everyone who reaches the listener can make it run a trial of a few seconds, one at a time.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from typing import Any, cast

import weft
from weft._connect.address import join, resolve, split, unbound_remedy
from weft._units import format_rate, format_seconds
from weft.doctor import here, ucx
from weft.doctor.finding import Finding, error, note, ok, warning
from weft.doctor.machine import Machine, brief, printable
from weft.doctor.trial_end import LIMIT_S

PORT = 13338
#: UCX_TLS of each trial; None leaves the choice to weft and the user's variables.
TRIALS: Mapping[str, str | None] = {"default": None, "posix": "posix,self", "tcp": "tcp,self", "rc": "rc,self"}
_DEVICES = "UCX_NET_DEVICES"
_LINE_NBYTES = 4096
_REQUESTS = 16
_CONNECT_S = 5.0
_QUIET_S = 2.0  # without an answer; then it says what it waits for
_SOURCE = "weft's docs, doctor: between two machines"


def serve(address: str) -> None:
    """Answer other doctors until interrupted; the first line printed says how to reach this one."""
    host, port = split(address)
    try:
        named = address.rpartition("]")[2].count(":") == 1  # a port, which may be 0: any
        family, sockaddr = resolve(host, port if named else PORT, passive=True)[0]
        server = socket.create_server(sockaddr[:2], family=family)
    except OSError as e:
        # the text of create_server repeats the address; that of a name's look-up has no number of the system's
        why = os.strerror(e.errno) if e.errno and e.errno > 0 else e.strerror or e
        raise weft.AddressError(f"listen on {join(host, port or PORT)}: {why}{unbound_remedy(e)}") from None
    with server:
        bound = server.getsockname()[:2]
        print(f"listening on {join(*bound)}; on the other machine: weft doctor --pair HOST:{bound[1]}", flush=True)
        while True:
            caller, _ = server.accept()
            with caller:
                caller.settimeout(LIMIT_S)
                with contextlib.suppress(OSError, ValueError):  # the caller sent garbage, or disconnected
                    _serve(caller)


def _serve(caller: socket.socket) -> None:
    with caller.makefile("rwb") as lines:
        _write_line(lines, _self())
        for _ in range(_REQUESTS):
            trial = str(_read_line(lines).get("trial"))
            if trial not in TRIALS:
                return
            with _end("listen", join(caller.getsockname()[0], 0), TRIALS[trial]) as end:
                _write_line(lines, _answer(end, LIMIT_S))
                _read_line(lines)  # the caller has finished


def examine(address: str) -> dict[str, Finding]:
    """Try each transport to the doctor that listens at `address`."""
    host, port = split(address)
    name = join(host, port or PORT)
    try:
        sock = socket.create_connection((host, port or PORT), timeout=_CONNECT_S)
    except OSError as e:
        return {"path": _unreached(name, e)}
    with sock, sock.makefile("rwb") as lines:
        sock.settimeout(LIMIT_S)
        if not select.select([sock], [], [], _QUIET_S)[0]:
            why = "it may be answering another doctor, or not be one"
            print(f"weft doctor: no answer from {name} yet: {why}; waiting {LIMIT_S} s", file=sys.stderr, flush=True)
        try:
            return _examine(lines, name)
        except (OSError, ValueError) as e:
            what = f"{name} is not a weft doctor, or it ended: {brief(str(e)) or type(e).__name__}"
            remedy = "run weft doctor --listen there, of the same version"
            return {"path": error(what, f"{name}: no valid answer", remedy=remedy, source=_SOURCE)}


def _examine(lines: io.BufferedRWPair, name: str) -> dict[str, Finding]:
    there, own = _read_line(lines), _self()
    found = {"path": _path(name, there, own)}
    set_to = {"there": there.get(_DEVICES), "here": own[_DEVICES]}
    devices = printable(", ".join(f"{value} {where}" for where, value in set_to.items() if value))
    same_host = False
    for trial, tls in TRIALS.items():
        if (trial == "posix" and not same_host) or (trial == "rc" and not (there.get("rdma") and own["rdma"])):
            continue
        _write_line(lines, {"trial": trial})
        told = _read_line(lines)
        if "address" in told:
            with _end("connect", str(told["address"]), tls) as end:
                told = _answer(end, LIMIT_S)
        else:
            told = {"error": f"at the other end: {told.get('error', 'no answer')}"}
        _write_line(lines, {"done": True})
        same_host = same_host or bool(told.get("same_host"))
        found[trial] = _judged(trial, told, devices)
    return found


def _self() -> dict[str, Any]:
    """Describe this side."""
    machine = here.files()
    chosen = ucx.chosen(machine)
    return {
        "weft": weft.__version__,
        "ucx": chosen.version if chosen else "",
        "UCX_TLS": machine.environ.get("UCX_TLS") or "not set",
        _DEVICES: machine.environ.get(_DEVICES, ""),
        "rdma": _rdma(machine, chosen),
    }


def _rdma(machine: Machine, chosen: ucx.Ucx | None) -> bool:
    # Amazon's EFA has no rc
    verbs = [nic for nic in machine.topology.nics if nic.kind in ("infiniband", "roce")]
    active = any(port.up for nic in verbs for port in nic.ports)
    return active and chosen is not None and chosen.verbs


def _path(name: str, there: dict[str, Any], own: dict[str, Any]) -> Finding:
    both = {key: (brief(str(there.get(key, "?"))), str(own[key])) for key in ("weft", "ucx", "UCX_TLS")}
    evidence = [f"{key}: {other} there, {mine} here" for key, (other, mine) in both.items()]
    unlike = [key for key, (other, mine) in both.items() if other != mine]
    if "UCX_TLS" in unlike:
        remedy = "set the same UCX_TLS at both ends, or none: both must have a transport in common"
        return warning(f"{name} answers, but has another UCX_TLS", *evidence, remedy=remedy, source=_SOURCE)
    if unlike:
        remedy = "install the same versions on both: UCX promises nothing between different ones"
        return note(f"{name} answers, but has other versions", *evidence, remedy=remedy, source=_SOURCE)
    return ok(f"{name} answers, with the same versions", *evidence)


def _unreached(name: str, failure: OSError) -> Finding:
    remedy = "check the address and the route to it"
    if isinstance(failure, ConnectionRefusedError):
        remedy = "start it there: weft doctor --listen"
    elif isinstance(failure, TimeoutError):
        remedy = "open the port in its firewall (weft doctor --port there looks), and see that the host is up"
    elif isinstance(failure, socket.gaierror):
        remedy = "the name is not known here: write the address"
    evidence = f"connect to {name}: {brief(failure.strerror or str(failure))}"
    return error(f"{name} cannot be reached", evidence, remedy=remedy, source=_SOURCE)


def _judged(trial: str, told: dict[str, Any], devices: str = "") -> Finding:
    try:
        lanes = ", ".join(map(str, told["transports"]))
        one_way, rate = format_seconds(float(told["one_way_s"])), format_rate(float(told["bandwidth_Bps"]))
        speed = f"{one_way} one way for 8 B, {rate} for 8 MiB"
        return ok(printable(f"{lanes}: {speed}"), f"UCX_TLS: {TRIALS[trial] or 'unchanged'}")
    except (KeyError, TypeError, ValueError):
        said = printable(str(told.get("error", "no answer")))
    remedy = (
        "open the ephemeral ports between the machines (or those of UCX_TCP_PORT_RANGE, set at both ends): UCX listens"
        " there; if only large messages fail, compare the MTU of all that lies between"
    )
    if "found no device" in said:
        remedy = "correct or unset UCX_TLS and UCX_NET_DEVICES at the end that finds no device"
    elif trial == "posix":
        remedy = "look at shared memory: weft doctor"
    elif devices:
        remedy = f"{_DEVICES} is set ({devices}): unset it, or name the device that leads to the other machine"
    elif "several addresses" in said:
        remedy = (
            "if a device has several addresses, make the one that the other machine can reach its first (ip addr shows"
            " the order); else open the ephemeral ports between the machines, where UCX listens"
        )
    elif trial == "rc":
        remedy = "look at RDMA ports and locked memory at both ends: weft doctor there and here"
    return error(f"no transfer: {said}", f"UCX_TLS: {TRIALS[trial] or 'unchanged'}", remedy=remedy, source=_SOURCE)


@contextlib.contextmanager
def _end(role: str, address: str, tls: str | None) -> Generator[subprocess.Popen[bytes]]:
    """Start one end of a trial; on exit it has ended."""
    environment = dict(os.environ) if tls is None else {**os.environ, "UCX_TLS": tls}
    command = [sys.executable, "-m", "weft.doctor.trial_end", role, address]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)  # it has printed its answer; let it close cleanly
            process.kill()


def _answer(process: subprocess.Popen[bytes], limit_s: float) -> dict[str, Any]:
    """Read the one line that an end prints."""
    assert process.stdout is not None
    until = time.monotonic() + limit_s
    said = b""
    while not said.endswith(b"\n") and len(said) < _LINE_NBYTES:
        ready, _, _ = select.select([process.stdout], [], [], max(until - time.monotonic(), 0))
        chunk = os.read(process.stdout.fileno(), _LINE_NBYTES) if ready else b""
        if not chunk:
            return {"error": "this end ended without a word" if ready else f"nothing within {limit_s:.0f} s"}
        said += chunk
    return _parsed(said)


def _write_line(lines: io.BufferedRWPair, told: dict[str, Any]) -> None:
    lines.write(json.dumps(told).encode() + b"\n")
    lines.flush()


def _read_line(lines: io.BufferedRWPair) -> dict[str, Any]:
    return _parsed(lines.readline(_LINE_NBYTES))


def _parsed(line: bytes) -> dict[str, Any]:
    if not line:
        raise ValueError("it closed the connection")
    told = None
    with contextlib.suppress(ValueError, RecursionError):  # 4 KiB of "[" exceed the interpreter's recursion limit
        told = json.loads(line)
    if not isinstance(told, dict):
        raise ValueError(f"it sent {line[:40]!r}")
    return cast("dict[str, Any]", told)
