# SPDX-License-Identifier: BSD-3-Clause
"""``Endpoint`` with UCXX's interface."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

import weft
from weft.compat._core import endpoint
from weft.compat._core.connection import Pending
from weft.compat._core.endpoint import plain
from weft.compat._core.exceptions import UCXCanceledError
from weft.compat.ucxx._lib.pointers import no_pointer
from weft.compat.ucxx._lib.tag import TagProbeResult
from weft.compat.ucxx._lib_async import multi


class Endpoint(endpoint.Endpoint):
    """A connection to a peer; made by ``create_endpoint`` and ``create_listener``.

    When it is deleted, it is aborted.
    """

    @property
    def alive(self) -> bool:
        """Whether the peer is there, as far as is known."""
        return not self.is_closed()

    @property
    def closed(self) -> bool:
        """Whether either side has ended the connection."""
        return self.is_closed()

    @property
    def ucp_endpoint(self) -> int:
        """The address of the ``ucp_ep_h``, which all connections to the same process share."""
        return self._usable().wire.endpoint.handle

    @property
    def ucp_worker(self) -> int:
        """The address of the ``ucp_worker_h``: see :func:`ucxx.get_ucp_worker`."""
        return self.connection.worker.native.handle

    @property
    def ucxx_endpoint(self) -> int:
        """Not supported; raises UCXUnsupportedError: there is no C++ ``ucxx::Endpoint``."""
        raise no_pointer("Endpoint")

    @property
    def ucxx_worker(self) -> int:
        """Not supported; raises UCXUnsupportedError: there is no C++ ``ucxx::Worker``."""
        raise no_pointer("Worker")

    def abort(self, period: int = 0, max_attempts: int = 1) -> None:
        """Close at once; pending operations end with UCXCanceledError. The arguments have no effect."""
        super().abort()

    async def close(self, period: int = 0, max_attempts: int = 1) -> None:
        """Close; messages sent before can still be received. The arguments have no effect."""
        if not self.closed:
            await asyncio.sleep(0)  # let complete sends return before close cancels the others
        self.abort()

    async def send_multi(self, buffers: Sequence[Any], tag: Hashable = None, force_tag: bool = False) -> None:
        """Send several buffers as one message, for :meth:`recv_multi`.

        Parameters
        ----------
        buffers : list or tuple of contiguous buffers
        tag, force_tag
            As in :meth:`send`.
        """
        ep = self._usable()
        if not isinstance(buffers, list | tuple):
            raise ValueError(f"The `buffers` argument must be a `list` or `tuple`, not {type(buffers).__name__}")
        number = self._tag(tag, force_tag, "msg_send")
        frames = [plain(buffer) for buffer in buffers]
        everything = [*multi.headers([nbytes for _, nbytes in frames]), *(data for data, _ in frames)]
        count = self._send_count
        self._send_count += 1
        try:
            await ep.ended(ep.wire.endpoint.tag_send_many(everything, number), Pending.SEND)
        except (weft.Error, UCXCanceledError) as e:
            nbytes = sum(nbytes for _, nbytes in frames)
            raise self._why(ep, e, f"[Send Multi #{count:03}]", number, nbytes) from None

    async def recv_multi(self, tag: Hashable = None, force_tag: bool = False) -> list[Any]:
        """Receive a message of :meth:`send_multi`, as NumPy arrays of bytes."""
        number = self._tag(tag, force_tag, "msg_recv")

        async def recv(buffer: Any) -> None:
            data, nbytes = plain(buffer)
            post = functools.partial(self.connection.worker.native.tag_recv, data, number)
            await self._received(post, nbytes, number)

        frames = [np.empty(nbytes, "u1") for nbytes in await multi.sizes(recv)]
        await asyncio.gather(*map(recv, frames))
        self._count_received()
        return frames

    def tag_probe(self, tag: Hashable = None, force_tag: bool = False, remove: bool = False) -> TagProbeResult:
        """Look for a message.

        Parameters
        ----------
        tag, force_tag
            As in :meth:`send`.
        remove : bool
            Remove it from the queue: only :meth:`recv_with_handle` can then receive it.
        """
        worker = self.connection.worker
        worker.progress()
        return TagProbeResult(worker.native.tag_probe(self._tag(tag, force_tag, "msg_recv"), remove=remove))

    async def recv_with_handle(self, buffer: Any, probe_result: TagProbeResult) -> None:
        """Receive into `buffer`, which must have its size, the message that a probe removed from the queue."""
        data, nbytes = plain(buffer)
        post = functools.partial(self.connection.worker.native.tag_msg_recv, data, probe_result.take())
        await self._received(post, nbytes, int(probe_result.sender_tag), taken=True)
        self._count_received()
