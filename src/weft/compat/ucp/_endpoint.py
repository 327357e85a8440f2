# SPDX-License-Identifier: BSD-3-Clause
"""``Endpoint`` and ``Listener`` with ucx-py's interface."""

from __future__ import annotations

import asyncio
import logging
import weakref

import weft
from weft.compat._core import endpoint, listener
from weft.compat._core.connection import Connection, Goodbye, Pending
from weft.compat._core.exceptions import UCXError, translated

log = logging.getLogger("ucx")


class Endpoint(endpoint.Endpoint):
    """A connection to a peer; made by ``create_endpoint`` and ``create_listener``.

    When it is deleted, it is aborted.
    """

    def __init__(self, connection: Connection, ctx: endpoint.Context, tags: endpoint.Tags | None = None) -> None:
        super().__init__(connection, ctx, tags)
        self._shutting_down_peer = self._said_goodbye = False
        myself = weakref.ref(self)

        def on_goodbye() -> None:
            if (ep := myself()) is not None:
                ep._obey_goodbye()

        connection.set_goodbye_callback(on_goodbye)

    @property
    def released(self) -> bool:
        """Whether this side has closed it, or has said goodbye: its loop may stop before the rest of `close`."""
        return super().released or self._said_goodbye

    def closed(self) -> bool:
        """Return whether either side has ended the connection."""
        return self.is_closed()

    async def close(self) -> None:
        """Close; the peer's endpoint closes once it has received everything that was sent before."""
        ep = self._ep
        if ep is None or self.closed():
            self.abort()
            return
        if self._shutting_down_peer:
            return
        self._shutting_down_peer = True
        try:
            await self._say_goodbye(ep)
        finally:
            self._said_goodbye = True
            if not self.closed():
                await asyncio.sleep(0)  # let complete sends return before close cancels the others
                self.abort()

    async def _say_goodbye(self, ep: Connection) -> None:
        if ep.peer_key is None:
            return
        what = f"[Send shutdown] ep: {self.uid:#x}, close_after_n_recv: {sum(self._sent)}"
        try:
            ep.wire.look()
            if ep.wire.lost:
                raise UCXError(f"<{what}>: Connection reset by remote peer")
            await ep.say_goodbye(Goodbye(*self._sent))
        except (weft.Error, UCXError) as e:
            error = e if isinstance(e, UCXError) else UCXError(f"<{what}>: {e}")
            logging.warning("closing %#x: the peer is already gone: %r", self.uid, error)

    def _took(self, forced: bool) -> None:
        super()._took(forced)
        self._obey_goodbye()

    def _obey_goodbye(self) -> None:
        """End once everything has been received that the peer sent before its goodbye.

        A worker's ``recv`` may have taken messages with forced tags, so only receives with forced tags wait for them.
        """
        if self._ep is None or (goodbye := self._ep.goodbye) is None:
            return
        taken, forced = self._taken
        if taken >= goodbye.sent and forced >= goodbye.forced:
            self.abort()
        elif taken >= goodbye.sent:
            self._finish(Pending.RECV)
        elif self._ep.reading:  # every active message that was sent is here
            self._finish(Pending.SEND)

    async def flush(self) -> None:
        """Wait until the peer's worker has received everything that was sent before."""
        ep = self._usable()
        try:
            await ep.ended(ep.wire.endpoint.flush(), Pending.SEND)
        except weft.Error as e:
            raise translated(e, f"[Flush] ep: {self.uid:#x}") from None

    def get_ucp_worker(self) -> int:
        """Return the address of the ``ucp_worker_h``: see :func:`ucp.get_ucp_worker`."""
        return self._usable().worker.native.handle

    def get_ucp_endpoint(self) -> int:
        """Return the address of the ``ucp_ep_h``, which all connections to the same process share."""
        return self._usable().wire.endpoint.handle


class Listener(listener.Listener):
    """A listening socket; made by ``create_listener``. It is closed when this object is deleted."""

    def closed(self) -> bool:
        """Return whether it has stopped."""
        return self.is_closed()
