# SPDX-License-Identifier: BSD-3-Clause
"""What is said of the record of ``coiled_benchmarks.py``. Runs nothing."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from weft._units import format_nbytes
from weft.bench.common import stats
from whole_jobs import days

Row = Mapping[str, Any]
#: Rounds that differ by more of their median are written one by one.
_SPREAD = 0.1
#: The floor says something of a row if tcp takes so many times as long.
_ABOVE_FLOOR = 1.1
#: What is given back later than that after a run on a bad day is told.
_SOON_S = 5.0
FLOOR = "inproc"
#: Threads that run tasks, and those that run event loops, as ``counters`` names them.
_TASKS, _LOOPS = ("Dask-Default-Threads",), ("MainThread", "IO loop")


# --- a run ---------------------------------------------------------------------------------------------------


def of(run: Row, name: str) -> float:
    """Read one of the workers' counters; 0 if it did not grow."""
    return float(run["workers"].get(name, 0))


def _cpu_s(run: Row, threads: Sequence[str]) -> float:
    # `sum` rounds differently from CPython 3.12 on.
    return math.fsum(of(run, f"{name}/{mode}_s") for name in threads for mode in ("user", "system"))


def spilled_nbytes(run: Row) -> float:
    """Add up what workers spilled to disk for want of memory."""
    every = run["workers"].items()
    return sum(n for name, n in every if name.endswith("disk-write/bytes") and not name.startswith("p2p/"))


def p2p_disk_nbytes(run: Row) -> float:
    """Return what P2P read back from disk: of what it writes there, distributed counts the shards only."""
    return of(run, "p2p/disk-read/bytes")


def copied_nbytes(run: Row) -> float:
    """Return what weft sent neither lent nor staged."""
    sent, lent, staged = (of(run, f"weft/{name}_nbytes") for name in ("sent", "lent", "staged_total"))
    return max(0.0, sent - lent - staged)


def _gib(nbytes: float) -> str:
    return f"{nbytes / 2**30:.2f}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g}" if seconds < 100 else f"{seconds:.0f}"


#: What is read of each run beside its wall clock: the column's name, the value, and how it is written.
MEASURES: tuple[tuple[str, Callable[[Row], float], Callable[[float], str]], ...] = (
    ("CPU of tasks, s", lambda run: _cpu_s(run, _TASKS), _seconds),
    ("of event loops, s", lambda run: _cpu_s(run, _LOOPS), _seconds),
    ("of all, in the kernel, s", lambda run: of(run, "system_s"), _seconds),
    ("page faults, thousands", lambda run: of(run, "minor_faults") / 1000, _seconds),
    ("peak memory, GiB", lambda run: run["peak_nbytes"], _gib),
    ("with the page cache of its files, GiB", lambda run: run["peak_with_cache_nbytes"], _gib),
    ("spilled, GiB", spilled_nbytes, _gib),
    ("P2P on disk, GiB", p2p_disk_nbytes, _gib),
)
#: The same, of weft only.
MOVED: tuple[tuple[str, Callable[[Row], float]], ...] = (
    ("lent", lambda run: of(run, "weft/lent_nbytes")),
    ("staged", lambda run: of(run, "weft/staged_total_nbytes")),
    ("copied", copied_nbytes),
)


def line(name: str, protocol: str, number: int, run: Row) -> str:
    """Say in one line how a run went; number 0 is the check."""
    head = f"{name:50} {protocol:7} {number or 'check':>5}"
    for word in ("failed", "skipped"):
        if word in run:
            return f"{head}  {word}: {run[word]}"
    cpu = " + ".join(f"{_cpu_s(run, threads):.1f}" for threads in (_TASKS, _LOOPS))
    moved = ", ".join(f"{what} {format_nbytes(value(run))}" for what, value in MOVED if value(run))
    written = f"spilled {format_nbytes(spilled_nbytes(run))}, P2P on disk {format_nbytes(p2p_disk_nbytes(run))}"
    return (
        f"{head} {run['wall_s']:7.2f} s  CPU of tasks and loops {cpu} s, in the kernel {of(run, 'system_s'):.1f} s, "
        f"{of(run, 'minor_faults') / 1000:.0f}k faults  peak {format_nbytes(run['peak_nbytes'])}, "
        f"with the page cache {format_nbytes(run['peak_with_cache_nbytes'])}  "
        f"{written}{'  ' * bool(moved)}{moved}"
    )


# --- what went wrong -----------------------------------------------------------------------------------------


def difference(row: Row) -> str:
    """Say how results differ between runs; empty if they do not."""
    timed = {repr(run["checksums"]) for run in runs(row) if "checksums" in run}
    checks = {repr(run["checksums"]) for run in row["checks"].values() if "checksums" in run}
    each = {"rounds": timed, "checks": checks}
    return "; ".join(f"the {kind} gave {len(found)} results" for kind, found in each.items() if len(found) > 1)


def runs(row: Row) -> Iterator[Row]:
    """Give the timed runs of a row."""
    for taken in row["runs"].values():
        yield from taken


def failures(row: Row) -> list[str]:
    """Say of each run that failed, why."""
    every = [(p, f"round {n}", run) for p, taken in row["runs"].items() for n, run in enumerate(taken, 1)]
    every += [(p, "the check", run) for p, run in row["checks"].items()]
    name = ", ".join([row["name"], f"{row['workers']} workers", *([days.DAYS[row["day"]]] if row["day"] else [])])
    return [f"{name}, {p}, {n}: {run['failed']}" for p, n, run in every if "failed" in run]


def wrong(record: Row) -> list[str]:
    """List what failed or differs."""
    differing = [f"{row['name']}: {row['difference']}" for row in record["rows"] if row.get("difference")]
    return [*(line for row in record["rows"] for line in failures(row)), *differing]


def unchecked(record: Row) -> list[str]:
    """List the rows of which no result was compared."""
    return [
        row["name"]
        for row in record["rows"]
        if not any(run.get("checksums") for run in (*runs(row), *row["checks"].values()))
    ]


# --- a row ---------------------------------------------------------------------------------------------------


def walls(row: Row, *protocols: str) -> list[tuple[float, ...]]:
    """Return the seconds that each of `protocols` took, in those rounds in which all came to their end."""
    rounds = zip(*(row["runs"].get(protocol, ()) for protocol in protocols), strict=False)
    return [tuple(run["wall_s"] for run in each) for each in rounds if not any("failed" in run for run in each)]


def ratio(row: Row, above: str = "ucx", below: str = "tcp") -> stats.Ratio | None:
    """Divide the seconds of two protocols, round by round; None without a round of both."""
    both = walls(row, above, below)
    return stats.ratio([a for a, _ in both], [b for _, b in both]) if both else None


def left(row: Row) -> float | None:
    """Return what ucx leaves of tcp's seconds above the floor: 0 is the floor, 1 is tcp; the median of the rounds.

    None without a round of all three, and where the floor is so near to tcp that the difference says nothing.
    """
    every = walls(row, "tcp", "ucx", FLOOR)
    if not every or statistics.median(tcp / floor for tcp, _, floor in every) < _ABOVE_FLOOR:
        return None
    return statistics.median((ucx - floor) / (tcp - floor) for tcp, ucx, floor in every if tcp != floor)


def points(values: Sequence[float]) -> str:
    """Write the median, or each value if they differ."""
    if not values:
        return "failed"
    middle = statistics.median(values)
    if stats.spread(values) <= _SPREAD * middle:
        return _seconds(middle)
    return " ".join(map(_seconds, values))


def kind(row: Row) -> str:
    """Return what a row is about, the word before the colon of its name."""
    return str(row["name"].partition(":")[0])


def losing_first(record: Row) -> list[Row]:
    """Sort the rows by ucx over tcp, the greatest first, and those without it before them."""

    def key(row: Row) -> tuple[float, str]:
        found = ratio(row)
        return (-found.value if found else -float("inf"), row["name"])

    return sorted(record["rows"], key=key)


# --- the page ------------------------------------------------------------------------------------------------


def rows(record: Row) -> tuple[list[str], list[list[str]]]:
    """Return the head of the table of wall clocks and its cells, losing rows first and in bold."""
    head = [
        "",
        "workers",
        *(f"{protocol}, s" for protocol in record["protocols"]),
        "ucx/tcp",
        "left of tcp above the floor",
    ]
    cells = []
    for row in losing_first(record):
        seconds = [
            points([wall for (wall,) in walls(row, protocol)]) if row["runs"][protocol] else "-"
            for protocol in record["protocols"]
        ]
        found, above = ratio(row), left(row)
        told = "-" if found is None else f"**{found.value:.2f}**" if found.low > 1 else f"{found.value:.2f}"
        each = " ".join(f"{a / b:.2f}" for a, b in walls(row, "ucx", "tcp"))
        ratios = f"{told} ({each})" if len(walls(row, "ucx", "tcp")) > 1 else told
        cells.append(
            [f"`{row['name']}`", str(row["workers"]), *seconds, ratios, "-" if above is None else f"{above:.2f}"]
        )
    return head, cells


def details(record: Row) -> tuple[list[str], list[list[str]]]:
    """Return the head and the cells of what the runs took beside time: medians, each protocol's."""
    protocols = record["protocols"]
    head = ["", "workers", *(name for name, _, _ in MEASURES), "ucx: " + ", ".join(name for name, _ in MOVED) + ", GiB"]
    cells = []
    for row in losing_first(record):
        ended = {p: [run for run in row["runs"][p] if "failed" not in run] for p in protocols}
        measured = [
            " / ".join(write(statistics.median(map(value, taken))) if taken else "-" for taken in ended.values())
            for _, value, write in MEASURES
        ]
        over = ended.get("ucx")
        moved = ", ".join(_gib(statistics.median(map(value, over))) for _, value in MOVED) if over else "-"
        cells.append([f"`{row['name']}`", str(row["workers"]), *measured, moved])
    return head, cells


def of_kinds(record: Row) -> Iterator[tuple[str, list[Row]]]:
    """Give each kind of rows, and those of its rows that ended over tcp and over ucx."""
    for name in dict.fromkeys(map(kind, record["rows"])):
        ended = [row for row in record["rows"] if kind(row) == name and ratio(row)]
        if ended:
            yield name, ended


def total(rows: Sequence[Row]) -> tuple[float, float, stats.Ratio]:
    """Add up the medians of rows over tcp and over ucx; the mean ratio is geometric, and has its least and greatest."""
    seconds = [sum(statistics.median(s for (s,) in walls(row, p)) for row in rows) for p in ("tcp", "ucx")]
    ratios = [found.value for row in rows if (found := ratio(row))]
    return seconds[0], seconds[1], stats.Ratio(statistics.geometric_mean(ratios), min(ratios), max(ratios))


def summary(record: Row) -> Iterator[str]:
    """Say the geometric means of each kind of rows."""
    for name, of_kind in of_kinds(record):
        above = [value for row in of_kind if (value := left(row)) is not None]
        parts = [f"{name}, {len(of_kind)} rows: ucx/tcp {total(of_kind)[2].value:.2f} (geometric mean)"]
        parts += [f"{statistics.median(above):.2f} left above the floor (median of {len(above)})"] if above else []
        for peak, what in (("peak_nbytes", "peak memory"), ("peak_with_cache_nbytes", "with the page cache")):
            peaks = [value for row in of_kind if (value := _peak_ratio(row, peak))]
            parts += [f"{what} {statistics.geometric_mean(peaks):.2f} of tcp's"] if peaks else []
        yield "; ".join(parts)


def _peak_ratio(row: Row, name: str) -> float | None:
    peaks = {p: [run[name] for run in row["runs"].get(p, ()) if "failed" not in run] for p in ("ucx", "tcp")}
    if not all(peaks.values()) or not all(map(all, peaks.values())):
        return None
    return statistics.median(peaks["ucx"]) / statistics.median(peaks["tcp"])


def commits(record: Row) -> str:
    """Say what was run."""
    return "Commits: " + ", ".join(f"{commit} of {name}" for name, commit in record["commits"].items())


def notes(record: Row) -> Iterator[str]:
    """Say how the rows were run, and what of them is missing."""
    each = f"{record['threads']} thread{'s' * (record['threads'] > 1)}"
    yield commits(record)
    yield (
        f"Workers with {each} each, {format_nbytes(record['memory'])} of memory for all together; {FLOOR}: "
        f"one process with as many threads as all of them; up to {record['rounds']} rounds"
    )
    yield from summary(record)
    bad, silent = wrong(record), unchecked(record)
    yield from (f"**{each}**" for each in bad)
    if not bad:
        yield "All results that were compared are equal"
    if silent:
        yield f"Nothing to compare in: {', '.join(silent)}"


# --- bad days ------------------------------------------------------------------------------------------------


def bad_days(record: Row) -> tuple[list[str], list[list[str]]]:
    """Return the head and the cells of how each function fared on bad days, over each protocol."""
    names = dict.fromkeys((row["name"], row["workers"]) for row in record["rows"])
    every = {(row["name"], row["workers"], row["day"]): row for row in record["rows"]}
    cells = []
    for name, workers in names:
        plain = every[name, workers, days.PLAIN]
        for day, what in days.DAYS.items():
            row = every.get((name, workers, day))
            if row is not None:
                fared = [_fared(plain, row, protocol) for protocol in record["protocols"]]
                cells.append([f"`{name}`", str(workers), what, *fared])
    return ["", "workers", "day", *record["protocols"]], cells


def _fared(plain: Row, row: Row, protocol: str) -> str:
    """Say how a run on a bad day ended: its results against those of every plain one, and what it still holds."""
    run = row["checks"].get(protocol)
    if run is None:
        return "-"
    if "failed" in run:
        return f"**failed: {run['failed'].partition(': ')[0].rpartition('.')[2]}**"
    right = all(run["checksums"] == other.get("checksums") for other in plain["checks"].values())
    said = ["right" if right else "**other results**"]
    if row["day"] == days.KILLED and not run["killed"]:
        said.append("**nothing was killed**")
    if spilled := spilled_nbytes(run):
        said.append(f"{format_nbytes(spilled)} spilled")
    if run["held_nbytes"]:
        said.append(f"**{format_nbytes(run['held_nbytes'])} not given back**")
    elif (held_s := run.get("held_s", 0.0)) > _SOON_S:
        said.append(f"its memory was back after {held_s:.0f} s")
    if run["left_in_shm"]:
        said.append(f"**left in /dev/shm: {', '.join(run['left_in_shm'])}**")
    return ", ".join(said)


def text(record: Row) -> str:
    """Write the table of wall clocks, or of bad days, for a terminal."""
    bad = any(row["day"] for row in record["rows"])
    head, cells = bad_days(record) if bad else rows(record)
    every = [head, *cells]
    widths = [max(len(row[i]) for row in every) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in every]
    return "\n".join([*lines, "", *(f"- {note}" for note in notes(record))])
