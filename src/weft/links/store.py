# SPDX-License-Identifier: BSD-3-Clause
"""Saves and loads what was learned about a named cluster: hosts, kinds of links and ports, not pairs of workers.

Workers' addresses change at each start; hosts stay. A damaged file is rejected as a whole.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from weft.links.learned import LEAST_VARIANCE, Learned
from weft.links.model import Level, LinkModel
from weft.topo.interconnect import InterconnectClass

logger = logging.getLogger("weft")

_FORMAT = 1
#: Samples of an earlier run count as this many at most: the network may have changed since.
_MOST_WEIGHT = 2.0
_MOST_LINKS = 1_000_000
_MOST_NBYTES = 512 << 20


def path_of(cluster: str) -> Path:
    """Return the file of a cluster, in the user's cache (``XDG_CACHE_HOME``).

    Raises
    ------
    OSError
        The user has no home.
    """
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser()
    except RuntimeError as e:
        raise OSError(errno.ENOENT, "this user has no home; set XDG_CACHE_HOME") from e
    return cache / "weft" / "links" / f"{quote(cluster, safe='')}.json"


def cluster_of(path: Path) -> str:
    """Return the name of the cluster that a file is of."""
    return unquote(path.name.removesuffix(".json"))


def files() -> list[Path]:
    """Return the files of all clusters in the user's cache, the latest first."""
    found: list[tuple[float, Path]] = []
    with contextlib.suppress(OSError):  # there is no such folder, or one of them has just gone
        found = [(path.stat().st_mtime, path) for path in path_of("x").parent.glob("*.json")]
    return [path for _, path in sorted(found, reverse=True)]


def save(model: LinkModel, path: Path) -> None:
    """Write what was learned, atomically: readers see the former file or this one.

    Raises
    ------
    OSError
        The file cannot be written.
    """
    text = json.dumps(dump(model))
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        beside.write_text(text)
        beside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def load(model: LinkModel, path: Path, now_s: float) -> bool:
    """Load what was learned before, if the file exists; warn if it is damaged, and go on without.

    Returns
    -------
    bool
        Whether the file was loaded.

    Raises
    ------
    OSError
        The file exists, but cannot be read.
    """
    try:
        read(model, path, now_s)
    except FileNotFoundError:
        return False
    except ValueError as e:
        logger.warning(
            "the link measurements in %s are ignored, since the file is damaged, or of another version (%s). Learning "
            "starts anew and replaces the file; copy it first if you need it",
            path,
            e,
        )
        return False
    return True


def read(model: LinkModel, path: Path, now_s: float, *, most_weight: float = _MOST_WEIGHT) -> None:
    """Load a file; its samples count as `most_weight` at most.

    Raises
    ------
    OSError
        It cannot be read.
    ValueError
        It is spoiled, or another version's. The model is as it was.
    """
    if path.stat().st_size > _MOST_NBYTES:
        raise ValueError("it is too large")
    try:
        fill(model, json.loads(path.read_text()), now_s, most_weight=most_weight)
    except (TypeError, KeyError, RecursionError) as e:
        raise ValueError(repr(e)) from e


def dump(model: LinkModel) -> dict[str, Any]:
    """Return what was learned as JSON-able values."""
    return {
        "format": _FORMAT,
        "hosts": [[*key, _dump_level(level)] for key, level in model.hosts.items()],
        "kinds": [[kind.name, memory, _dump_level(level)] for (kind, memory), level in model.kinds.items()],
        "ports": [[*key, _dump_learned(learned)] for key, learned in model.ports.items()],
    }


def fill(model: LinkModel, dumped: Any, now_s: float, *, most_weight: float = _MOST_WEIGHT) -> None:
    """Load the result of :func:`dump` into an empty model.

    Raises
    ------
    ValueError, TypeError, KeyError
        `dumped` is not valid. The model is unchanged.
    """
    if dumped["format"] != _FORMAT:
        raise ValueError(f"its format is {dumped['format']!r:.80}, this version of weft has {_FORMAT}")
    fresh = LinkModel()
    for part in ("hosts", "kinds", "ports"):
        if len(dumped[part]) > _MOST_LINKS:
            raise ValueError(f"too many {part}: {len(dumped[part])}")
    for a, b, memory, level in dumped["hosts"]:
        _fill_level(fresh.level_of_hosts(_text(a), _text(b), _text(memory)), level, now_s, most_weight)
    for kind, memory, level in dumped["kinds"]:
        _fill_level(fresh.level_of_kind(InterconnectClass[kind], _text(memory)), level, now_s, most_weight)
    for direction, host, learned in dumped["ports"]:
        if direction not in ("ingress", "egress"):
            raise ValueError(f"a port's {direction!r}")
        fresh.ports[direction, _text(host)] = _fill_learned(Learned(), learned, now_s, most_weight)
    model.hosts, model.kinds, model.ports = fresh.hosts, fresh.kinds, fresh.ports


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > 1024:
        raise ValueError(f"not a name: {value!r:.80}")
    return value


def _number(value: object, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ValueError(f"{value!r:.80} is not between {low:g} and {high:g}")
    return float(value)


def _dump_level(level: Level) -> dict[str, Any]:
    return {
        "latency": _dump_learned(level.latency),
        "rate": _dump_learned(level.rate),
        "lent_share": level.lent_share,
    }


def _fill_level(level: Level, dumped: dict[str, Any], now_s: float, most_weight: float) -> None:
    _fill_learned(level.latency, dumped["latency"], now_s, most_weight)
    _fill_learned(level.rate, dumped["rate"], now_s, most_weight)
    share = dumped["lent_share"]
    level.lent_share = None if share is None else _number(share, 0, 1)


def _dump_learned(learned: Learned) -> list[float]:
    return [learned.mean, learned.variance, learned.weight]


def _fill_learned(learned: Learned, dumped: list[float], now_s: float, most_weight: float) -> Learned:
    mean, variance, weight = dumped
    learned.mean = _number(mean, math.log(1e-15), math.log(1e7))
    learned.variance = _number(variance, LEAST_VARIANCE, 1e3)
    learned.weight = min(most_weight, _number(weight, 0, 1e3))
    learned.seen_s = now_s
    return learned
