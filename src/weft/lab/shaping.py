# SPDX-License-Identifier: BSD-3-Clause
"""How fast packets leave a lab's hosts and switches: the ``tc`` commands for a device. Runs nothing.

A rate alone is a token bucket. If some destinations differ, or each flow has a cap, it is a tree of HTB classes: one
for each such destination, and many across which flows are hashed by their ports. (``fq maxrate`` would cap flows
without collisions, but fewer kernels have it.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

RATE = re.compile(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)")
DELAY = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s)")
_BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
#: Bits per second, and seconds. tc takes no longer delay than 274 s, and no burst above 4 GiB.
LEAST_BPS, MOST_BPS, MOST_S = 1e3, 1e12, 270
#: The burst of a shaper: 10 ms of the rate, and two of the largest packets that a veth takes.
_BURST_S, _BURST_NBYTES = 0.01, 128 << 10
#: The rate that HTB treats as no limit, and the guaranteed rate of each class, which borrows the rest.
_ANY, _OWN = "100gbit", "64kbit"
#: Flows are hashed to this many classes, so two of four flows share one in 5 % of cases.
FLOW_CLASSES = 128
_FIRST_FLOW, _FIRST_WAY = 0x1000, 0x10
#: The class is half of the xor of both ports: the lowest bit is the same for all connecting sockets.
_BY_PORTS = (
    (0xB1, 14),  # x = length of the IP header, behind Ethernet's
    (0x48, 14),  # a = source port
    (0x02, 0),
    (0x48, 16),  # a = destination port
    (0x61, 0),
    (0xAC, 0),  # a ^= x
    (0x74, 1),  # a >>= 1
    (0x54, FLOW_CLASSES - 1),
    (0x04, 1 << 16 | _FIRST_FLOW),  # of the qdisc 1:
    (0x16, 0),
)


class Way(NamedTuple):
    """Rate and delay to one destination, by its addresses, that differ from those to others."""

    addresses: tuple[str, str]
    rate: str | None = None
    delay: str | None = None


def bps(rate: str) -> float:
    """Return the bits per second of a rate such as ``100mbit``."""
    match = RATE.fullmatch(rate)
    assert match is not None
    return float(match[1]) * _BITS[match[2]]


def seconds(delay: str) -> float:
    """Return the seconds of a delay such as ``5ms``."""
    match = DELAY.fullmatch(delay)
    assert match is not None
    return float(match[1]) * _SECONDS[match[2]]


def shape(
    namespace: str,
    device: str,
    rate: str | None,
    delay: str | None,
    *,
    ways: tuple[Way, ...] = (),
    rate_per_flow: str | None = None,
) -> Iterator[list[str]]:
    """Yield the commands that limit a device to `rate` after `delay`, with other limits for `ways` and each flow."""
    if ways or rate_per_flow is not None:
        yield from _tree(["tc", "-n", namespace], ["dev", device], rate, delay, ways, rate_per_flow)
        return
    add = ["tc", "-n", namespace, "qdisc", "add", "dev", device]
    if rate is not None:
        yield [*add, "root", "handle", "1:", "tbf", "rate", rate, "burst", f"{_burst(rate)}b", "latency", "50ms"]
    if delay is not None:
        yield [*add, *(["parent", "1:1"] if rate is not None else ["root"]), "netem", "delay", delay, "limit", "100000"]


def _tree(
    tc: list[str], on: list[str], rate: str | None, delay: str | None, ways: tuple[Way, ...], rate_per_flow: str | None
) -> Iterator[list[str]]:
    most = rate or _ANY

    def leaf(number: int, ceil: str, delay: str | None) -> Iterator[list[str]]:
        limits = ["rate", _OWN, "ceil", ceil, "cburst", f"{_burst(ceil)}b", "quantum", "60000"]
        yield [*tc, "class", "add", *on, "parent", "1:1", "classid", f"1:{number:x}", "htb", *limits]
        if delay is not None:
            netem = ["netem", "delay", delay, "limit", "100000"]
            yield [*tc, "qdisc", "add", *on, "parent", f"1:{number:x}", *netem]

    yield [*tc, "qdisc", "add", *on, "root", "handle", "1:", "htb", "default", "2"]
    burst = f"{_burst(most)}b"
    root = ["htb", "rate", most, "ceil", most, "burst", burst, "cburst", burst, "quantum", "60000"]
    yield [*tc, "class", "add", *on, "parent", "1:", "classid", "1:1", *root]
    yield from leaf(2, most, delay)
    add = [*tc, "filter", "add", *on, "parent", "1:"]
    for i, way in enumerate(ways):
        yield from leaf(_FIRST_WAY + i, way.rate or most, way.delay or delay)
        to = ["flowid", f"1:{_FIRST_WAY + i:x}"]
        for prio, (protocol, match, address) in enumerate(
            (("ip", "ip", f"{way.addresses[0]}/32"), ("ipv6", "ip6", f"{way.addresses[1]}/128")), 1
        ):
            yield [*add, "protocol", protocol, "prio", f"{prio}", "u32", "match", match, "dst", address, *to]
    if rate_per_flow is not None:
        for i in range(FLOW_CLASSES):
            yield from leaf(_FIRST_FLOW + i, rate_per_flow, delay)
        program = f"{len(_BY_PORTS)}," + ",".join(f"{code} 0 0 {k}" for code, k in _BY_PORTS)
        yield [*add, "protocol", "ip", "prio", "3", "bpf", "bytecode", program]


def _burst(rate: str) -> int:
    return max(int(bps(rate) / 8 * _BURST_S), _BURST_NBYTES)
