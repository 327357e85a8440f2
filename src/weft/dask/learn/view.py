# SPDX-License-Identifier: BSD-3-Clause
"""Views of what was learned about links: a table, JSON, a heat map."""

from __future__ import annotations

import heapq
import html
import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from weft._units import format_deviation, format_rate
from weft.dask.learn.relays import relay_of_large
from weft.dask.observe.traffic import EXTENSION
from weft.links import LinkModel

if TYPE_CHECKING:
    from rich.table import Table

#: Links shown in a terminal, and workers in its heat map; ``rows`` has all links.
_MOST_SHOWN = 40
_MOST_IN_MAP = 32
_COLUMNS = ("from", "to", "memory", "latency", "bandwidth", "+-", "lent", "samples", "known from")
#: From slow to fast, as colours and as characters.
_SHADES = ("#7f2704", "#d94801", "#fdae6b", "#fee6ce", "#c6dbef", "#6baed6", "#08519c")
_BLOCKS = "▁▂▃▄▅▆█"


@dataclass(frozen=True)
class Link:
    """The expected performance of the link from one worker to another.

    Attributes
    ----------
    source, destination : str
        Names of workers.
    memory : str
        Type of memory, ``host`` or ``cuda``.
    latency_s : float
        Seconds for a message of any size.
    bandwidth_Bps : float or None
        Bytes per second; None if all bytes were lent, so that the time does not depend on the size.
    spread : float
        Standard deviation of the bandwidth's logarithm: 0.1 is 10 %, 2 is a guess.
    lent_share : float or None
        Share of the transferred bytes that was lent; None if there were none.
    samples : float
        Transfers of this pair that count; old ones count less.
    known_from : str
        Where the figures come from: this ``pair``, its ``hosts``, the ``kind`` of link, or ``assumed``.
    """

    source: str
    destination: str
    memory: str
    latency_s: float
    bandwidth_Bps: float | None  # noqa: N815
    spread: float
    lent_share: float | None
    samples: float
    known_from: str


class Links:
    """What a cluster has learned about its links: print it, show it in a notebook, or use `rows`.

    Attributes
    ----------
    links : list of Link
        The links that were measured, slowest first.
    mode : str
        The scheduler's setting: ``learn``, ``observe`` or ``off``.
    decides : bool
        Whether Dask's decisions use it now: `mode` is ``learn``, and the links differ.
    relayed : list of dict
        Of the slowest links, those that large values avoid if `mode` is ``learn``, each with its ``relay``.
    ports : list of dict
        Bytes per second into or out of a host's port, where concurrent transfers have shown it.
    samples, refused : int
        Number of measurements that were used, and of impossible ones that were refused.
    """

    def __init__(self, told: dict[str, Any]) -> None:
        self.links = [Link(**row) for row in told["links"]]
        self.mode: str = told["mode"]
        self.decides: bool = told["decides"]
        self.relayed: list[dict[str, str]] = told["relayed"]
        self.ports: list[dict[str, Any]] = told["ports"]
        self.samples: int = told["samples"]
        self.refused: int = told["refused"]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The links as JSON-able dictionaries."""
        return [asdict(link) for link in self.links]

    def to_json(self) -> str:
        """Return everything as JSON."""
        told = {name: getattr(self, name) for name in ("mode", "decides", "samples", "refused", "relayed", "ports")}
        return json.dumps({**told, "links": self.rows}, indent=1)

    @property
    def _caption(self) -> str:
        decides = {
            (False, "learn"): "it is not certain that links differ: Dask places, steals and copies tasks",
            (True, "learn"): "the links differ: weft places, steals and copies tasks by these figures",
        }.get((self.decides, self.mode), f"weft.links is {self.mode!r}: Dask makes every decision")
        ports = [f"{p['direction']} of {p['host']}: {format_rate(p['bandwidth_Bps'])}" for p in self.ports]
        refused = [f"{self.refused} of {self.samples + self.refused} measurements were refused"] if self.refused else []
        relayed = [
            f"large values from {r['source']} to {r['destination']} go through {r['relay']}" for r in self.relayed
        ]
        return "\n".join([decides, *(relayed[:10] if self.mode == "learn" else []), *ports[:10], *refused])

    def _names(self) -> list[str]:
        return sorted({link.source for link in self.links} | {link.destination for link in self.links})[:_MOST_IN_MAP]

    def heat_map(self) -> str:
        """Return a map of sources (rows) by destinations, as text: ▁ is the slowest link, █ the fastest.

        ``=`` marks lent memory; ``.`` marks pairs that were never measured.
        """
        names = self._names()
        at = {(link.source, link.destination): link for link in self.links if link.memory == "host"}
        shade = _shades([link.bandwidth_Bps for link in at.values()])
        width = max((len(name) for name in names), default=0)
        lines = [f"{a:>{width}} " + "".join(_mark(at.get((a, b)), shade) for b in names) for a in names]
        rates = [link.bandwidth_Bps for link in at.values() if link.bandwidth_Bps]
        if rates:
            lines.append(f"▁ {format_rate(min(rates))}  █ {format_rate(max(rates))}")
        return "\n".join(lines)

    def _cells(self, link: Link) -> tuple[str, ...]:
        return (
            link.source,
            link.destination,
            link.memory,
            f"{link.latency_s * 1e3:.3g} ms",
            "lent" if link.bandwidth_Bps is None else format_rate(link.bandwidth_Bps),
            format_deviation(link.spread),
            "-" if link.lent_share is None else f"{link.lent_share:.0%}",
            f"{link.samples:.1f}",
            link.known_from,
        )

    def __rich__(self) -> Table:
        from rich import box
        from rich.table import Table

        more = len(self.links) - _MOST_SHOWN
        caption = self._caption if more <= 0 else f"{self._caption}\n{more} more links are in .rows"
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), caption=caption, caption_justify="left")
        for i, column in enumerate(_COLUMNS):
            table.add_column(column, justify="left" if i < 3 else "right", overflow="fold", no_wrap=i > 2)
        for link in self.links[:_MOST_SHOWN]:
            table.add_row(*self._cells(link))
        return table

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=120, color_system=None)
        with console.capture() as capture:
            console.print(self)
        return f"{capture.get()}\n{self.heat_map()}\n"

    def __repr__(self) -> str:
        return f"<weft.dask.Links, {len(self.links)} links, {self.mode}>"

    def _repr_html_(self) -> str:
        names = self._names()
        at = {(link.source, link.destination): link for link in self.links if link.memory == "host"}
        shade = _shades([link.bandwidth_Bps for link in at.values()])
        head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
        body = "".join(
            f"<tr><th>{html.escape(a)}</th>" + "".join(_html_cell(at.get((a, b)), shade) for b in names) + "</tr>"
            for a in names
        )
        caption = html.escape(self._caption).replace("\n", "<br>")
        return f"<table><caption>{caption}</caption><tr><th>from \\ to</th>{head}</tr>{body}</table>"


def _shades(rates: Sequence[float | None]) -> dict[float, int]:
    """Map each bandwidth to its shade, on a logarithmic scale."""
    known = [rate for rate in rates if rate]
    if not known:
        return {}
    low, high = math.log(min(known)), math.log(max(known))
    last = len(_SHADES) - 1
    return {rate: last if high == low else round((math.log(rate) - low) / (high - low) * last) for rate in known}


def _mark(link: Link | None, shade: dict[float, int]) -> str:
    if link is None:
        return "."
    return "=" if link.bandwidth_Bps is None else _BLOCKS[shade[link.bandwidth_Bps]]


def _html_cell(link: Link | None, shade: dict[float, int]) -> str:
    if link is None:
        return "<td></td>"
    if link.bandwidth_Bps is None:
        return "<td style='background:#f3c98b'>lent</td>"
    at = shade[link.bandwidth_Bps]
    ink = "white" if at in (0, 1, len(_SHADES) - 1) else "black"
    return f"<td style='background:{_SHADES[at]};color:{ink}'>{format_rate(link.bandwidth_Bps)}</td>"


def tell(model: LinkModel, names: dict[str, str], now_s: float) -> dict[str, Any]:
    """Return what a model has learned about measured pairs, and about ports, as JSON-able values."""
    links: list[dict[str, Any]] = []
    slowest: list[tuple[float, str, str]] = []
    for (source, destination, memory), level in model.pairs.items():
        known = model.predict(source, destination, now_s, memory)
        if memory == "host":
            slowest.append((-known.seconds_per_byte, source, destination))
        link = Link(
            names.get(source, source),
            names.get(destination, destination),
            memory,
            known.latency_s,
            known.bandwidth_Bps,
            known.deviation,
            level.lent_share,
            known.samples,
            known.source,
        )
        links.append(asdict(link))
    links.sort(key=lambda row: (row["bandwidth_Bps"] or math.inf, row["source"], row["destination"]))
    ports = [
        {"direction": direction, "host": host, "bandwidth_Bps": 1 / model.port_seconds_per_byte(direction, host)}
        for direction, host in model.ports
    ]
    relayed = [
        {"source": names.get(a, a), "destination": names.get(b, b), "relay": names.get(relay, relay)}
        for _, a, b in heapq.nsmallest(_MOST_SHOWN, slowest)
        if (relay := relay_of_large(model, a, b, now_s))
    ]
    return {"links": links, "relayed": relayed, "ports": ports, "samples": model.samples, "refused": model.refused}


def _on_scheduler(dask_scheduler: Any) -> dict[str, Any]:
    extension = dask_scheduler.extensions.get(EXTENSION)
    if extension is None:  # its workers use another protocol
        return {"links": [], "relayed": [], "ports": [], "samples": 0, "refused": 0, "mode": "off", "decides": False}
    links = extension.links
    names = {address: str(ws.name) for address, ws in dask_scheduler.workers.items()}
    told = tell(links.model, names, time.monotonic())
    return {**told, "mode": links.mode, "decides": links.decides}


async def _collect(client: Any) -> Links:
    return Links(await client.run_on_scheduler(_on_scheduler))


def links(client: Any) -> Any:
    """Return what a cluster has learned about the links between its workers.

    Parameters
    ----------
    client : distributed.Client
        A client of the cluster. Only its scheduler is asked.

    Returns
    -------
    Links
        Prints as a table and a heat map, also in a notebook; ``.rows`` is a list of dictionaries, ``.to_json()`` a
        string. If `client` is asynchronous, await it first.

    Workers report measurements with their heartbeats, so the latest transfers appear about a second later.
    """
    return client.sync(_collect, client)
