# SPDX-License-Identifier: BSD-3-Clause
"""``Endpoint``: ucx-py's face of a connection."""

from __future__ import annotations

import array
import asyncio
import contextlib
import logging
import operator
import weakref
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import weft
from weft.compat.ucp._connection import Connection
from weft.compat.ucp._context import ApplicationContext
from weft.compat.ucp._libs.arr import Array, asarray
from weft.compat.ucp.exceptions import UCXCloseError, UCXError
from weft.compat.ucp.utils import hash64bits

log = logging.getLogger("ucx")


def plain(buffer: Any) -> tuple[Any, int]:
    """Return what weft takes, and its size in bytes."""
    if isinstance(buffer, Array) or hasattr(buffer, "__cuda_array_interface__"):
        array = asarray(buffer)
        return array.data, array.nbytes
    view = memoryview(buffer)
    return view, view.nbytes


class Transfer(NamedTuple):
    """A transfer as error messages name it."""

    op: str
    number: int
    ep: int
    nbytes: int | None = None
    tag: int | None = None

    def __str__(self) -> str:
        tag = "" if self.tag is None else f", tag: {self.tag:#x}"
        nbytes = "" if self.nbytes is None else f", nbytes: {self.nbytes}"
        return f"[{self.op} #{self.number:03}] ep: {self.ep:#x}{tag}{nbytes}"


class Endpoint:
    """A connection to a peer; made by ``create_endpoint`` and ``create_listener``.

    When it is deleted, it is aborted.
    """

    def __init__(self, endpoint: Connection, ctx: ApplicationContext, tags: dict[str, int] | None = None) -> None:
        self._ep: Connection | None = endpoint
        self._ctx: ApplicationContext | None = ctx
        self._uid = endpoint.handle
        self._tags = tags
        self._send_count = 0
        self._recv_count = 0
        self._finished_recv_count = 0
        self._close_after_n_recv: int | None = None
        self._shutting_down_peer = False
        ctx.endpoints.add(self)
        myself = weakref.ref(self)

        def on_goodbye(count: int) -> None:
            if (ep := myself()) is not None:
                ep._take_goodbye(count)

        endpoint.set_goodbye_callback(on_goodbye)

    def __del__(self) -> None:
        if getattr(self, "_ep", None) is not None:
            with contextlib.suppress(weft.Error):  # another thread, or the end of the process
                self.abort()

    @property
    def uid(self) -> int:
        """A number that no other endpoint of this process has."""
        return self._uid

    def closed(self) -> bool:
        """Tell whether either side has ended it."""
        return self._ep is None or not self._ep.initialized or not self._ep.is_alive()

    def abort(self) -> None:
        """Close at once: what is pending ends with UCXCanceled."""
        if self._ep is not None:
            self._ep.close()
        self._ep = None
        self._ctx = None

    async def close(self) -> None:
        """Close; the peer's endpoint closes when it has received what was sent before."""
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
            if not self.closed():
                await asyncio.sleep(0)  # sends that are complete return before they would be cancelled
                self.abort()

    async def _say_goodbye(self, ep: Connection) -> None:
        if ep.peer_key is None:
            return
        what = f"[Send shutdown] ep: {self.uid:#x}, close_after_n_recv: {self._send_count}"
        try:
            ep.wire.look()
            if ep.wire.lost:
                raise UCXError(f"<{what}>: Connection reset by remote peer")
            await ep.say_goodbye(self._send_count)
        except (weft.Error, UCXError) as e:
            error = e if isinstance(e, UCXError) else UCXError(f"<{what}>: {e}")
            logging.warning("closing %#x: the peer is gone already: %r", self.uid, error)

    def _take_goodbye(self, count: int) -> None:
        if self.closed():
            self.abort()
        elif self._close_after_n_recv is None and count > self._finished_recv_count:
            self._close_after_n_recv = count
        elif count <= self._finished_recv_count:
            self.abort()

    def _usable(self) -> Connection:
        """Return the connection to send on, or raise what ended it."""
        ep = self._ep
        if ep is None:
            raise UCXCloseError("Endpoint closed")
        ep.wire.look()
        ep.raise_on_error()
        if self.closed():
            raise UCXCloseError("Endpoint closed")
        return ep

    def _tag(self, tag: Hashable, force_tag: bool, mine: str) -> int:
        if force_tag and tag is not None:
            number: Any = tag
            return operator.index(number)
        if self._tags is None:
            raise ValueError("an endpoint made from a worker's address has no tags: give tag=<int> and force_tag=True")
        if tag is None:
            return self._tags[mine]
        # hash() of a string differs from process to process.
        return hash64bits(self._tags[mine], tag if isinstance(tag, str | bytes) else hash(tag))

    async def send(self, buffer: Any, tag: Hashable = None, force_tag: bool = False) -> None:
        """Send `buffer`; when this returns, it may be changed.

        Parameters
        ----------
        buffer : contiguous buffer
        tag : hashable, optional
            The receiver must give the same.
        force_tag : bool
            Use `tag`, an int, as UCX's tag: it is then the same for all endpoints, and ``ucp.recv``.
        """
        ep = self._usable()
        number = self._tag(tag, force_tag, "msg_send")
        data, nbytes = plain(buffer)
        what = Transfer("Send", self._send_count, self._uid, nbytes, number)
        self._send_count += 1
        await ep.tag_send(data, number, what)

    async def am_send(self, buffer: Any) -> None:
        """Send `buffer` as an active message, for :meth:`am_recv`."""
        ep = self._usable()
        data, nbytes = plain(buffer)
        what = Transfer("AM Send", self._send_count, self._uid, nbytes)
        self._send_count += 1
        await ep.am_send(data, what)

    async def recv(self, buffer: Any, tag: Hashable = None, force_tag: bool = False) -> None:
        """Receive the next message into `buffer`, which must have its size.

        Parameters
        ----------
        buffer : writable contiguous buffer
        tag, force_tag
            As in :meth:`send`.

        Raises
        ------
        UCXMsgTruncated
            The message has another size.
        UCXCanceled
            The connection ended before a message came.
        UCXCloseError, UCXConnectionReset
            It had ended before, and no message is left.
        """
        ep = self._ep
        if ep is None:
            raise UCXCloseError("Endpoint closed")
        number = self._tag(tag, force_tag, "msg_recv")
        data, nbytes = plain(buffer)
        what = Transfer("Recv", self._recv_count, self._uid, nbytes, number)
        self._recv_count += 1
        await ep.tag_recv(data, nbytes, number, what)
        self._count_received()

    async def am_recv(self) -> Any:
        """Receive the next active message, in memory of the registered allocator (``bytearray``)."""
        ep = self._ep
        if ep is None:
            raise UCXCloseError("Endpoint closed")
        what = Transfer("AM Recv", self._recv_count, self._uid)
        self._recv_count += 1
        message = await ep.am_recv(what)
        self._count_received()
        return message

    def _count_received(self) -> None:
        self._finished_recv_count += 1
        if self._close_after_n_recv is not None and self._finished_recv_count >= self._close_after_n_recv:
            self.abort()

    async def send_obj(self, obj: Any, tag: Hashable = None) -> None:
        """Send the size of `obj`, a buffer, and then `obj`, for :meth:`recv_obj`."""
        _, nbytes = plain(obj)
        await self.send(array.array("Q", [nbytes]), tag=tag)
        await self.send(obj, tag=tag)

    async def recv_obj(self, tag: Hashable = None, allocator: Callable[[int], Any] = bytearray) -> Any:
        """Receive from :meth:`send_obj` into ``allocator(nbytes)``, and return that."""
        size = array.array("Q", [0])
        await self.recv(size, tag=tag)
        obj = allocator(size[0])
        await self.recv(obj, tag=tag)
        return obj

    async def flush(self) -> None:
        """Wait until the peer's worker has everything that was sent before."""
        await self._usable().flush(Transfer("Flush", self._send_count, self._uid))

    def close_after_n_recv(self, n: int, count_from_ep_creation: bool = False) -> None:
        """Abort after `n` received messages, counted from now or from the beginning."""
        if not count_from_ep_creation:
            n += self._finished_recv_count
        if self._close_after_n_recv is not None:
            raise UCXError(f"close_after_n_recv has already been set to: {self._close_after_n_recv} (abs)")
        if n < self._finished_recv_count:
            raise UCXError(f"`n` cannot be less than current recv_count: {n} (abs) < {self._finished_recv_count} (abs)")
        if n == self._finished_recv_count:
            self.abort()
        else:
            self._close_after_n_recv = n

    def set_close_callback(self, callback_func: Callable[[], object]) -> None:
        """Have `callback_func` called once, when either side ends the connection."""
        if self._ep is not None:
            self._ep.set_close_callback(callback_func)

    def ucx_info(self) -> str:
        """Describe the wire that this endpoint uses."""
        return f"# endpoint {self.uid:#x}: closed\n" if self._ep is None else self._ep.info()

    def cuda_support(self) -> bool:
        """Tell whether GPU memory can be sent."""
        return self._ctx is not None and self._ctx.cuda_support

    def get_ucp_worker(self) -> int:
        """Return the address of the ``ucp_worker_h``: see :func:`ucp.get_ucp_worker`."""
        return self._usable().worker.native.handle

    def get_ucp_endpoint(self) -> int:
        """Return the address of the ``ucp_ep_h``, which all connections to the same process share."""
        return self._usable().wire.endpoint.handle
