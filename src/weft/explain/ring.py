# SPDX-License-Identifier: BSD-3-Clause
"""A connection that weft's own ring carries, between two processes of one host; UCX is not loaded."""

from __future__ import annotations

from collections.abc import Sequence

from weft._native import Channel
from weft._units import format_size
from weft.explain.protocols import Lane, Size, by_weft
from weft.explain.reasons import KNOWN, Verdict

NAME = "ring"
#: The lane of a connection that the ring carries.
LANE = f"{NAME}/memory"


def lanes(transports: Sequence[str]) -> list[Lane]:
    """List the lanes."""
    return [Lane(transport, device, "messages") for transport, _, device in (n.partition("/") for n in transports)]


def sizes() -> list[Size]:
    """List the protocols by message size, in bytes."""
    whole, announced = Channel.whole_nbytes - Channel.header_nbytes, Channel.rendezvous_nbytes
    pieces, large = (f"pieces of {format_size(n)}" for n in (Channel.piece_nbytes, Channel.large_piece_nbytes))
    return [
        *by_weft(lends=True),
        Size("send", 0, whole, "one record, copied in and out", LANE, "weft"),
        Size("send", whole + 1, announced - 1, f"{pieces} in the sender's memory", LANE, "weft"),
        *_announced(announced, pieces, large),
    ]


def _announced(least: int, pieces: str, large: str) -> list[Size]:
    """List how large messages are sent; where private caches hold all pieces, the last ones are small."""
    small = Channel.last_small_nbytes()
    if not small:
        return [Size("send", least, None, f"announced, then {large}", LANE, "weft")]
    both = f"announced, then {large}; the last {format_size(small)} in {pieces}"
    return [
        Size("send", least, small, f"announced, then {pieces}", LANE, "weft"),
        Size("send", small + 1, None, both, LANE, "weft"),
    ]


def verdicts() -> list[Verdict]:
    """Return the verdicts: the ring is used, and each of UCX's transports is not, with the reason."""
    why = "weft's own ring carries messages between two processes of one host"
    used = Verdict(NAME, True, "in use on memory", "the connection's lanes")
    return [used, *(Verdict(name, False, why, "UCX_TLS: not set; set it to have UCX carry them") for name in KNOWN)]


def verdict_of_ucx(why_ucx: str, *, same_host: bool, apart: str) -> Verdict:
    """Return the reason why UCX and not the ring carries a connection; `why_ucx` is from the handshake."""
    if not same_host:
        return Verdict(NAME, False, "works within one host only", apart)
    return Verdict(NAME, False, why_ucx or "unknown", "what both sides reported in the handshake")
