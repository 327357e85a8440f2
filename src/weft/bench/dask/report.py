# SPDX-License-Identifier: BSD-3-Clause
"""The record of Dask work over several protocols: what rounds come to, and what is said of it.

`entry` turns rounds into the record, which is plain JSON; all else reads the record alone. It is printed by
``printed``, drawn by ``charts``; the rounds are in ``rounds``.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from weft.bench.common import stats

# Below 1 MiB a transfer's duration is mostly latency; dask-cuda's table leaves them out too.
P2P_MIN_NBYTES = 1 << 20
# Within 5 % two medians of three rounds are called equal, whatever their order was.
SAME = 0.05
#: In place of figures that come from the workers' logs of transfers.
NOT_LOGGED = "none logged"
CHECKED = "equals that of NumPy or pandas in one process"


class Described(Protocol):
    """What the record says of a workload; see ``workloads.Workload``."""

    name: str
    parameters: dict[str, int | float | str]
    nbytes: int
    tasks: int
    checked: str


class Transfer(NamedTuple):
    """One message between workers, as its receiver logged it: worker `w1` received from worker `w2`.

    `start_s` is on a clock that all workers share.
    """

    w1: int
    w2: int
    nbytes: int
    duration_s: float
    start_s: float = 0.0


class Round(NamedTuple):
    """One run of a workload; `difference` says what was wrong with the result, empty if nothing.

    `lent_nbytes` of what the workers received was not copied to them, but lent. The rest is CPU time.
    """

    wall_s: float
    transfers: list[Transfer]
    difference: str
    lent_nbytes: int = 0
    worker_cpu_s: float = 0.0
    rest_cpu_s: float = 0.0


def entry(
    workload: Described,
    protocol: str,
    *,
    rounds: Sequence[Round],
    warm_ups: Sequence[Round],
    workers: Sequence[str],
    threads: Sequence[int],
    lanes: Mapping[str, Mapping[str, Sequence[str]]],
    ignore_nbytes: int = P2P_MIN_NBYTES,
) -> dict[str, Any]:
    """Summarise one workload over one protocol.

    Parameters
    ----------
    workload : Described
        Of which the sizes are read.
    protocol : str
    rounds : sequence of Round, shape (n,), n > 0
        The timed ones.
    warm_ups : sequence of Round
        Checked, but not timed.
    workers : sequence of str
        Addresses by worker index.
    threads : sequence of int
        How many each of them has.
    lanes : mapping
        By worker address and peer address, the lanes used, such as ``"ring/memory"``.
    ignore_nbytes : int
        Transfers below it do not count for bandwidths, unless all are.

    Returns
    -------
    dict
        One member of ``"workloads"`` in the record. Rates are in bytes/second. ``p2p_Bps`` holds quartiles
        over the transfers of all rounds; its values are None if nothing moved. ``communication_s`` is how
        long at least one worker was receiving, in each round.
    """
    if not any(r.lent_nbytes for r in (*warm_ups, *rounds)):  # another workload of this cluster may have lent
        lanes = {w: {peer: [x for x in used if x != "lent"] for peer, used in of.items()} for w, of in lanes.items()}
    every = [t for r in rounds for t in r.transfers]
    large = any(t.nbytes >= ignore_nbytes for t in every)
    least = ignore_nbytes if large else 0
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
    wrong = [r.difference for r in (*warm_ups, *rounds) if r.difference]
    return {
        "name": workload.name,
        "protocol": protocol,
        "parameters": dict(workload.parameters),
        "wall_s": [r.wall_s for r in rounds],
        "warm_up_wall_s": warm_ups[0].wall_s if warm_ups else None,
        "input_nbytes": workload.nbytes,
        "tasks": workload.tasks,
        "throughput_Bps": [workload.nbytes / r.wall_s for r in rounds],
        "moved_nbytes": [sum(t.nbytes for t in r.transfers) for r in rounds],
        "lent_nbytes": [r.lent_nbytes for r in rounds],
        "communication_s": [stats.covered((t.start_s, t.start_s + t.duration_s) for t in r.transfers) for r in rounds],
        "worker_cpu_s": [r.worker_cpu_s for r in rounds],
        "client_and_scheduler_cpu_s": [r.rest_cpu_s for r in rounds],
        "p2p_Bps": _quartiles(counted),
        "p2p_q50_Bps_by_round": by_round,
        "p2p_min_nbytes": least,
        "pairs": pairs,
        "lanes": sorted({lane for pair in pairs for lane in pair["lanes"]}),
        "lanes_by_worker": {w: {peer: list(used) for peer, used in peers.items()} for w, peers in lanes.items()},
        "workers": list(workers),
        "threads": list(threads),
        "checked": workload.checked,
        "correct": not wrong,
        "difference": wrong[0] if wrong else "",
    }


def _quartiles(transfers: Sequence[Transfer]) -> dict[str, float | None]:
    if not transfers:
        return {"q25": None, "q50": None, "q75": None}
    rates = [t.nbytes / t.duration_s for t in transfers]
    return dict(zip(("q25", "q50", "q75"), stats.quartiles(rates), strict=True))


class Comparison(NamedTuple):
    """One workload over protocol `above` beside the same over `below`, and the ratio of both.

    `ratio` has ``wall`` and ``p2p``, each the median over the rounds of that round's ratio, and ``wall_range`` and
    ``p2p_range``, the interval that ``weft.bench.common.stats.ratio`` gives: below six rounds the smallest and the
    largest. ``p2p`` and its range are None if a round moved nothing.
    """

    name: str
    above: str
    below: str
    ratio: dict[str, Any]


def baseline(protocols: Sequence[str]) -> str:
    """Return the protocol that ratios are taken to: tcp if it took part, else the first."""
    return "tcp" if "tcp" in protocols else protocols[0]


def comparisons(record: Mapping[str, Any]) -> list[Comparison]:
    """Compare the protocols, workload by workload; empty for one protocol."""
    below = baseline(record["protocols"])
    found = {(e["name"], e["protocol"]): e for e in record["workloads"]}
    return [
        Comparison(name, above, below, _ratio(found[name, above], found[name, below]))
        for name in dict.fromkeys(e["name"] for e in record["workloads"])
        for above in record["protocols"]
        if above != below
    ]


def _ratio(above: Mapping[str, Any], below: Mapping[str, Any]) -> dict[str, Any]:
    wall = stats.ratio(above["wall_s"], below["wall_s"])
    answer = {"wall": wall.value, "wall_range": [wall.low, wall.high], "p2p": None, "p2p_range": None}
    moved = above["p2p_q50_Bps_by_round"], below["p2p_q50_Bps_by_round"]
    if None not in moved[0] and None not in moved[1]:
        p2p = stats.ratio(*moved)
        answer |= {"p2p": p2p.value, "p2p_range": [p2p.low, p2p.high]}
    return answer


def ratio_of(ratio: Mapping[str, Any], key: str) -> stats.Ratio | None:
    """Read ``wall`` or ``p2p`` of a comparison; None where a round moved nothing."""
    return None if ratio[key] is None else stats.Ratio(ratio[key], *ratio[f"{key}_range"])


def verdict(ratio: Mapping[str, Any], *, above: str, below: str) -> str:
    """Say in words what a ratio of wall clocks means, and say so as plainly when `above` loses."""
    low, high = ratio["wall_range"]
    wall = ratio["wall"]
    if low == high:
        return f"one round cannot tell: {above} took {wall:.2f} times as long as {below}"
    if low <= 1 <= high:
        return f"no clear difference between {above} and {below}: rounds went both ways"
    if abs(wall - 1) <= SAME:
        return f"{above} and {below} take the same time, within {SAME:.0%}"
    if wall < 1:
        return f"{above} is faster: it takes {100 * wall:.2g}% of {below}'s time"
    return f"{above} is slower: it takes {wall:.2f} times as long as {below}"


def verdicts(record: Mapping[str, Any]) -> list[str]:
    """Say in words what the record shows, one line per workload and ratio; empty for one protocol."""
    return [f"{c.name}: {verdict(c.ratio, above=c.above, below=c.below)}" for c in comparisons(record)]


def correctness(record: Mapping[str, Any]) -> str:
    """Say in one line whether every result was right."""
    wrong = [f"{w['name']} over {w['protocol']}://" for w in record["workloads"] if not w["correct"]]
    if wrong:
        return f"WRONG RESULTS: {', '.join(wrong)}"
    checks = dict.fromkeys(w.get("checked", CHECKED) for w in record["workloads"])
    warm_up = ", warm-up included," * any(w["warm_up_wall_s"] is not None for w in record["workloads"])
    return f"Every result{warm_up} {' or '.join(checks)}."


def format_bytes(nbytes: float) -> str:
    """Write a size with its binary unit, as the tables of dask-cuda do: ``5.49 GiB``."""
    for unit in ("B", "KiB", "MiB"):
        if abs(nbytes) < 1024:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.2f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.2f} GiB"


def format_bandwidth(rate: float | None) -> str:
    """Write bytes/second with a binary unit; a rate that was not measured is a dash."""
    return "-" if rate is None else f"{format_bytes(rate)}/s"


def format_p2p(quartiles: Mapping[str, float | None]) -> str:
    """Write the three quartiles of a bandwidth."""
    return " ".join(format_bandwidth(quartiles[q]) for q in ("q25", "q50", "q75"))
