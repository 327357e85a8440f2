# SPDX-License-Identifier: BSD-3-Clause
"""The labs that ``weft bench links`` builds, and what is run on each. Nothing is run here."""

from __future__ import annotations

from typing import Any, NamedTuple

from weft import lab

MIB = 1 << 20


class Scenario(NamedTuple):
    """Hosts that share a link of a rate, each with some workers, and the jobs that are run on them in order.

    Attributes
    ----------
    rate : str
        Of each port, each way, as in a lab's file; empty for none but the kernel's.
    nbytes : int
        What a fan-out sends; its time is also told as a multiple of what these bytes take through one port.
    first : int
        Workers of the first host, if not as many as of the others.
    warm : int
        How often each job is run before it is measured.
    rate_per_flow : str
        Of each TCP connection, if it has a cap.
    slow : str
        The rate between the first two hosts, if it is another.
    """

    title: str
    hosts: int
    workers: int
    rate: str
    jobs: tuple[str, ...]
    nbytes: int = 100 * MIB
    first: int | None = None
    warm: int = 0
    rate_per_flow: str = ""
    slow: str = ""

    @property
    def network(self) -> lab.Network:
        """The lab."""
        names = [f"h{i}" for i in range(self.hosts)]
        link: dict[str, Any] = {"between": names} | ({"rate": self.rate} if self.rate else {})
        link |= {"rate_per_flow": self.rate_per_flow} if self.rate_per_flow else {}
        link |= {"pairs": [{"between": names[:2], "rate": self.slow}]} if self.slow else {}
        return lab.parse({"hosts": {name: {} for name in names}, "links": [link] if len(names) > 1 else []})

    @property
    def port_s(self) -> float:
        """Seconds that `nbytes` take through a port; 0 where its rate is not bounded."""
        return self.nbytes * 8 / (float(self.rate.removesuffix("mbit")) * 1e6) if self.rate else 0.0

    def workers_of(self, host: int) -> int:
        """Return how many workers a host has."""
        return self.workers if host or self.first is None else self.first


#: Graphs that make their own data; and such on data that is there, on workers that were told.
_GRAPHS = ("x + x.T", "merge", "tree reduce", "mixed")
_ON_DATA = tuple(f"{name}, data there" for name in _GRAPHS)
_REDUCE = ("reduce, fan-out", "reduce, fan-out in parts")
SCENARIOS = {
    "fanout": Scenario("8 hosts want what 1 has", 9, 1, "200mbit", ("fan-out",)),
    "copies": Scenario("replicate to 8 other hosts", 9, 1, "200mbit", ("replicate",)),
    "pairs": Scenario("8 hosts of 2 workers want it", 9, 2, "200mbit", ("fan-out",), first=1),
    "kill": Scenario("and one of the 8 is killed", 9, 1, "200mbit", ("fan-out, kill",)),
    "reduce": Scenario("8 hosts add up what each has", 8, 1, "200mbit", _REDUCE),
    "route": Scenario("10 Mb/s, beside two links of 100", 3, 1, "100mbit", ("by relay",), 24 * MIB, slow="10mbit"),
    "flows": Scenario("200 Mb/s, 50 for a flow", 2, 1, "200mbit", ("fetch",), warm=1, rate_per_flow="50mbit"),
    "islands": Scenario("2 hosts of 4 workers", 2, 4, "100mbit", _GRAPHS, nbytes=32 * MIB, warm=1),
    "there": Scenario("2 hosts of 4 workers", 2, 4, "100mbit", _ON_DATA, nbytes=32 * MIB, warm=2),
    "uniform": Scenario("2 hosts of 1 worker, no limit", 2, 1, "", _GRAPHS, nbytes=32 * MIB, warm=2),
    "one": Scenario("1 host of 2 workers", 1, 2, "", _GRAPHS, nbytes=32 * MIB, warm=2),
    "tiny": Scenario("2 hosts of 1 worker, no limit", 2, 1, "", ("tiny tasks",), warm=1),
}
#: Ways to decide, and the configuration that asks for each.
WAYS = {"stock": "off", "learned": "learn"}
