# SPDX-License-Identifier: BSD-3-Clause
"""The printed report of Dask work, for a terminal or as Markdown, from the record alone.

What the record holds is in ``report``, the page with charts in ``charts``.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from weft._options import print_whole
from weft._units import format_ratio, format_seconds
from weft.bench.common import lab_hosts
from weft.bench.common.environment import remarks
from weft.bench.dask.report import (
    NOT_LOGGED,
    baseline,
    comparisons,
    correctness,
    format_bandwidth,
    format_bytes,
    format_p2p,
    ratio_of,
    verdicts,
)

_NAME_WIDTH = 26
_WIDTH = 80


class Section(NamedTuple):
    """A part of a block: two columns, their heads (empty where the rows speak for themselves), a line below."""

    head: tuple[str, str]
    rows: list[tuple[str, str]]
    note: str = ""


def print_verdict(record: Mapping[str, Any], console: Console) -> None:
    """Print in a few lines what the record says: who is faster, by which wires, and whether the results are right."""
    for line in verdict_lines(record):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def verdict_lines(record: Mapping[str, Any]) -> list[str]:
    """Say who is faster at each workload, and what all of them show."""
    protocols, names = record["protocols"], list(dict.fromkeys(e["name"] for e in record["workloads"]))
    entries = {(e["name"], e["protocol"]): e for e in record["workloads"]}
    verdict_of = dict(text.split(": ", 1) for text in verdicts(record))
    lines: list[str] = []
    for name in names:
        walls = [f"{p}:// {format_seconds(statistics.median(entries[name, p]['wall_s'])):<8}" for p in protocols]
        row = [f"{name:<{max(map(len, names))}}", *walls, verdict_of.get(name, "")]
        lines.append("  ".join(row).rstrip())
    lanes = {p: sorted({lane for name in names for lane in entries[name, p]["lanes"]}) for p in protocols}
    wires = [f"{p}:// {', '.join(found) or 'not reported'}" for p, found in lanes.items()]
    idle = [f"{p}:// {record['idle_cpu_percent'][p]:.1f} %" for p in protocols]
    lines += [f"Wires between the workers: {'; '.join(wires)}", f"CPU of an idle cluster: {'; '.join(idle)}"]
    return [*lines, correctness(record), *remarks(record["environment"], _processes(record))]


def print_record(record: Mapping[str, Any], console: Console, *, show_p2p: bool = True, said: bool = True) -> None:
    """Print the whole report: a block for each workload and protocol, then the comparison.

    Parameters
    ----------
    record : mapping
        As in the file that ``--json`` writes.
    console : rich.console.Console
    show_p2p : bool
        Print bandwidths, lanes and addresses of all pairs of workers.
    said : bool
        Print in words what the figures mean, too.
    """

    def line(text: str, style: str | None = None) -> None:
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    for e in record["workloads"]:
        line("")
        line(_title(e), "bold")
        rule = "-"
        for section in _sections(e, show_p2p):
            line(rule * _WIDTH)
            rule = "="
            if any(section.head):
                line(f"{section.head[0]:<{_NAME_WIDTH}}| {section.head[1]}")
                line("-" * _WIDTH)
            for left, right in section.rows:
                line(f"{left:<{_NAME_WIDTH}}| {right}")
            if section.note:
                line(section.note)
        line("=" * _WIDTH)
    head, rows = _comparison(record)
    # No frame between columns: with one, two rates and a range do not fit into 80 columns.
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, name in enumerate(head):
        table.add_column(name, justify="left" if i < 2 else "right")
    for row in rows:
        table.add_row(*row, end_section=row[1] == "bandwidth")
    console.print("\nMedian of the rounds", style="bold")
    print_whole(console, table)
    for note in _NOTES:
        console.print(note, style="dim", highlight=False, soft_wrap=True)
    if said:
        console.print()
        for text in _told(record):
            line(text)


def markdown(record: Mapping[str, Any], *, show_p2p: bool = True) -> str:
    """Write as Markdown what `print_record` prints."""
    lines: list[str] = []
    for e in record["workloads"]:
        lines += [f"### {_title(e)}", ""]
        for section in _sections(e, show_p2p):
            lines += [*_markdown_table(section.head, section.rows), *([section.note, ""] if section.note else [])]
    lines += ["### Median of the rounds", "", *_markdown_table(*_comparison(record))]
    lines += [f"- {text}" for text in (*_NOTES, *_told(record))]
    return "\n".join(lines) + "\n"


def _told(record: Mapping[str, Any]) -> Iterator[str]:
    """Say where it ran, whether the results are right, what the figures mean, and what makes them doubtful."""
    where = lab_hosts.told(record)
    yield from [where] if where else []
    yield from (correctness(record), *verdicts(record), *remarks(record["environment"], _processes(record)))


def _processes(record: Mapping[str, Any]) -> int:
    """Return how many processes shared this machine's cores: workers of other machines have their own."""
    return 1 + len(record["workloads"][0]["workers"]) if lab_hosts.told(record) or record.get("here") else 1


def _markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [[cell.replace("|", r"\|") for cell in row] for row in (head, *rows)]
    written = [f"| {' | '.join(row)} |" for row in cells]
    return [written[0], f"|{'---|' * len(head)}", *written[1:], ""]


def _title(e: Mapping[str, Any]) -> str:
    return f"{e['name']} over {e['protocol']}://"


def _sections(e: Mapping[str, Any], show_p2p: bool) -> Iterator[Section]:
    wall = e["wall_s"]
    throughput, text = e["throughput_Bps"], format_bandwidth
    if e["tasks"]:
        throughput, text = [e["tasks"] / w for w in wall], "{:,.0f} tasks/s".format
    share = [c / w for c, w in zip(e["communication_s"], wall, strict=True)]
    logged = any(e["moved_nbytes"])  # Dask logs what one worker fetches from another
    lent = "of that, lent uncopied" if logged else "Lent uncopied"
    yield Section(
        ("", ""),
        [
            *((key, str(value)) for key, value in e["parameters"].items()),
            ("Protocol", e["protocol"]),
            ("Lanes", ", ".join(e["lanes"]) or "not reported"),
            ("Data processed", format_bytes(e["input_nbytes"])),
            ("Data moved per round", format_bytes(statistics.median(e["moved_nbytes"])) if logged else NOT_LOGGED),
            (lent, format_bytes(statistics.median(e["lent_nbytes"]))),
            ("Number of workers", str(len(e["workers"]))),
            ("Threads per worker", ", ".join(map(str, dict.fromkeys(e["threads"])))),
            ("Result", "correct" if e["correct"] else f"WRONG: {e['difference']}"),
        ],
    )
    rows = [(format_seconds(w), text(rate)) for w, rate in zip(wall, throughput, strict=True)]
    yield Section(("Wall clock", "Throughput"), rows)
    yield Section(
        ("", ""),
        [
            ("Throughput", _median(throughput, text)),
            ("Bandwidth, 25% 50% 75%", format_p2p(e["p2p_Bps"])),
            ("Wall clock", _median(wall, format_seconds)),
            ("Communication", _median(e["communication_s"], format_seconds) if logged else NOT_LOGGED),
            ("of the wall clock", _median(share, "{:.0%}".format) if logged else NOT_LOGGED),
            ("CPU, workers", _median(e["worker_cpu_s"], format_seconds)),
            ("CPU, client, scheduler", _median(e["client_and_scheduler_cpu_s"], format_seconds)),
        ],
    )
    if not show_p2p:
        return
    least = e["p2p_min_nbytes"]
    yield Section(
        ("(w1,w2)", "25% 50% 75% (total nbytes)"),
        [
            (_pair(p), f"{format_p2p(p)} ({format_bytes(p['nbytes'])})" if p["transfers"] else NOT_LOGGED)
            for p in e["pairs"]
        ],
        f"w1 received from w2; {f'transfers of {format_bytes(least)} and more' if least else 'all'}",
    )
    yield Section(("(w1,w2)", "Lanes"), [(_pair(p), ", ".join(p["lanes"]) or "not reported") for p in e["pairs"]])
    yield Section(("Worker index", "Worker address"), [(str(i), address) for i, address in enumerate(e["workers"])])


def _pair(p: Mapping[str, Any]) -> str:
    return f"({p['w1']},{p['w2']})"


def _median(values: Sequence[float], text: Callable[[float], str]) -> str:
    return f"{text(statistics.median(values))} ({text(min(values))} .. {text(max(values))})"


_NOTES = (
    "wall clock: less is better; bandwidth: of single transfers, more is better",
    "ratio: the median of the rounds' ratios, not the ratio of the columns",
    "CPU: percent of one core; client, scheduler and all workers together",
)


def _comparison(record: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    protocols, compared = record["protocols"], comparisons(record)
    head = ["workload", "measured", *protocols]
    for protocol in protocols:
        if protocol != (below := baseline(protocols)):
            head += [f"{protocol}/{below}", "range"]
    rows = list[list[str]]()
    for name in dict.fromkeys(e["name"] for e in record["workloads"]):
        entries = {e["protocol"]: e for e in record["workloads"] if e["name"] == name}
        ratios = [c.ratio for c in compared if c.name == name]
        wall = [format_seconds(statistics.median(entries[p]["wall_s"])) for p in protocols]
        p2p = [format_bandwidth(_middle(entries[p]["p2p_q50_Bps_by_round"])) for p in protocols]
        rows.append([name, "wall clock", *wall, *(cell for r in ratios for cell in _ratio_cells(r, "wall"))])
        rows.append(["", "bandwidth", *p2p, *(cell for r in ratios for cell in _ratio_cells(r, "p2p"))])
    idle = record["idle_cpu_percent"]
    rows.append(["(idle)", "CPU", *(f"{idle[p]:.1f} %" for p in protocols), *[""] * (len(head) - 2 - len(protocols))])
    return head, rows


def _middle(rates: Sequence[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return statistics.median(known) if known else None


def _ratio_cells(ratio: Mapping[str, Any], key: str) -> list[str]:
    found = ratio_of(ratio, key)
    if found is None:
        return ["-", "-"]
    value, low, high = map(format_ratio, found)
    return [value, f"{low}-{high}" if found.low < found.high else "one round"]
