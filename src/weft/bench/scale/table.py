# SPDX-License-Identifier: BSD-3-Clause
"""What ``weft bench scale`` says of its record: a row for each measure and number of workers. Runs nothing."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from weft._options import print_whole
from weft._units import format_nbytes, format_seconds
from weft.bench.common import lab_hosts, stats
from weft.bench.common.environment import remarks
from weft.bench.dask.report import baseline

if TYPE_CHECKING:
    from rich.console import Console

MISSING = "did not come up"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _percent(value: float) -> str:
    return f"{value:.3g} %"


class Measure(NamedTuple):
    """What is read of a run: by which key, its name, how it is written, and what stands behind the name.

    `amount` is true where a difference says more than a ratio: of memory and descriptors.
    """

    key: str
    title: str
    text: Callable[[float], str]
    note: str
    amount: bool = False


MEASURES = (
    Measure("start_s", "start", format_seconds, "until all workers are there"),
    Measure("first_s", "first all-to-all", format_seconds, "every worker fetches an array from every other"),
    Measure("later_s", "later all-to-all", format_seconds, "median of each run's"),
    Measure("close_s", "close", format_seconds, "until all processes have ended"),
    Measure("pss_nbytes", "memory", format_nbytes, "PSS of all processes", amount=True),
    Measure("shm_nbytes", "/dev/shm", format_nbytes, "in use above before", amount=True),  # noqa: S108 - a name
    Measure("descriptors", "descriptors", _count, "of all processes", amount=True),
    Measure("most_descriptors", "most descriptors", _count, "of the process that has most", amount=True),
    Measure("idle_cpu_percent", "idle CPU", _percent, "of one core, all processes"),
)


def value(run: Mapping[str, Any], measure: Measure) -> float | None:
    """Read a measure of a run; None if the run did not get so far."""
    found = run.get(measure.key)
    return statistics.median(cast("list[float]", found)) if isinstance(found, list) else found


def values(entry: Mapping[str, Any], measure: Measure) -> list[float]:
    """Read a measure of all runs of one protocol and number of workers that got so far."""
    return [found for run in entry["runs"] if (found := value(run, measure)) is not None]


def times(record: Mapping[str, Any]) -> dict[tuple[str, ...], list[float]]:
    """List a record's times in seconds, one for each round that has it, by measure, workers and protocol."""
    return {
        (measure.title, str(entry["workers"]), f"{entry['protocol']}://"): found
        for measure in MEASURES
        for entry in record["records"]
        if measure.key.endswith("_s") and (found := values(entry, measure))
    }


def entry_of(record: Mapping[str, Any], protocol: str, workers: int) -> Mapping[str, Any]:
    """Find the runs of one protocol and number of workers."""
    return next(e for e in record["records"] if (e["protocol"], e["workers"]) == (protocol, workers))


def together(
    record: Mapping[str, Any], measure: Measure, workers: int, above: str, below: str
) -> tuple[list[float], list[float]]:
    """Read a measure of both protocols in those rounds in which both have it."""
    runs = (entry_of(record, protocol, workers)["runs"] for protocol in (above, below))
    pairs = [(value(a, measure), value(b, measure)) for a, b in zip(*runs, strict=True)]
    both = [(a, b) for a, b in pairs if a is not None and b is not None]
    return [a for a, _ in both], [b for _, b in both]


def ratio(record: Mapping[str, Any], measure: Measure, workers: int, above: str, below: str) -> stats.Ratio | None:
    """Divide `above` by `below`, round by round; None where there is no such round, or nothing to divide by."""
    numerators, denominators = together(record, measure, workers, above, below)
    if not numerators or min(*numerators, *denominators) <= 0:
        return None
    return stats.ratio(numerators, denominators)


def difference(record: Mapping[str, Any], measure: Measure, workers: int, above: str, below: str) -> str:
    """Write the median of the rounds' differences, with its sign; a dash where no round has both."""
    pairs = zip(*together(record, measure, workers, above, below), strict=True)
    found = [a - b for a, b in pairs]
    if not found:
        return "-"
    middle = statistics.median(found)
    return f"{'+' if middle > 0 else ''}{measure.text(middle)}"


def others(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """List the protocols that are compared, each with the one that it is compared to."""
    below = baseline(record["protocols"])
    return [(above, below) for above in record["protocols"] if above != below]


def rows(record: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the head of the table, and its rows: measure, workers, a median for each protocol, ratios, differences."""
    protocols, compared = record["protocols"], others(record)
    head = ["", "workers", *protocols]
    for above, below in compared:
        head += [f"{above}/{below}", f"{above} - {below}"]
    return head, [
        _row(record, measure, workers, protocols, compared) for measure in MEASURES for workers in record["workers"]
    ]


def _row(
    record: Mapping[str, Any],
    measure: Measure,
    workers: int,
    protocols: Sequence[str],
    compared: Sequence[tuple[str, str]],
) -> list[str]:
    row = [measure.title, str(workers), *(cell(entry_of(record, p, workers), measure) for p in protocols)]
    for above, below in compared:
        found = ratio(record, measure, workers, above, below)
        row += [str(found or "-"), difference(record, measure, workers, above, below) if measure.amount else ""]
    return row


def cell(entry: Mapping[str, Any], measure: Measure) -> str:
    """Write the median of a measure, or that no cluster came up, once for all measures."""
    found = values(entry, measure)
    if found:
        return measure.text(statistics.median(found))
    return MISSING if measure is MEASURES[0] else "-"


def failures(record: Mapping[str, Any]) -> Iterator[str]:
    """Say of each run that failed, why."""
    for entry in record["records"]:
        for number, run in enumerate(entry["runs"], 1):
            if "failed" in run:
                yield f"{entry['protocol']}://, {entry['workers']} workers, round {number}: {run['failed']}"


def notes(record: Mapping[str, Any]) -> Iterator[str]:
    """Say how the workers ran, which lanes they used, and what makes the figures doubtful."""
    how = "started and watched by nannies" if record["nannies"] else "without nannies"
    limit = f", at most {record['limit']:,} open files in each process" if record["limit"] else ""
    yield f"Worker processes of one thread each, {how}{limit}; client and scheduler in one process"
    if where := lab_hosts.told(record):
        yield f"{where}; workers assigned to them in turn"
    if calm := sorted({entry["workers"] for entry in record["records"] if entry.get("calm")}):
        names = ", ".join(map(str, calm))
        yield f"With {names} workers Dask's profiler, ticks and system monitor are slowed down; they alone fill cores"
    for entry in record["records"]:
        of = f"{entry['protocol']}://, {entry['workers']} workers"
        every = entry["workers"] * (entry["workers"] - 1)
        for number, run in enumerate(entry["runs"], 1):
            if run.get("pairs", every) != every:
                yield f"{of}, round {number}: {run['pairs']} pairs of {every} fetched from each other"
    yield from (f"Lanes between workers over {protocol}://: {lanes}" for protocol, lanes in _lanes(record).items())
    yield from remarks(record["environment"], 1 + max(record["workers"]))


def _lanes(record: Mapping[str, Any]) -> dict[str, str]:
    """Name the lanes of each protocol's pairs of workers, all runs together."""
    found: dict[str, set[str]] = {}
    for entry in record["records"]:
        for run in entry["runs"]:
            found.setdefault(entry["protocol"], set()).update(run.get("lanes", ()))
    return {protocol: ", ".join(sorted(lanes)) for protocol, lanes in found.items() if lanes}


def show(record: Mapping[str, Any], console: Console) -> None:
    """Print the table, what failed, and the notes."""
    from rich import box
    from rich.table import Table

    head, every = rows(record)
    console.print("Median of the rounds", style="bold")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=0)
    for i, name in enumerate(head):
        table.add_column(name, justify="left" if i == 0 else "right", no_wrap=True)
    before = ""
    for i, row in enumerate(every):
        last = i + 1 == len(every) or every[i + 1][0] != row[0]
        table.add_row(*("" if row[0] == before and j == 0 else cell for j, cell in enumerate(row)), end_section=last)
        before = row[0]
    print_whole(console, table)
    for line in (*failures(record), *notes(record)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
