# SPDX-License-Identifier: BSD-3-Clause
"""What `benchmarks.py` writes of the long runs' records: kills, fuzzing, soaks, the tests of others.

A busy machine does them no harm; the two that measure speed, Hoplite's and xoscar's calls, do it in turns.
"""

from __future__ import annotations

import itertools
import re
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft._units import format_seconds, format_size

Record = Mapping[str, Any]

#: Run in an environment of its own, which imports weft from here: to uv a folder whose native sources are the same has
#: not changed, and it would install what it built before.
_ALONE = "uv run --isolated --no-project --python 3.11 --with-editable ."
_XOSCAR = f"{_ALONE} --with xoscar==0.9.1 --with pandas"


def _distributed(release: str) -> str:
    needed = (f"dask[array,dataframe]=={release}", f"distributed=={release}", "pytest", "pytest-timeout")
    needed += ("pytest-rerunfailures", "bokeh", "crick", "lz4", "prometheus_client", "requests", "scipy", "zstandard")
    environment = " ".join((_ALONE, *(f"--with {each}" for each in needed)))
    return f"{environment} python scripts/distributed_tests.py --source SOURCES/distributed/.git"


#: What each record below docs/benchmarks/long is measured by, and what makes it tiny. SOURCES is --sources.
MEASURED = {
    "long/fuzz": ("scripts/fuzz_handshake.py --count 1000000 --seed 20", "--count 10000"),
    "long/fuzz_ring": ("scripts/fuzz_ring.py --count 1000000 --seed 20", "--count 10000"),
    "long/kills": ("scripts/kills.py --count 1000", "--count 10"),
    "long/kills_lent": ("scripts/kills.py --count 1000 --phases lent", "--count 5"),
    "long/soak": ("scripts/soak.py --count 10000", "--count 40"),
    "long/handovers": ("scripts/soak.py --count 0 --handovers 100000", "--handovers 40"),
    "long/start_up": ("scripts/soak.py --count 0 --kills 200", "--kills 5"),
    "long/dask": ("scripts/dask_soak.py --seconds 600 --kill-every 5", "--seconds 5"),
    "long/ucx_py": (
        f"{_ALONE} --with numpy --with pytest==7.* --with pytest-asyncio==0.21.* --with pytest-timeout "
        "python scripts/ucx_py_tests.py --source SOURCES/ucx-py",
        "--only test_config",
    ),
    "long/ucxx": (
        f"{_ALONE} --with cloudpickle --with dask-cuda[cu12] --with jsonschema --with pytest "
        "--with pytest-asyncio --with pytest-rerunfailures --with pytest-timeout "
        "python scripts/ucxx_tests.py --source SOURCES/ucxx",
        "--only test_config",
    ),
    "long/xoscar": (
        f"{_XOSCAR} --with mock --with pytest==8.* --with pytest-asyncio --with pytest-timeout "
        "python scripts/xoscar_tests.py --source SOURCES/xoscar",
        "--only test_comm",
    ),
    "long/xoscar_calls": (f"{_XOSCAR} python scripts/xoscar_bench.py", "--sizes 8 --calls 5 --rounds 1"),
    "long/hoplite": (
        "uv run python scripts/hoplite_tests.py --source SOURCES/hoplite",
        "--workers 2 --sizes 2097152 --collectives gather --rounds 1",
    ),
    "long/everything": ("uv run nox -s everything --", "tests/test_units.py"),
    "long/distributed": (_distributed("2026.8.0"), "--files tests/test_batched.py"),
    "long/distributed_before": (_distributed("2026.7.1"), "--files tests/test_batched.py"),
    "long/versions": (
        "scripts/versions.py --pythons 3.12,3.13,3.14 --ucx 1.16.0,1.18.1,1.20.1",
        "--pythons= --ucx 1.22.0 --only tests/native/test_side.py",
    ),
    "long/rdma": ("uv run nox -s rdma -- --boots 5", "--boots 1 device"),
}


def span(values: Sequence[float], unit: str = "") -> str:
    """Write what values lie within."""
    low, high = min(values), max(values)
    return f"{low:,}{unit}" if low == high else f"{low:,} to {high:,}{unit}"


def kills(record: Record) -> str:
    """Say how soon survivors were told, for each thing that was going on; and what was seen beside it."""
    told = record["told_after_s"]
    lines = [
        f"- {phase}: {len(seconds):,} kills, noticed after {format_seconds(statistics.median(seconds))} (median), "
        f"at most {format_seconds(max(seconds))}"
        for phase, seconds in told.items()
    ]
    total, descriptors = sum(map(len, told.values())), list(record["descriptors"].values())
    other, soon = record["other_errors"], f"{record['soon_s']:g} s"
    wrong = f"Of {total:,} kills {other} raised a wrong error, or none; {record['wrong'] - other} came after {soon}"
    beside = f"{record['steady_rounds']:,} round trips on another connection meanwhile"
    files = f"{record['files_left']} more files in `/dev/shm` than before"
    held = f"{span(descriptors)} descriptors, counted every hundred kills, {descriptors[-1]} at the end"
    return "\n".join([*lines, "", f"{wrong}; {beside}; {files}; {held}."])


def fuzz(record: Record) -> str:
    """Say how the cases ended, and what the process held from the first tenth to the last."""
    outcomes: Counter[str] = Counter()
    for outcome, times in record["outcomes"].items():
        outcomes[outcome.partition(": ")[2]] += times
    marks = record["marks"]
    each = ", ".join(f"{times:,} {outcome}" for outcome, times in outcomes.most_common())
    rate = marks[-1]["cases"] / marks[-1]["seconds"]
    held = f"{span([m['descriptors'] for m in marks])} descriptors, {span([m['resident_kib'] for m in marks], ' KiB')}"
    return f"{outcomes.total():,} cases, {rate:,.0f} a second: {each}. {held} from the first tenth to the last."


def fuzz_ring(record: Record) -> str:
    """Say how the links ended, and what the process held from the first tenth to the last."""
    outcomes: Counter[str] = Counter()
    for outcome, times in record["outcomes"].items():
        rule = outcome.partition("ring protocol (")[2].rstrip(")")
        outcomes[rule or outcome.partition(":")[0]] += times
    marks = record["marks"]
    each = ", ".join(f"{times:,} {outcome}" for outcome, times in outcomes.most_common())
    rate = marks[-1]["cases"] / marks[-1]["cpu_seconds"]
    kinds = (("descriptors", " descriptors"), ("resident_kib", " KiB"), ("arena_kib", " KiB of rings"))
    held = ", ".join(span([mark[kind] for mark in marks], unit) for kind, unit in kinds)
    beside = f"{sum(record['at_any_time'].values()):,} more by another process, at any time"
    held = f"{held} from the first tenth to the last"
    return f"{outcomes.total():,} links, {rate:,.0f} a second of CPU time: {each}; {beside}. {held}."


def soak(record: Record) -> str:
    """Say what both processes held, from the first mark to the last."""
    (name, taken) = next((name, record[name]) for name in ("cycles", "handovers") if name in record)
    lines = [f"{taken['count']:,} {name}, checked {len(taken['connector_and_listener'])} times:", ""]
    for side, marks in zip(("connector", "listener"), zip(*taken["connector_and_listener"], strict=True), strict=True):
        descriptors, mappings, resident, shared = zip(*marks, strict=True)
        held = f"{span(descriptors)} descriptors, {span(mappings)} mappings"
        step, at = max((b - a, n) for n, (a, b) in enumerate(itertools.pairwise(resident), 2))
        grew = f"; the largest step, {step:,} KiB, came before check {at}" if step > 0 else ""
        kib = f"{resident[0]:,} KiB at the first check, {resident[-1]:,} at the last{grew}"
        lines.append(f"- {side}: {held}, {kib}; {span(shared, ' KiB')} of shared memory")
    verdict = f"**not flat: {'; '.join(record['faults'])}**" if record["faults"] else "flat"
    return "\n".join([*lines, f"- {record['files_left']} files left in `/dev/shm`; the script's verdict: {verdict}"])


def start_up(record: Record) -> str:
    """Say what processes left that were killed while they made workers."""
    taken = record["start_up"]
    return f"{taken['kills']:,} such processes left {taken['files']:,} files in `/dev/shm`."


def dask(record: Record) -> str:
    """Say how many jobs were done while workers were killed."""
    each = ", ".join(f"{times:,} {name.replace('_', ' ')}" for name, times in record["jobs"].items())
    return (
        f"{sum(record['jobs'].values()):,} jobs in {record['seconds']:g} s ({each}), every result right; "
        f"{record['kills']} times a worker was killed, of {record['workers']}; the longest job took "
        f"{format_seconds(record['longest_s'])}."
    )


def memory(record: Record) -> str:
    """Say how many copies of an array the workers of one host have, and how many they count."""
    copies = {name: f"{rise / record['nbytes']:.2f}" for name, rise in record["rises"].items()}
    return (
        f"{format_size(record['nbytes'])} on {record['workers']} workers: {copies['physical']} copies of physical "
        f"memory; {copies['counted']} counted by Dask; {copies['resident']} in the sum of their resident memory."
    )


def ucx_py(record: Record) -> str:
    """List each file's tests, and why those that were skipped were."""
    counts = [Counter(each) for each in record["files"].values()]
    total: Counter[str] = sum(counts, Counter())
    lines = [f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped.", ""]
    lines += ["|  | passed | failed | skipped |", "|---|---|---|---|"]
    for name, each in sorted(record["files"].items()):
        lines.append(f"| `{name}` | {' | '.join(str(each.get(key, 0)) for key in ('passed', 'failed', 'skipped'))} |")
    reasons: Counter[str] = Counter()
    for name, times in record["skipped"].items():
        why = name.partition(": ")[2].partition(". ")[0]
        reasons[re.sub(r"^could not import '([\w.]+)'.*", r"needs \1", why)] += times
    lines += ["", f"Skipped: {'; '.join(f'{why} ({times})' for why, times in reasons.most_common())}."]
    lines += [f"- `{name}` failed: {why}" for name, why in record["failed"].items()]
    refused = Counter(record.get("expected", {}).values())
    if refused:
        told = "; ".join(f"{why} ({times})" for why, times in refused.most_common())
        lines += ["", f"Not passed, as expected: {told}."]
    lines += [f"- Not run, `{name}`: {why}" for name, why in record.get("not_run", {}).items()]
    if without := record.get("without"):
        lines += ["", f"Without the drop-in: {', '.join(f'{times} {how}' for how, times in without.items())}."]
    return "\n".join(lines)


def hoplite(record: Record) -> str:
    """List each collective's times by protocol: the median of the rounds, and what they lie within."""
    protocols = list(dict.fromkeys(protocol for each in record["seconds"].values() for protocol in each))
    lines = [f"|  | array | {' | '.join(f'`{p}://`' for p in protocols)} |", "|---|---|" + "---|" * len(protocols)]
    for cell, each in record["seconds"].items():
        name, size = cell.split()
        cells = (_median_and_span(each.get(protocol, ())) for protocol in protocols)
        lines.append(f"| {name} | {format_size(int(size))} | {' | '.join(cells)} |")
    lines += ["", f"{record['workers']} workers; medians of the rounds, with their range in brackets."]
    return "\n".join([*lines, *(f"- {cell} failed: {why}" for cell, why in record["failed"].items())])


def xoscar_calls(record: Record) -> str:
    """List the round trips of calls by channel."""
    channels = list(record["rows"][0]["round_trip_s"])
    lines = [f"| array | {' | '.join(channels)} |", "|---|" + "---|" * len(channels)]
    for row in record["rows"]:
        cells = (_median_and_span(row["round_trip_s"][channel]) for channel in channels)
        lines.append(f"| {format_size(row['nbytes'])} | {' | '.join(cells)} |")
    said = f"xoscar {record['xoscar']}; round trips; medians of the rounds' medians, with their range in brackets."
    return "\n".join([*lines, "", said])


def _median_and_span(seconds: Sequence[float]) -> str:
    if not seconds:
        return ""
    within = f"{format_seconds(min(seconds))}-{format_seconds(max(seconds))}"
    return f"{format_seconds(statistics.median(seconds))} ({within})"


def everything(record: Record) -> str:
    """Say how the whole suite went with all that it can use, and what was skipped all the same."""
    counts = ", ".join(f"{times:,} {outcome}" for outcome, times in record["counts"].items())
    only = f"With `{' '.join(record['arguments'])}`: " if record.get("arguments") else ""
    lines = [f"{only}{counts}.", ""]
    for each in record["skipped"]:
        lacks = f"for want of {each['lacks']}" if each["lacks"] else "**could be installed**"
        lines.append(f"- skipped {each['tests']}, {lacks}: {each['why']}")
    lines += [f"- `{name}` failed: {why}" for name, why in record["failed"].items()]
    alone = record.get("passed_alone", {}).items()
    return "\n".join([*lines, *(f"- `{name}` failed, and passed when run alone: {why}" for name, why in alone)])


def distributed(record: Record) -> str:
    """List each file's tests with each protocol, and what failed once only."""
    protocols = list(next(iter(record["files"].values())))
    lines = [f"| {' | '.join((record['distributed'], *protocols))} |", "|---|" + "---|" * len(protocols)]
    for name, runs in record["files"].items():
        cells = [
            " / ".join(str(run.get(key, 0)) for key in ("passed", "failed", "skipped", "over"))
            + (f", {run['end']}" if run["end"] else "")
            for run in runs.values()
        ]
        lines.append(f"| {' | '.join((f'`{name}`', *cells))} |")

    def named(test: str) -> str:
        file, _, name = test.partition("::")
        return f"`{name}` of `{file}`"

    unknown = [named(test) for test, outcomes in record.get("differences", {}).items() if not outcomes["reason"]]
    once = [
        f"{named(name)} ({', '.join(protocol for protocol, outcome in outcomes.items() if outcome == 'flaky')})"
        for name, outcomes in record.get("flaky", {}).items()
    ]
    lines += ["", f"Differ for an unknown reason: {', '.join(unknown) or 'none'}."]
    lines += [f"Failed once, and passed alone: {', '.join(once)}."] if once else []
    both = record.get("failed_with_every_protocol")
    return "\n".join([*lines, *([f"Failed with each protocol: {', '.join(map(named, both))}."] if both else [])])


def versions(record: Record) -> str:
    """List how the tests went with each interpreter and each release of UCX, and what failed."""
    lines = ["| CPython | UCX | tests | passed / failed / skipped |  | again |", "|---|---|---|---|---|---|"]
    told = []
    for title, run in record["runs"].items():
        kind, version = title.split()
        again = f"uv run nox -s tests-{version}" if kind == "CPython" else f"python scripts/versions.py --ucx {version}"
        if "missing" in run:
            lines.append(f"| {title} |  | {run['tests']} | {run['missing']} |  | `{again}` |")
            continue
        counts, where = run["counts"], run["environment"]
        each = " / ".join(f"{counts.get(key, 0):,}" for key in ("passed", "failed", "skipped"))
        python, ucx = where["python"].removeprefix("CPython "), where["ucx"]["version"]
        minutes = f"{run['seconds'] / 60:.0f} min, load before {where['load_average'][0]:.1f}"
        lines.append(f"| {python} | {ucx} | {run['tests']} | {each} | {minutes} | `{again}` |")
        told += [f"- {title}, `{name}`: {why}" for name, why in run["failed"].items()]
    return "\n".join([*lines, "", *(told or ["Nothing failed."])])


def rdma(record: Record) -> str:
    """Say how many boots were right, and how long each took."""
    seconds = [boot["seconds"] for boot in record["boots"]]
    wrong = [
        f"- boot {number}: {'; '.join(boot['wrong'])}"
        for number, boot in enumerate(record["boots"], 1)
        if boot["wrong"]
    ]
    right = f"{len(seconds) - len(wrong)} of {len(seconds)} boots passed, each with {len(record['cases'])} cases"
    return "\n".join([f"{right}, in {span([round(s) for s in seconds], ' s')}.", *wrong])


#: What pages may name, the record that it needs, and how it is written.
FIGURES: dict[str, tuple[str, Callable[[Record], str]]] = {
    "fuzz": ("long/fuzz", fuzz),
    "fuzz-ring": ("long/fuzz_ring", fuzz_ring),
    "kills": ("long/kills", kills),
    "kills-lent": ("long/kills_lent", kills),
    "soak": ("long/soak", soak),
    "handovers": ("long/handovers", soak),
    "start-up": ("long/start_up", start_up),
    "dask-kills": ("long/dask", dask),
    "memory": ("memory", memory),
    "ucx-py": ("long/ucx_py", ucx_py),
    "ucxx": ("long/ucxx", ucx_py),
    "xoscar": ("long/xoscar", ucx_py),
    "xoscar-calls": ("long/xoscar_calls", xoscar_calls),
    "hoplite": ("long/hoplite", hoplite),
    "everything": ("long/everything", everything),
    "distributed": ("long/distributed", distributed),
    "distributed-before": ("long/distributed_before", distributed),
    "versions": ("long/versions", versions),
    "rdma": ("long/rdma", rdma),
}
