# SPDX-License-Identifier: BSD-3-Clause
"""``UCXXTag`` and ``UCXXTagMask``: 64-bit numbers of their own types; and the result of a probe."""

from __future__ import annotations

import weft


class _Number:
    __slots__ = ("value",)

    def __init__(self, value: int) -> None:
        if not 0 <= value < 1 << 64:
            raise OverflowError(f"{type(self).__name__}: {value} is not an unsigned 64-bit number")
        self.value = int(value)

    def __index__(self) -> int:
        return self.value

    __int__ = __index__

    def __eq__(self, other: object) -> bool:
        if isinstance(other, type(self)):
            return self.value == other.value
        return self.value == other if isinstance(other, int) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value})"


class UCXXTag(_Number):
    """A 64-bit tag; equal to the int with its value."""

    __slots__ = ()


class UCXXTagMask(_Number):
    """The bits of a tag that must match; equal to the int with its value."""

    __slots__ = ()


UCXXTagMaskFull = UCXXTagMask((1 << 64) - 1)


class TagProbeResult:
    """The result of a probe. True if it found a message.

    Parameters
    ----------
    found : TagMessage, tuple of (nbytes, tag), or None
        From :meth:`weft.Worker.tag_probe`; only a message that it removed from the queue has a handle.
    """

    def __init__(self, found: weft.TagMessage | tuple[int, int] | None) -> None:
        self._found = found

    @property
    def matched(self) -> bool:
        """Whether there is a message."""
        return self._found is not None

    def __bool__(self) -> bool:
        return self.matched

    @property
    def _message(self) -> tuple[int, int]:
        found = self._found
        if found is None:
            raise AttributeError("No message was matched")
        return (found.nbytes, found.tag) if isinstance(found, weft.TagMessage) else found

    @property
    def length(self) -> int:
        """The message's size in bytes."""
        return self._message[0]

    @property
    def sender_tag(self) -> UCXXTag:
        """The tag that it was sent with."""
        return UCXXTag(self._message[1])

    @property
    def handle(self) -> int | None:
        """A number for ``recv_with_handle``, if the probe removed the message from the queue."""
        _ = self._message
        return id(self._found) if isinstance(self._found, weft.TagMessage) else None

    def take(self) -> weft.TagMessage:
        """Return the message that the probe removed from the queue."""
        if not isinstance(self._found, weft.TagMessage):
            raise ValueError("the probe left the message in the queue: pass remove=True")
        return self._found

    def __repr__(self) -> str:
        if not self:
            return "TagProbeResult(matched=False)"
        handle = "" if self.handle is None else f", handle={self.handle}"
        return f"TagProbeResult(matched=True, sender_tag={self.sender_tag}, length={self.length}{handle})"
