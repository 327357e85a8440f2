# SPDX-License-Identifier: BSD-3-Clause
"""The interface of a connection's channel: ``_native.Channel`` over UCX or a ring, ``TlsChannel`` over a TLS socket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from weft.typing import BufferLike, Request


class Channel(Protocol):
    """One end of a connection: ordered messages, bounded on both sides. :class:`weft.Peer` documents its methods."""

    def send(
        self, first: BufferLike, rest: list[Buffer] | None = None, lend: bool = False, stage: bool = False, /
    ) -> Request[None]: ...

    def lend(self, buffer: BufferLike, /) -> Request[None]: ...

    def recv(self) -> Request[Any]:
        """Receive a memoryview, or a tuple of them: one for each segment of the message."""
        ...

    def recv_into(self, buffer: Buffer, /) -> Request[int]: ...

    def send_many(self, buffers: Sequence[BufferLike], /) -> Request[None]: ...

    def recv_many(self, count: int, /) -> Request[list[Any]]: ...

    def send_placed(
        self, first: Buffer, rest: list[Buffer], lend: bool, stage: bool, placed: list[Buffer], /
    ) -> list[Request[None]]:
        """Send a message, and then each of `placed`, for ``recv_placed`` on the other side."""
        ...

    def recv_placed(self, place: int, buffer: Buffer, /) -> Request[Any]:
        """Receive the buffer that was sent as number `place`, counted from 0; `buffer` must have its exact size."""
        ...

    def close(self) -> Request[None]: ...

    def abort(self, reason: str = ..., /) -> None: ...

    @property
    def closed(self) -> bool: ...

    @property
    def ended(self) -> bool: ...

    @property
    def loss_raised(self) -> bool:
        """Whether the other side was lost without a goodbye, and an exception has reported it."""
        ...

    @property
    def next_place(self) -> int:
        """The number of buffers sent with ``send_placed``."""
        ...

    @property
    def lent_sent_nbytes(self) -> int: ...

    @property
    def lent_received_nbytes(self) -> int: ...

    @property
    def landed(self) -> tuple[int, float, float]: ...

    @property
    def memory_types(self) -> list[str]: ...

    @property
    def transports(self) -> list[str]: ...
