# SPDX-License-Identifier: BSD-3-Clause
"""What ``weft bench sweep`` prints of its record: a table for each figure and memory, or OSU's two columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from weft._options import print_whole
from weft._units import format_size
from weft.bench.common import lab_hosts
from weft.bench.common.environment import remarks
from weft.bench.sweep.loops import MAPPED, WITHOUT_PEER_ERRORS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

#: A round that strays further from the median than this marks its cell.
STEADY = 0.1


class Figure(NamedTuple):
    """One figure that is read off the record.

    Attributes
    ----------
    measure : str
        Whose loop it comes from.
    title, unit : str
    value : callable
        The figure of one record, in the unit.
    osu, osu_heading, osu_scale : str, str, float
        The benchmark of OSU with the same loop, the heading of its column, and what the value is multiplied by there.
    """

    measure: str
    title: str
    unit: str
    value: Callable[[Mapping[str, Any]], float]
    osu: str
    osu_heading: str
    osu_scale: float = 1


def _us(r: Mapping[str, Any]) -> float:
    return 1e6 * float(r["seconds"]["median"])


def _rate(r: Mapping[str, Any]) -> float:
    return 1e-3 * float(r["messages_per_s"])


def _bandwidth(r: Mapping[str, Any]) -> float:
    return 1e-6 * float(r["bandwidth_Bps"])


_MB = "Bandwidth (MB/s)"
FIGURES = {
    "latency": Figure("latency", "One-way latency", "us", _us, "osu_latency", "Latency (us)"),
    "bandwidth": Figure("bandwidth", "Bandwidth", "MB/s", _bandwidth, "osu_bw", _MB),
    "bibandwidth": Figure("bibandwidth", "Bi-directional bandwidth", "MB/s", _bandwidth, "osu_bibw", _MB),
    "rate": Figure("bandwidth", "Message rate", "1,000 messages/s", _rate, "osu_mbw_mr", "Messages/s", 1000),
}
# of a column of the widest figures, with what is between columns
_SIZE_WIDTH, _WIDTH = 11, 9


def show(record: Mapping[str, Any], console: Console, *, form: str = "wide") -> None:
    """Print the record: what was measured, what is missing, and how to read it.

    `form` is ``"wide"`` (a column for each line), ``"long"`` (a row for each point, with p99 and spread) or ``"osu"``.
    """
    osu = form == "osu"

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    width = console.width
    if form == "long" and record["records"]:
        print_whole(console, points(record))
    for name in record["measures"] if form != "long" else ():
        for memory in _memories(record):
            if osu:
                say("\n".join(columns(record, name, memory)))
            else:
                better = "less" if name == "latency" else "more"
                title = f"\n{FIGURES[name].title} in {FIGURES[name].unit}, {memory} memory; {better} is better"
                console.print(title, style="bold", highlight=False, soft_wrap=True)
                for table in tables_of(record, name, memory, width=width):
                    print_whole(console, table)
    if form == "wide" and record["records"]:
        many = record["rounds"] > 1
        say(f"~: rounds differ by more than {STEADY:.0%}" if many else "one round: how far rounds differ is not known")
    # a comment in OSU's form, whose readers are programs
    mark = "# " if osu else ""
    for note in notes(record):
        say(f"{mark}{note}")


def _memories(record: Mapping[str, Any]) -> list[str]:
    """List the kinds of memory, a table each; what is lent stands in the table of the first other kind."""
    kinds = list(dict.fromkeys(r["memory"] for r in record["records"]))
    return [kind for kind in kinds if kind != MAPPED] or kinds


def notes(record: Mapping[str, Any]) -> Iterator[str]:
    """Say what "all" stood for, what is missing, what was left out, and whether the machine was busy."""
    if where := lab_hosts.told(record):
        yield where
    chosen = {r["lanes"] for r in record["records"] if r["transport"] == "all"}
    if chosen:
        yield f"all: UCX chose {' or '.join(sorted(chosen))}"
    by_reason: dict[tuple[str, str], list[str]] = {}
    for gone in record["missing"]:
        by_reason.setdefault((gone["transport"], gone["reason"]), []).append(f"{gone['wait']} {gone['memory']}")
    for (transport, reason), lines in by_reason.items():
        yield f"missing: {transport} ({', '.join(lines)}): {reason}"
    if record["cells_left_out"]:
        yield f"the time was up: {record['cells_left_out']} measurements left out"
    if any(r["transport"] in WITHOUT_PEER_ERRORS for r in record["records"]):
        names = dict.fromkeys(r["transport"] for r in record["records"] if r["transport"] in WITHOUT_PEER_ERRORS)
        yield f"{', '.join(names)}: endpoints that do not report a lost peer; weft's connections never use these"
    if any(r["memory"] == MAPPED for r in record["records"]):
        yield "lent: the pages are handed over, and the receiver reads none; lent-read: the receiver reads all"
    yield from remarks(record["environment"], 2)


def lines_of(record: Mapping[str, Any], name: str, memory: str | None = None) -> dict[tuple[str, ...], dict[int, Any]]:
    """Group the records of one figure: by transport, wait and memory, then by size."""
    lines: dict[tuple[str, ...], dict[int, Any]] = {}
    shown = {r["memory"] for r in record["records"]} if memory is None else {memory}
    if [memory] == _memories(record)[:1]:
        shown.add(MAPPED)
    for r in record["records"]:
        if r["measure"] == FIGURES[name].measure and r["memory"] in shown:
            lines.setdefault((r["transport"], r["wait"], r["memory"]), {})[r["nbytes"]] = r
    return lines


def steady(r: Mapping[str, Any]) -> bool:
    """Tell whether the rounds agree."""
    return bool(r["seconds"]["spread"] <= STEADY * r["seconds"]["median"])


def tables_of(record: Mapping[str, Any], name: str, memory: str, *, width: int) -> Iterator[Table]:
    """Make the table of one figure: a row for each size, a column for each line; several where they do not fit."""
    lines = list(lines_of(record, name, memory).items())
    tables = -(-len(lines) // max(1, (width - _SIZE_WIDTH) // _WIDTH))
    fit = -(-len(lines) // tables) if lines else 1
    for start in range(0, len(lines), fit):
        yield _table(FIGURES[name], lines[start : start + fit])


def _table(figure: Figure, lines: Sequence[Any]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("size", justify="right", no_wrap=True)
    for (transport, wait, _), _ in lines:
        table.add_column(f"{transport}\n{wait}", justify="right", no_wrap=True)
    for nbytes in sorted({nbytes for _, sizes in lines for nbytes in sizes}):
        table.add_row(format_size(nbytes), *(cell(figure, sizes.get(nbytes)) for _, sizes in lines))
    return table


def cell(figure: Figure, r: Mapping[str, Any] | None) -> str:
    """Write one figure; a dash if there is none, and ~ before one whose rounds disagree."""
    if r is None:
        return "-"
    return f"{'' if steady(r) else '~'}{number(figure.value(r))}"


def number(value: float) -> str:
    """Write three digits, and thousands with commas."""
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"


def points(record: Mapping[str, Any]) -> Table:
    """Make a table with a row for each point: the time of a message, and the rates that come of its median."""
    from rich import box
    from rich.table import Table

    title = "time of a message in us; spread: of the rounds' medians"
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("measure", "over", "wait", "memory"):
        table.add_column(heading, overflow="fold")
    for heading in ("size", "median", "p99", "spread", "MB/s", "1,000/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for r in record["records"]:
        seconds = r["seconds"]
        spread = f"{seconds['spread'] / seconds['median']:.0%}" if r["rounds"] > 1 else "-"
        times = number(1e6 * seconds["median"]), number(1e6 * seconds["p99"]), spread
        what = r["measure"], r["transport"], r["wait"], r["memory"], format_size(r["nbytes"])
        table.add_row(*what, *times, number(_bandwidth(r)), number(_rate(r)))
    return table


def columns(record: Mapping[str, Any], name: str, memory: str) -> Iterator[str]:
    """Write each line as the OSU micro-benchmarks write theirs: the size in bytes, then the figure."""
    figure = FIGURES[name]
    for (transport, wait, where), sizes in lines_of(record, name, memory).items():
        yield f"# weft {figure.title.lower()}, {transport}, {wait}, {where} memory (the loop of {figure.osu})"
        yield f"{'# Size':<10}{figure.osu_heading:>18}"
        for nbytes, r in sorted(sizes.items()):
            yield f"{nbytes:<10}{figure.osu_scale * figure.value(r):>18.2f}"
        yield ""
