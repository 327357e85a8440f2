# SPDX-License-Identifier: BSD-3-Clause
"""Results that go over a link slower than a codec are compressed, by Dask's own means.

Dask compresses a frame if a sample of it shrinks, and says in the frame's header what it did, so that any receiver
with the codec can read it. What Dask has no answer to is when that pays: its setting is one for all links. Here it
is the rate that a peer's latest transfers had, against the speed that the codecs have on this machine.
"""

from __future__ import annotations

import functools
import random
import time
from typing import Any, NamedTuple

from distributed.protocol.compression import compressions

#: What a process tells in Dask's handshake: the codecs that it can read.
READS = "weft-reads"
#: Codecs that are fast enough for a network.
_CODECS = ("zstd", "lz4")
#: Compressed data have to be there in this part of the time, or less.
_PAYS = 0.7
_SAMPLE_NBYTES = 256 << 10


class Speed(NamedTuple):
    """A codec on this machine, on text of numbers."""

    bytes_a_second: float
    #: Bytes that are left of one.
    ratio: float


def readable() -> list[str]:
    """Return the codecs that are installed."""
    return [name for name in _CODECS if name in compressions]


@functools.cache
def speed(name: str) -> Speed:
    """Measure a codec, once: the fastest of three goes."""
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
    """Return the codec that has data at the other end soonest; None if sending them as they are is as good.

    Parameters
    ----------
    rate_Bps : float or None
        Of the link; None if it is not known yet.
    reads : sequence of str
        The codecs that the other side has. It comes from there, and may be anything.
    """
    if not rate_Bps or not isinstance(reads, list | tuple):
        return None
    common = [name for name in readable() if name in reads]
    within = _PAYS / rate_Bps
    times = {name: 1 / at.bytes_a_second + at.ratio / rate_Bps for name in common for at in [speed(name)]}
    best = min(times, key=times.__getitem__, default=None)
    return best if best is not None and times[best] <= within else None
