# SPDX-License-Identifier: BSD-3-Clause
"""Traffic between the processes of a cluster: who, over which lanes, how much and how fast, joined from their counts.

Each process counts its own side of each conversation; here the sides are joined. The only view here is a table.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from weft._units import format_nbytes, format_rate
from weft.dask.observe import traffic
from weft.dask.observe.traffic import EXTENSION
from weft.errors import InvalidParamError

if TYPE_CHECKING:
    from rich.table import Table

#: Pairs shown in a terminal; `Transports.rows` has all of them.
_MOST_SHOWN = 40
_COLUMNS = ("from", "to", "lanes", "messages", "bytes", "lent", "bandwidth", "requests", "errors")
_CAPTION = (
    "bandwidth: median of the latest transfers that moved 1 MiB or more, by the sender's clock\n"
    "lent: the lent part of the bytes, and in how many messages; requests: as timed by their receivers, until complete"
)


@dataclass(frozen=True)
class Pair:
    """The traffic from one process to another.

    Attributes
    ----------
    source, destination : str
        The worker's name in Dask, ``scheduler``, ``client``, or else an address. Workers that share a process share a
        name.
    lanes : tuple of str
        As ``transport/device``; ``lent`` if memory was lent.
    messages, nbytes, lent_nbytes : int
        Dask messages, their bytes, and the bytes of those that were lent: mapped by the receiver instead of moved.
    lent_messages : int
        The messages with lent bytes.
    seconds : float or None
        Sum of the times from send to completion; None if only the receiver reported.
    bandwidth_Bps : float or None
        Bytes per second: median of the latest transfers that moved 1 MiB or more; None if there was none.
    errors : int
        Comms to `destination` that broke, as counted by `source`.
    requests_Bps : float or None
        Bytes per second of whole requests, lent or moved, from the request until `destination` had the data; Dask's own
        mean. None except between workers, or if no request had 1 MB.
    """

    source: str
    destination: str
    lanes: tuple[str, ...]
    messages: int
    nbytes: int
    lent_nbytes: int
    lent_messages: int
    seconds: float | None
    bandwidth_Bps: float | None  # noqa: N815
    errors: int
    requests_Bps: float | None = None  # noqa: N815


def join(
    names: Mapping[str, str],
    reports: Iterable[Mapping[str, Any]],
    requests: Mapping[tuple[str, str], float] | None = None,
) -> list[Pair]:
    """Join the reports of processes.

    Parameters
    ----------
    names : mapping
        The names of processes, by process id.
    reports : iterable
        Results of :func:`weft.dask.observe.traffic.report` in each process; duplicates count once.
    requests : mapping, optional
        The bandwidth of whole requests between two processes, by the ids of sender and receiver.

    Returns
    -------
    list of Pair
        Most bytes first. The sender's count is used if it reported, else the receiver's.
    """
    by_process = {report["process"]: report["peers"] for report in reports}
    pairs: list[Pair] = []
    rates = requests or {}
    for process, peers in by_process.items():
        for peer, row in peers.items():
            here, there = names.get(process, process), names.get(peer) or _unnamed(peer, row["address"])
            if row["sent_messages"] or row["errors"]:
                pairs.append(_sent(here, there, row, rates.get((process, peer))))
            if peer not in by_process and row["received_messages"]:
                pairs.append(_received(there, here, row, rates.get((peer, process))))
    return sorted(pairs, key=lambda p: (-p.nbytes, p.source, p.destination))


def _unnamed(process: str, address: str) -> str:
    """Name a process that is no worker now: what connected within the host has no port to tell it from others."""
    return f"{address} ({process[:4]})" if address.endswith(":0") else address


def _lanes_and_lent(row: Mapping[str, Any], lent: int) -> tuple[str, ...]:
    return (*row["lanes"], *(["lent"] if lent else []))


def _sent(source: str, destination: str, row: Mapping[str, Any], rate: float | None) -> Pair:
    return Pair(
        source,
        destination,
        _lanes_and_lent(row, row["lent_nbytes"]),
        row["sent_messages"],
        row["sent_nbytes"],
        row["lent_nbytes"],
        row["lent_messages"],
        row["sent_seconds"],
        row["bandwidth_Bps"],
        row["errors"],
        rate,
    )


def _received(source: str, destination: str, row: Mapping[str, Any], rate: float | None) -> Pair:
    lanes = _lanes_and_lent(row, row["borrowed_nbytes"])
    counts = row["received_messages"], row["received_nbytes"], row["borrowed_nbytes"], row["borrowed_messages"]
    return Pair(source, destination, lanes, *counts, None, None, 0, rate)


def format_lent(pair: Pair) -> str:
    """Write how many bytes were lent, in how many messages, as in ``30.5 MiB in 4``."""
    return f"{format_nbytes(pair.lent_nbytes)} in {pair.lent_messages:,}"


class Transports:
    """Traffic between the processes of a cluster: print it, show it in a notebook, or use `rows`.

    Attributes
    ----------
    pairs : list of Pair
        One for each direction between two processes, most bytes first.
    silent : int
        Number of workers that did not answer, because they had just died.
    """

    def __init__(self, pairs: list[Pair], silent: int = 0) -> None:
        self.pairs = pairs
        self.silent = silent

    @property
    def _caption(self) -> str:
        if not self.silent:
            return _CAPTION
        return f"{_CAPTION}\n{self.silent} worker{'s' if self.silent > 1 else ''} did not answer"

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The pairs as JSON-able dictionaries, most bytes first."""
        return [asdict(pair) | {"lanes": list(pair.lanes)} for pair in self.pairs]

    def to_json(self) -> str:
        """Return `rows` as JSON."""
        return json.dumps(self.rows, indent=1)

    def _cells(self, pair: Pair) -> tuple[str, ...]:
        return (
            pair.source,
            pair.destination,
            ", ".join(pair.lanes) or "-",
            f"{pair.messages:,}",
            format_nbytes(pair.nbytes),
            format_lent(pair).replace(" in", "\nin") if pair.lent_nbytes else "-",  # keep within 80 columns
            format_rate(pair.bandwidth_Bps),
            format_rate(pair.requests_Bps),
            str(pair.errors) if pair.errors else "-",
        )

    def __rich__(self) -> Table:
        from rich import box
        from rich.table import Table

        more = len(self.pairs) - _MOST_SHOWN
        caption = self._caption if more <= 0 else f"{self._caption}\n{more} more pairs are in .rows"
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), caption=caption, caption_justify="left")
        for i, column in enumerate(_COLUMNS):
            table.add_column(column, justify="left" if i < 3 else "right", overflow="fold", no_wrap=i > 2)
        for pair in self.pairs[:_MOST_SHOWN]:
            table.add_row(*self._cells(pair))
        return table

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=144, color_system=None)  # wide enough for workers that are named by their addresses
        with console.capture() as capture:
            console.print(self)
        return capture.get()

    def __repr__(self) -> str:
        return f"<weft.dask.Transports, {len(self.pairs)} pairs>"

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{column}</th>" for column in _COLUMNS)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in self._cells(pair)) + "</tr>"
            for pair in self.pairs
        )
        return f"<table><caption>{self._caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _report_of_worker(dask_worker: Any) -> dict[str, Any]:
    return {**traffic.report(), "name": str(dask_worker.name)}


def _report_of_scheduler(dask_scheduler: Any) -> dict[str, Any]:
    extension = dask_scheduler.extensions.get(EXTENSION)  # None if workers use another protocol
    return {**traffic.report(), "requests": extension.requests() if extension else {}}


def named(names: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the name of each process; workers that share a process share a name."""
    shared: dict[str, list[str]] = {}
    for process, name in names:
        shared.setdefault(process, []).append(name)
    return {process: ", ".join(sorted(set(all_of_it))) for process, all_of_it in shared.items()}


async def _collect(client: Any) -> Transports:
    asked = await client.run(_report_of_worker, on_error="return")
    answers = asked.values()
    workers = [answer for answer in answers if not isinstance(answer, Exception)]
    for answer in answers:
        if isinstance(answer, Exception) and not isinstance(answer, OSError):  # an OSError is a lost connection
            raise answer
    silent = len(answers) - len(workers)
    if not any(address.startswith("ucx://") for address in (*asked, client.scheduler.address)):
        return Transports([], silent)  # what this process, or its scheduler, counted was another cluster's
    scheduler = await client.run_on_scheduler(_report_of_scheduler)
    here = traffic.report()
    names = named(
        [(r["process"], r["name"]) for r in workers]
        + [(scheduler["process"], "scheduler"), (here["process"], "client")]
    )
    return Transports(join(names, [*workers, scheduler, here], scheduler["requests"]), silent)


def transports(client: Any) -> Any:
    """Return the traffic between the processes of a cluster over ``ucx://``, and the lanes that carried it.

    Parameters
    ----------
    client : distributed.Client
        A client of the cluster. Its workers, its scheduler and this process are asked once; nothing is kept there.

    Returns
    -------
    Transports
        Prints as a table, also in a notebook; ``.rows`` is a list of dictionaries, ``.to_json()`` a string. If
        `client` is asynchronous, await it first.

    Raises
    ------
    InvalidParamError
        `client` is not a client.

    Notes
    -----
    Counts start with each process and are never reset; for an interval, take the difference of two tables. A process
    that took part in several clusters, as a notebook does, counts for all of them. A cluster without ``ucx://`` has no
    rows.
    """
    if not hasattr(client, "run_on_scheduler"):
        raise InvalidParamError(f"transports: {client!r} is not a distributed.Client")
    return client.sync(_collect, client)
