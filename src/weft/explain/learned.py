# SPDX-License-Identifier: BSD-3-Clause
"""What clusters have learned of the link between two hosts, from the files that they keep it in (``weft.links.store``).

Workers are named by their addresses there, hosts by what workers listen on; so only hosts are found again.
"""

from __future__ import annotations

import logging
from pathlib import Path

from weft.errors import InvalidParamError
from weft.explain import TIMED_NBYTES
from weft.explain.explanation import Learned
from weft.links import LinkModel, Place, store

logger = logging.getLogger("weft")

#: Unless one is named, so many files are read, the latest.
_MOST_FILES = 8


def of_cluster(name: str, here: str, there: str) -> list[Learned]:
    """Return what a cluster knows of the link between two hosts, at least what it would assume.

    Parameters
    ----------
    name : str
        The cluster's, as of ``weft.cluster``, or its file's: one that ends in ``.json`` or has a ``/``.
    here, there : str
        Addresses of the hosts.

    Raises
    ------
    InvalidParamError
        There is no such file, or it cannot be used.
    """
    path = store.path_of(name)
    if name.endswith(".json") or ("/" in name and not path.exists()):
        path = Path(name)
    try:
        return _rows(name, path, here, there, unknown=True)
    except (OSError, ValueError) as e:
        why = f"{path}: {e.strerror or e}" if isinstance(e, OSError) else f"{path} is damaged: {e}"
        raise InvalidParamError(f"--cluster {name}: {why}") from e


def of_hosts(here: str, there: str) -> list[Learned]:
    """Return what clusters with files in the user's cache know of the link between two hosts, the latest first."""
    rows: list[Learned] = []
    for path in store.files()[:_MOST_FILES]:
        try:
            rows += _rows(store.cluster_of(path), path, here, there, unknown=False)
        except (OSError, ValueError) as e:
            logger.warning("the link measurements in %s are ignored: %s", path, e)
    return rows


def _rows(cluster: str, path: Path, here: str, there: str, *, unknown: bool) -> list[Learned]:
    model = LinkModel()
    store.read(model, path, 0.0, most_weight=1e3)
    ends = {"here": here, "there": there}
    for worker, host in ends.items():
        model.place(worker, Place(host))
    directions = [("here", "there")] if here == there else [("here", "there"), ("there", "here")]
    memories = sorted({memory for *_, memory in model.hosts} | ({"host"} if unknown else set[str]()))
    return [
        _row(cluster, model, ends, a, b, memory)
        for a, b in directions
        for memory in memories
        if (unknown and memory == "host") or model.known_of_hosts(a, b, memory) is not None
    ]


def _row(cluster: str, model: LinkModel, ends: dict[str, str], a: str, b: str, memory: str) -> Learned:
    expected = model.predict(a, b, 0.0, memory)
    kind = model.place_of(a).kind_towards(b, model.place_of(b))
    level = model.known_of_hosts(a, b, memory) if expected.source == "hosts" else model.kinds.get((kind, memory))
    nbytes = TIMED_NBYTES[-1]
    return Learned(
        cluster=cluster,
        source=ends[a],
        destination=ends[b],
        memory=memory,
        latency_s=expected.latency_s,
        bandwidth_Bps=expected.bandwidth_Bps,
        nbytes=nbytes,
        predicted_s=expected.seconds(nbytes),
        spread=expected.deviation,
        samples=level.rate.weight if level is not None else 0.0,
        known_from=expected.source,
    )
