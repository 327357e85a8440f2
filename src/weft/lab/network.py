# SPDX-License-Identifier: BSD-3-Clause
"""A lab's network: the hosts and cables in its file, and the iproute2 commands that create it. Runs nothing."""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from weft import _options
from weft.errors import InvalidParamError
from weft.lab.shaping import DELAY, LEAST_BPS, MOST_BPS, MOST_S, RATE, Way, bps, seconds, shape
from weft.topo import cpulist

_NAME = re.compile(r"[a-z][a-z0-9-]{0,14}")
_MOST = 250  # hosts on a cable, and cables: each has its own /24
SWITCH = "switch"


@dataclass(frozen=True, slots=True)
class Host:
    """A host: its name, which is in the others' ``/etc/hosts``, and the CPUs of its processes; None means all."""

    name: str
    cpus: str | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """Two hosts of a cable whose rate and delay, each way, differ from the cable's."""

    between: tuple[str, str]
    rate: str | None = None
    delay: str | None = None


@dataclass(frozen=True, slots=True)
class Cable:
    """A cable between two hosts, or a switch between more; rate and delay apply to each direction separately.

    `rate_per_flow` is what a single TCP connection gets at most, except between `pairs`.
    """

    between: tuple[str, ...]
    rate: str | None = None
    delay: str | None = None
    rate_per_flow: str | None = None
    pairs: tuple[Pair, ...] = ()


@dataclass(frozen=True, slots=True)
class Network:
    """Hosts and the cables between them. `cables` are the ``[[links]]`` of the file, in its order."""

    hosts: tuple[Host, ...]
    cables: tuple[Cable, ...]

    def address(self, host: str, *, cable: int = 0, version: int = 4) -> str:
        """Return a host's IP address on a cable, numbered as in the file; `version` is 4 or 6."""
        number = self.cables[cable].between.index(host) + 1
        if version == 4:
            return f"10.77.{cable}.{number}"
        return str(ipaddress.IPv6Address(0xFD77 << 112 | cable << 64 | number))

    def seen_from(self, host: str) -> dict[str, str]:
        """Return the address at which `host` reaches each host that it shares a cable with."""
        found: dict[str, str] = {}
        for i, cable in enumerate(self.cables):
            if host in cable.between:
                for other in cable.between:
                    found.setdefault(other, self.address(other, cable=i))
        return found


def read(path: str | Path) -> Network:
    """Read a lab's file.

    Parameters
    ----------
    path : str or Path
        A TOML file; docs/lab.md describes its keys.

    Raises
    ------
    InvalidParamError
        The file cannot be read, is not TOML, or does not describe a lab.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        return parse(tomllib.loads(text))
    except tomllib.TOMLDecodeError as e:
        raise InvalidParamError(f"{path}: not TOML: {e}") from None
    except (OSError, UnicodeDecodeError) as e:
        raise InvalidParamError(f"{path}: {_options.why_unread(e)}") from None
    except InvalidParamError as e:
        raise InvalidParamError(f"{path}: {e}") from None


def parse(record: Mapping[str, Any]) -> Network:
    """Make a network from `record`, the contents of a lab's file as a dictionary; docs/lab.md describes its keys.

    Raises
    ------
    InvalidParamError
        `record` does not describe a lab.
    """
    _refuse_others("the file", record, {"hosts", "links"})
    tables: Mapping[str, Any] | None = record.get("hosts")
    links: list[Any] | None = record.get("links", [])
    if not isinstance(tables, Mapping) or not tables:
        raise InvalidParamError("there are no hosts: write [hosts.a] and [hosts.b]")
    hosts = tuple(_host(name, table) for name, table in tables.items())
    if not isinstance(links, list) or len(links) > _MOST:
        raise InvalidParamError(f"links must be tables, [[links]], and at most {_MOST} of them")
    return Network(hosts, tuple(_cable(i, link, {host.name for host in hosts}) for i, link in enumerate(links)))


def _host(name: str, table: Any) -> Host:
    if name == "localhost":
        raise InvalidParamError(f"host {name!r}: each host has this name for itself; choose another")
    if re.fullmatch(rf"{SWITCH}\d*", name):
        raise InvalidParamError(f"host {name!r}: switches have this name; choose another")
    if not _NAME.fullmatch(name):
        raise InvalidParamError(f"host {name!r}: a name is a lower-case letter and up to 14 more, digits or hyphens")
    _refuse_others(f"host {name}", table, {"cpus"})
    cpus = table.get("cpus")
    if cpus is not None:
        try:
            if not cpulist.parse(str(cpus)):
                raise ValueError("none")
        except ValueError as e:
            raise InvalidParamError(f'host {name}: cpus={cpus!r} is not a list such as "0-3,8": {e}') from None
    return Host(name, None if cpus is None else str(cpus))


def _cable(index: int, table: Any, hosts: set[str]) -> Cable:
    what = f"link {index}"
    _refuse_others(what, table, {"between", "rate", "delay", "rate_per_flow", "pairs"})
    between = _between(what, table)
    if unknown := [name for name in between if name not in hosts]:
        raise InvalidParamError(f"{what}: no such host: {', '.join(map(str, unknown))}")
    given: list[Any] | None = table.get("pairs", [])
    if not isinstance(given, list):
        raise InvalidParamError(f"{what}: pairs must be tables, [[links.pairs]]")
    pairs = tuple(_pair(f"{what}, pair {i}", pair, between) for i, pair in enumerate(given))
    if len({frozenset(pair.between) for pair in pairs}) < len(pairs):
        raise InvalidParamError(f"{what}: two of its pairs are the same hosts")
    rate, delay = _rate(what, table, "rate"), _delay(what, table)
    return Cable(between, rate, delay, _rate(what, table, "rate_per_flow"), pairs)


def _pair(what: str, table: Any, hosts: tuple[str, ...]) -> Pair:
    _refuse_others(what, table, {"between", "rate", "delay"})
    between = _between(what, table)
    if len(between) != 2 or not {*between} <= {*hosts}:
        raise InvalidParamError(f"{what}: between={list(between)!r} must name two hosts of the link")
    return Pair((between[0], between[1]), _rate(what, table, "rate"), _delay(what, table))


def _between(what: str, table: Mapping[str, Any]) -> tuple[str, ...]:
    given: list[Any] | None = table.get("between")
    between = [name for name in given if isinstance(name, str)] if isinstance(given, list) else []
    if between != given or len(between) not in range(2, _MOST + 1) or len({*between}) < len(between):
        raise InvalidParamError(f'{what}: between={given!r} must name two hosts or more, such as ["a", "b"]')
    return tuple(between)


def _rate(what: str, table: Mapping[str, Any], key: str) -> str | None:
    rate = table.get(key)
    if rate is not None and not RATE.fullmatch(str(rate)):
        raise InvalidParamError(f'{what}: {key}={rate!r} is not a rate such as "100mbit" (kbit, mbit, gbit)')
    if rate is not None and not LEAST_BPS <= bps(rate) <= MOST_BPS:
        raise InvalidParamError(f"{what}: {key}={rate!r} is not between 1kbit and 1000gbit")
    return rate


def _delay(what: str, table: Mapping[str, Any]) -> str | None:
    delay = table.get("delay")
    if delay is not None and not DELAY.fullmatch(str(delay)):
        raise InvalidParamError(f'{what}: delay={delay!r} is not a time such as "5ms" (us, ms, s)')
    if delay is not None and seconds(delay) > MOST_S:
        raise InvalidParamError(f"{what}: delay={delay!r} is longer than {MOST_S}s")
    return delay


def _refuse_others(what: str, table: Any, known: set[str]) -> None:
    if not isinstance(table, Mapping):
        raise InvalidParamError(f"{what}: {table!r} is not a table")
    if others := [key for key in cast("Mapping[str, Any]", table) if key not in known]:
        raise InvalidParamError(f"{what}: unknown key {', '.join(others)}; the keys are {', '.join(sorted(known))}")


def namespaces(network: Network, prefix: str) -> dict[str, str]:
    """Return the names of the network namespaces: of each host, and of each switch."""
    switches = [f"{SWITCH}{i}" for i, cable in enumerate(network.cables) if len(cable.between) > 2]
    return {name: f"{prefix}-{name}" for name in [*(host.name for host in network.hosts), *switches]}


def commands(network: Network, namespaces: Mapping[str, str]) -> Iterator[list[str]]:
    """Yield, in order, the commands that build the network between existing namespaces."""
    for namespace in namespaces.values():
        yield ["ip", "-n", namespace, "link", "set", "lo", "up"]
    for i, cable in enumerate(network.cables):
        device = f"lab{i}"
        if len(cable.between) == 2:
            a, b = (namespaces[name] for name in cable.between)
            # Created in their own namespaces: nothing appears in the caller's.
            yield ["ip", "link", "add", device, "netns", a, "type", "veth", "peer", "name", device, "netns", b]
        else:
            yield from _switch(i, cable, namespaces)
        for name in cable.between:
            for version, bits in ((4, 24), (6, 64)):
                address = f"{network.address(name, cable=i, version=version)}/{bits}"
                # without nodad the kernel first looks for a duplicate of an IPv6 address, which takes seconds
                yield ["ip", "-n", namespaces[name], "addr", "add", address, "dev", device, *["nodad"][: version == 6]]
            yield ["ip", "-n", namespaces[name], "link", "set", device, "up"]
            ways = tuple(_ways(network, i, name))
            per_flow = cable.rate_per_flow
            yield from shape(namespaces[name], device, cable.rate, cable.delay, ways=ways, rate_per_flow=per_flow)


def _ways(network: Network, index: int, host: str) -> Iterator[Way]:
    for pair in network.cables[index].pairs:
        if host in pair.between:
            other = pair.between[pair.between.index(host) - 1]
            address, address6 = (network.address(other, cable=index, version=version) for version in (4, 6))
            yield Way((address, address6), pair.rate, pair.delay)


def _switch(index: int, cable: Cable, namespaces: Mapping[str, str]) -> Iterator[list[str]]:
    switch = namespaces[f"{SWITCH}{index}"]
    yield ["ip", "-n", switch, "link", "add", "bridge", "type", "bridge"]
    yield ["ip", "-n", switch, "link", "set", "bridge", "up"]
    for number, name in enumerate(cable.between):
        port = f"port{number}"
        ends = ["netns", namespaces[name], "type", "veth", "peer", "name", port, "netns", switch]
        yield ["ip", "link", "add", f"lab{index}", *ends]
        yield ["ip", "-n", switch, "link", "set", port, "master", "bridge", "up"]
        yield from shape(switch, port, cable.rate, None)  # towards the host; the delay is on the other direction
