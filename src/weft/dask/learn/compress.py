# SPDX-License-Identifier: BSD-3-Clause
"""Compresses results, with Dask's own mechanism, where the link is slower than a codec.

Dask compresses a frame if a sample of it shrinks, and notes the codec in the frame's header, so that any receiver with
the codec can read it. Dask does not know when this pays: it has one setting for all links. Here the decision compares
the rate of the latest transfers to a peer, or else to its host, with the speed of the codecs on this machine.
"""

from __future__ import annotations

import functools
import random
import time
from typing import Any, NamedTuple

from distributed.protocol.compression import compressions

#: The key in Dask's handshake under which a process lists the codecs that it can read.
READS = "weft-reads"
#: Codecs that are fast enough for a network link.
_CODECS = ("zstd", "lz4")
#: Compression must reduce the predicted time to this fraction or less.
_PAYS = 0.7
_SAMPLE_NBYTES = 256 << 10


class Speed(NamedTuple):
    """The speed and ratio of a codec on this machine, for numbers as text."""

    bytes_a_second: float
    #: Compressed bytes per byte of input.
    ratio: float


def readable() -> list[str]:
    """Return the codecs that are installed."""
    return [name for name in _CODECS if name in compressions]


@functools.cache
def speed(name: str) -> Speed:
    """Measure a codec, once per process: the fastest of three runs."""
    numbers = random.Random(1)  # noqa: S311
    sample = "\n".join(
        f"{numbers.random():.6f},{numbers.randrange(1000)}" for _ in range(_SAMPLE_NBYTES // 12)
    ).encode()
    compress, left, fastest = compressions[name].compress, 0, 1.0
    for _ in range(3):
        began = time.perf_counter()
        left = len(compress(sample))
        fastest = min(fastest, time.perf_counter() - began)
    return Speed(len(sample) / max(fastest, 1e-9), left / len(sample))


def choose(rate_Bps: float | None, reads: Any) -> str | None:  # noqa: N803
    """Return the codec with the shortest predicted transfer; None if sending uncompressed is about as fast.

    Parameters
    ----------
    rate_Bps : float or None
        Of the link; None if unknown.
    reads : sequence of str
        The codecs of the other side, as received from it: may be anything.
    """
    if not rate_Bps or not isinstance(reads, list | tuple):
        return None
    common = [name for name in readable() if name in reads]
    within = _PAYS / rate_Bps
    times = {name: 1 / at.bytes_a_second + at.ratio / rate_Bps for name in common for at in [speed(name)]}
    best = min(times, key=times.__getitem__, default=None)
    return best if best is not None and times[best] <= within else None
