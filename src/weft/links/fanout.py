# SPDX-License-Identifier: BSD-3-Clause
"""From whom each of many that want one value gets it, while it is still on its way: a chain, not a star.

Whoever has the value first decides, at each request, by when it would be there from each that has it or gets it. A
port that sends it once already is half as fast for the next, so the next hangs on the tail of the shortest live chain;
one on a host that has it, or gets it, waits for that and borrows it. Nothing is known here of how pieces travel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

#: A value from so many bytes on is worth a chain: below, the requests cost more than a second copy through a port.
LEAST_NBYTES = 8 << 20
#: Pieces: small, because each hop adds the time of one; at most so many, because each costs a wake-up or two.
_LEAST_PIECE, _MOST_PIECE, _PIECES = 1 << 20, 8 << 20, 128


def piece_nbytes(nbytes: int) -> int:
    """Return the size of the pieces that a value of so many bytes travels in."""
    return min(max(_LEAST_PIECE, nbytes // _PIECES), _MOST_PIECE)


@dataclass(frozen=True, slots=True)
class Parent:
    """From whom to get a value: `name`; `lent` if that one is on the same host, and is to be waited for."""

    name: str
    lent: bool = False


@dataclass(slots=True)
class _Member:
    name: str
    host: str
    number: int
    parent: str = ""
    lent: bool = False
    there_s: float = 0.0  # when the value is expected to be there
    left: bool = False
    refused: set[str] = field(default_factory=set[str])


class Chain:
    """One value, the worker that hands it out, and those that want it.

    Parameters
    ----------
    source, host : str
        Who has it, and where.
    nbytes : int
        Its size.

    Nobody ever gets it from a member that came later, so nobody waits for itself.
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
    ) -> Parent | None:
        """Choose from whom a worker gets the value, at first or after those in `failed` let it down.

        Parameters
        ----------
        seconds_per_byte : callable
            What a byte is expected to take from a host to this one.

        Returns
        -------
        Parent or None
            None: there is nobody left.
        """
        member = self._members.get(name)
        if member is None:
            member = self._members[name] = _Member(name, host, self._number)
            self._number += 1
        member.left = False
        member.refused.update(failed)
        self._suspects.update(each for each in failed if each != self._source.name)
        member.parent = ""  # from here on nobody counts it as its child
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
            own = self.nbytes * rate * (1 + children[parent.name])
            return max(parent.there_s - now_s, own) + min(self.nbytes, piece_nbytes(self.nbytes)) * rate

        best = min(chained, key=lambda c: (there_s(c), -c.number))
        member.parent, member.lent, member.there_s = best.name, False, now_s + there_s(best)
        return Parent(best.name)

    def _usable(self, candidate: _Member, member: _Member) -> bool:
        """Whether a worker may get the value from a member: it is not gone, as far as that is known."""
        return not candidate.left and candidate.name not in member.refused and candidate.name not in self._suspects

    def _children(self) -> Counter[str]:
        """Count, by its name, to how many each sends it."""
        members = self._members.values()
        return Counter(m.parent for m in members if m.parent and not (m.lent or m.left or m.name in self._suspects))

    def has_it(self, name: str) -> None:
        """Take note that a member has all of it: it may go on handing it out, and takes nothing of its parent."""
        member = self._members.get(name)
        if member is not None:
            member.parent, member.there_s = "", 0.0

    def leave(self, name: str) -> None:
        """Take note that a member has given up, or lets nobody have it any more."""
        member = self._members.get(name)
        if member is not None:
            member.left, member.parent = True, ""

    @property
    def under_way(self) -> bool:
        """Whether somebody is still to get it."""
        return any(m.parent and not m.left and m.name not in self._suspects for m in self._members.values())
