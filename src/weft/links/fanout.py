# SPDX-License-Identifier: BSD-3-Clause
"""Which sender each of many receivers of one value uses while the value is still in flight: a chain, not a star.

The value's first holder answers each request with the sender that is predicted to deliver first. A port that already
sends the value halves its speed for a second receiver, so the next receiver joins the tail of the shortest live chain.
A receiver whose host has, or is getting, the value waits and borrows it. Nothing here knows how pieces travel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

#: Use a chain for values of this size or more: below it, the requests cost more than a second copy through a port.
LEAST_NBYTES = 8 << 20
#: Pieces are small, because each hop adds the time of one; their number is capped, because each costs a wake-up or two.
_LEAST_PIECE, _MOST_PIECE, _PIECES = 1 << 20, 8 << 20, 128


def piece_nbytes(nbytes: int) -> int:
    """Return the size of the pieces in which a value of this size travels."""
    return min(max(_LEAST_PIECE, nbytes // _PIECES), _MOST_PIECE)


@dataclass(frozen=True, slots=True)
class Parent:
    """The sender of a value: `name`; `lent` if it is on the same host, so that the receiver waits and borrows."""

    name: str
    lent: bool = False


@dataclass(slots=True)
class _Member:
    name: str
    host: str
    number: int
    parent: str = ""
    lent: bool = False
    there_s: float = 0.0  # when the value is expected to be complete
    left: bool = False
    refused: set[str] = field(default_factory=set[str])


class Chain:
    """One value, the worker that hands it out, and its receivers.

    Parameters
    ----------
    source, host : str
        The worker that has the value, and its host.
    nbytes : int
        Its size.

    A member never receives from one that joined later, so there are no cycles.
    """

    def __init__(self, source: str, host: str, nbytes: int) -> None:
        self.nbytes = nbytes
        self._source = _Member(source, host, -1)
        self._members: dict[str, _Member] = {}
        self._suspects: set[str] = set()
        self._number = 0

    def join(
        self,
        name: str,
        host: str,
        seconds_per_byte: Callable[[str], float],
        now_s: float,
        *,
        failed: Collection[str] = (),
        beside_nbytes: int = 0,
        source_sends: int = 0,
    ) -> Parent | None:
        """Choose a worker's sender, on its first request or after the senders in `failed` have failed.

        Parameters
        ----------
        seconds_per_byte : callable
            Expected seconds per byte from a given host to this one.
        beside_nbytes : int
            Bytes that this worker receives from other sources at about the same time. If the source delivers the value
            before those can arrive, a chain gains nothing; and where every worker sends a value of its own to all, the
            ports of those that pass on more than others would be the bottleneck.
        source_sends : int
            Transfers that the source's port sends now, of this value and of others.

        Returns
        -------
        Parent or None
            None: no sender is left.
        """
        member = self._members.get(name)
        if member is None:
            member = self._members[name] = _Member(name, host, self._number)
            self._number += 1
        member.left = False
        member.refused.update(failed)
        self._suspects.update(each for each in failed if each != self._source.name)
        member.parent = ""  # from here on it counts as nobody's child
        candidates = [self._source, *self._members.values()]
        usable = [c for c in candidates if c.number < member.number and self._usable(c, member)]
        beside = next((c for c in usable if c.host == host and not c.lent), None)
        if beside is not None:
            member.parent, member.lent, member.there_s = beside.name, True, beside.there_s
            return Parent(beside.name, lent=True)
        chained = [c for c in usable if not c.lent]
        if not chained:
            return None

        children = self._children()

        def there_s(parent: _Member) -> float:
            rate = seconds_per_byte(parent.host)
            sends = children[parent.name] if parent is not self._source else max(children[parent.name], source_sends)
            own = self.nbytes * rate * (1 + sends)
            return max(parent.there_s - now_s, own) + min(self.nbytes, piece_nbytes(self.nbytes)) * rate

        best = min(chained, key=lambda c: (there_s(c), -c.number))
        if self._source in chained and there_s(self._source) <= (
            (beside_nbytes + self.nbytes) * seconds_per_byte(self._source.host)
        ):
            best = self._source
        member.parent, member.lent, member.there_s = best.name, False, now_s + there_s(best)
        return Parent(best.name)

    def _usable(self, candidate: _Member, member: _Member) -> bool:
        """Whether a worker may receive from this member, which is not known to be gone."""
        return not candidate.left and candidate.name not in member.refused and candidate.name not in self._suspects

    def _children(self) -> Counter[str]:
        """Count how many children each member sends to, by the member's name."""
        members = self._members.values()
        return Counter(m.parent for m in members if m.parent and not (m.lent or m.left or m.name in self._suspects))

    def has_it(self, name: str) -> None:
        """Record that a member has the whole value: it may still send it, and no longer loads its parent."""
        member = self._members.get(name)
        if member is not None:
            member.parent, member.there_s, member.left = "", 0.0, False

    def leave(self, name: str) -> None:
        """Record that a member gave up, or no longer sends the value."""
        member = self._members.get(name)
        if member is not None:
            member.left, member.parent = True, ""

    @property
    def under_way(self) -> bool:
        """Whether a member is still receiving the value."""
        return any(m.parent and not m.left and m.name not in self._suspects for m in self._members.values())
