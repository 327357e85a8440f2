# SPDX-License-Identifier: BSD-3-Clause
"""The record of ``weft demo`` and its printed report.

`entry` and `ratios` turn rounds into the record, which is plain JSON; `print_record` prints from the record
alone. The page with charts is in ``charts``, the rounds are in ``demo``.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from weft.bench import stats

# Below 1 MiB a transfer's duration is mostly latency and Dask's 1 ms floor; dask-cuda's table leaves them out
# too.
P2P_MIN_NBYTES = 1 << 20
# Within 5 % two medians of three rounds are called equal, whatever their order was.
SAME = 0.05
_NAME_WIDTH = 26
_WIDTH = 80


class Transfer(NamedTuple):
    """One message between workers, as its receiver logged it: worker `w1` received from worker `w2`."""

    w1: int
    w2: int
    nbytes: int
    duration_s: float


class Round(NamedTuple):
    """One run of a workload; `difference` says what was wrong with the result, empty if nothing.

    `lent_nbytes` of what the workers received was not copied to them, but lent.
    """

    wall_s: float
    transfers: list[Transfer]
    difference: str
    lent_nbytes: int = 0


def entry(
    name: str,
    protocol: str,
    *,
    rounds: Sequence[Round],
    warm_up: Round,
    parameters: Mapping[str, int | float | str],
    nbytes: int,
    workers: Sequence[str],
    lanes: Mapping[str, Mapping[str, Sequence[str]]],
) -> dict[str, Any]:
    """Summarise one workload over one protocol.

    Parameters
    ----------
    name, protocol : str
    rounds : sequence of Round, shape (n,), n > 0
        The timed ones.
    warm_up : Round
        Checked, but not timed.
    parameters : mapping
        Sizes of the inputs, to print.
    nbytes : int
        Bytes of input, for the throughput.
    workers : sequence of str
        Addresses by worker index.
    lanes : mapping
        By worker address and peer address, the lanes used, such as ``"posix/memory"``.

    Returns
    -------
    dict
        One member of ``"workloads"`` in the record. Rates are in bytes/second. ``p2p_Bps`` holds quartiles
        over the transfers of all rounds from `P2P_MIN_NBYTES` on, or over all if none is that large; its
        values are None if nothing moved.
    """
    every = [t for r in rounds for t in r.transfers]
    large = any(t.nbytes >= P2P_MIN_NBYTES for t in every)
    least = P2P_MIN_NBYTES if large else 0
    counted = [t for t in every if t.nbytes >= least]
    pairs: list[dict[str, Any]] = []
    for w1, w2 in itertools.permutations(range(len(workers)), 2):
        between = [t for t in counted if (t.w1, t.w2) == (w1, w2)]
        pairs.append(
            {
                "w1": w1,
                "w2": w2,
                **_quartiles(between),
                "nbytes": sum(t.nbytes for t in between),
                "transfers": len(between),
                "lanes": sorted(lanes.get(workers[w1], {}).get(workers[w2], [])),
            }
        )
    by_round = [_quartiles([t for t in r.transfers if t.nbytes >= least])["q50"] for r in rounds]
    wrong = [r.difference for r in (warm_up, *rounds) if r.difference]
    return {
        "name": name,
        "protocol": protocol,
        "parameters": dict(parameters),
        "wall_s": [r.wall_s for r in rounds],
        "warm_up_wall_s": warm_up.wall_s,
        "input_nbytes": nbytes,
        "throughput_Bps": [nbytes / r.wall_s for r in rounds],
        "moved_nbytes": [sum(t.nbytes for t in r.transfers) for r in rounds],
        "lent_nbytes": [r.lent_nbytes for r in rounds],
        "p2p_Bps": _quartiles(counted),
        "p2p_q50_Bps_by_round": by_round,
        "p2p_min_nbytes": least,
        "pairs": pairs,
        "lanes": sorted({lane for pair in pairs for lane in pair["lanes"]}),
        "lanes_by_worker": {w: {peer: list(used) for peer, used in peers.items()} for w, peers in lanes.items()},
        "workers": list(workers),
        "correct": not wrong,
        "difference": wrong[0] if wrong else "",
    }


def _quartiles(transfers: Sequence[Transfer]) -> dict[str, float | None]:
    if not transfers:
        return {"q25": None, "q50": None, "q75": None}
    rates = [t.nbytes / t.duration_s for t in transfers]
    return {name: stats.quantile(rates, at) for name, at in (("q25", 0.25), ("q50", 0.5), ("q75", 0.75))}


def sides(protocols: Sequence[str]) -> tuple[str, str] | None:
    """Return ``(numerator, denominator)`` of the ratios: to tcp if it took part, else to the first."""
    if len(protocols) < 2:
        return None
    below = "tcp" if "tcp" in protocols else protocols[0]
    return next(p for p in protocols if p != below), below


def ratios(entries: Sequence[Mapping[str, Any]], protocols: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Compare the protocols, workload by workload.

    Returns
    -------
    dict
        By workload: ``wall`` and ``p2p``, each the median over the rounds of that round's ratio, and
        ``wall_range`` and ``p2p_range``, the interval that ``weft.bench.stats.ratio`` gives: below six rounds
        the smallest and the largest. ``p2p`` and its range are None if a round moved nothing. Empty for one
        protocol.
    """
    both = sides(protocols)
    if both is None:
        return {}
    found = {(e["name"], e["protocol"]): e for e in entries}
    answer: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(e["name"] for e in entries):
        above, below = (found[name, protocol] for protocol in both)
        wall = stats.ratio(above["wall_s"], below["wall_s"])
        answer[name] = {
            "wall": wall.value,
            "wall_range": [wall.low, wall.high],
            "p2p": None,
            "p2p_range": None,
        }
        moved = above["p2p_q50_Bps_by_round"], below["p2p_q50_Bps_by_round"]
        if None not in moved[0] and None not in moved[1]:
            p2p = stats.ratio(*moved)
            answer[name] |= {"p2p": p2p.value, "p2p_range": [p2p.low, p2p.high]}
    return answer


def verdict(ratio: Mapping[str, Any], *, above: str, below: str) -> str:
    """Say in words what a ratio of wall clocks means, and say so as plainly when `above` loses."""
    low, high = ratio["wall_range"]
    wall = ratio["wall"]
    if low <= 1 <= high and low != high:
        return f"no clear difference between {above} and {below}: rounds went both ways"
    if abs(wall - 1) <= SAME:
        return f"{above} and {below} take the same time, within {SAME:.0%}"
    if wall < 1:
        return f"{above} is faster: it takes {wall:.0%} of {below}'s time"
    return f"{above} is slower: it takes {wall:.2f} times as long as {below}"


def verdicts(record: Mapping[str, Any]) -> list[str]:
    """Say in words what the record shows, one line per workload; empty for one protocol."""
    both = sides(record["protocols"])
    if both is None:
        return []
    return [f"{name}: {verdict(r, above=both[0], below=both[1])}" for name, r in record["ratios"].items()]


def correctness(record: Mapping[str, Any]) -> str:
    """Say in one line whether every result was right."""
    wrong = [f"{w['name']} over {w['protocol']}://" for w in record["workloads"] if not w["correct"]]
    if wrong:
        return f"WRONG RESULTS: {', '.join(wrong)}"
    return "Every result, warm-up included, equals that of NumPy or pandas in one process."


def format_nbytes(nbytes: float) -> str:
    """Write a size with its binary unit, as the tables of dask-cuda do: ``5.49 GiB``."""
    for unit in ("B", "KiB", "MiB"):
        if abs(nbytes) < 1024:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.2f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.2f} GiB"


def format_rate(rate: float | None) -> str:
    """Write bytes/second with a binary unit; a rate that was not measured is a dash."""
    return "-" if rate is None else f"{format_nbytes(rate)}/s"


def format_p2p(quartiles: Mapping[str, float | None]) -> str:
    """Write the three quartiles of a bandwidth."""
    return " ".join(format_rate(quartiles[q]) for q in ("q25", "q50", "q75"))


def print_record(record: Mapping[str, Any], console: Console) -> None:
    """Print the whole report: a block for each workload and protocol, then the comparison.

    Parameters
    ----------
    record : mapping
        As in the file that ``--json`` writes.
    console : rich.console.Console
    """
    for e in record["workloads"]:
        _print_entry(e, console)
    _print_comparison(record, console)
    console.print()
    for line in (correctness(record), *verdicts(record)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _print_entry(e: Mapping[str, Any], console: Console) -> None:
    def line(text: str, style: str | None = None) -> None:
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def section(left: str, right: str, rows: Sequence[tuple[str, str]]) -> None:
        line("=" * _WIDTH)
        line(f"{left:<{_NAME_WIDTH}}| {right}")
        line("-" * _WIDTH)
        lines(rows)

    def lines(rows: Sequence[tuple[str, str]]) -> None:
        for left, right in rows:
            line(f"{left:<{_NAME_WIDTH}}| {right}")

    line("")
    line(f"{e['name']} over {e['protocol']}://", "bold")
    line("-" * _WIDTH)
    lines([(key, str(value)) for key, value in e["parameters"].items()])
    lines(
        [
            ("Protocol", e["protocol"]),
            ("Lanes", ", ".join(e["lanes"]) or "not reported"),
            ("Data processed", format_nbytes(e["input_nbytes"])),
            ("Data moved per round", format_nbytes(statistics.median(e["moved_nbytes"]))),
            ("of that, lent uncopied", format_nbytes(statistics.median(e["lent_nbytes"]))),
            ("Number of workers", str(len(e["workers"]))),
            ("Result", "correct" if e["correct"] else f"WRONG: {e['difference']}"),
        ]
    )
    section(
        "Wall clock",
        "Throughput",
        [(f"{w:.3f} s", format_rate(t)) for w, t in zip(e["wall_s"], e["throughput_Bps"], strict=True)],
    )
    line("=" * _WIDTH)
    wall, throughput = e["wall_s"], e["throughput_Bps"]
    lines(
        [
            ("Throughput", _median(throughput, format_rate)),
            ("Bandwidth, 25% 50% 75%", format_p2p(e["p2p_Bps"])),
            ("Wall clock", _median(wall, "{:.3f} s".format)),
        ]
    )
    section(
        "(w1,w2)",
        "25% 50% 75% (total nbytes)",
        [
            (
                f"({p['w1']},{p['w2']})",
                f"{format_p2p(p)} ({format_nbytes(p['nbytes'])})" if p["transfers"] else "nothing moved",
            )
            for p in e["pairs"]
        ],
    )
    least = e["p2p_min_nbytes"]
    line(f"w1 received from w2; transfers of {format_nbytes(least)} and more" if least else "w1 received from w2; all")
    section(
        "(w1,w2)",
        "Lanes",
        [(f"({p['w1']},{p['w2']})", ", ".join(p["lanes"]) or "not reported") for p in e["pairs"]],
    )
    section("Worker index", "Worker address", [(str(i), address) for i, address in enumerate(e["workers"])])
    line("=" * _WIDTH)


def _median(values: Sequence[float], write: Any) -> str:
    return f"{write(statistics.median(values))} ({write(min(values))} .. {write(max(values))})"


def _print_comparison(record: Mapping[str, Any], console: Console) -> None:
    protocols = record["protocols"]
    both = sides(protocols)
    # No frame between columns: with one, two rates and a range do not fit into 80 columns.
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("workload")
    table.add_column("measured")
    for protocol in protocols:
        table.add_column(protocol, justify="right")
    if both is not None:
        table.add_column(f"{both[0]}/{both[1]}", justify="right")
        table.add_column("range", justify="right")
    for name in dict.fromkeys(e["name"] for e in record["workloads"]):
        entries = {e["protocol"]: e for e in record["workloads"] if e["name"] == name}
        wall = [f"{statistics.median(entries[p]['wall_s']):.3f} s" for p in protocols]
        p2p = [format_rate(entries[p]["p2p_Bps"]["q50"]) for p in protocols]
        ratio = record["ratios"].get(name)
        table.add_row(name, "wall clock", *wall, *_ratio_cells(ratio, "wall"))
        table.add_row("", "bandwidth", *p2p, *_ratio_cells(ratio, "p2p"), end_section=True)
    idle = record["idle_cpu_percent"]
    table.add_row("(idle)", "CPU", *(f"{idle[p]:.1f} %" if p in idle else "-" for p in protocols))
    console.print("\nMedian of the rounds", style="bold")
    console.print(table)
    for note in (
        "wall clock: less is better; bandwidth: of single transfers, more is better",
        "CPU: percent of one core; client, scheduler and both workers together",
    ):
        console.print(note, style="dim", highlight=False, soft_wrap=True)


def _ratio_cells(ratio: Mapping[str, Any] | None, key: str) -> list[str]:
    if ratio is None:
        return []
    if ratio[key] is None:
        return ["-", "-"]
    low, high = ratio[f"{key}_range"]
    return [f"{ratio[key]:.2f}", f"{low:.2f}-{high:.2f}"]
