# SPDX-License-Identifier: BSD-3-Clause
"""``Endpoint``: the base of ucx-py's and UCXX's endpoints."""

from __future__ import annotations

import array
import contextlib
import functools
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

import weft
from weft.compat._core.array import Array, asarray
from weft.compat._core.connection import Connection, Pending
from weft.compat._core.exceptions import (
    UCXCanceledError,
    UCXCloseError,
    UCXError,
    UCXMessageTruncatedError,
    translated,
)
from weft.compat._core.printing import hash64bits

ALL_BITS = (1 << 64) - 1


def plain(buffer: Any) -> tuple[Any, int]:
    """Return the buffer that weft accepts, and its size in bytes."""
    if isinstance(buffer, Array) or hasattr(buffer, "__cuda_array_interface__"):
        array = asarray(buffer)
        return array.data, array.nbytes
    view = memoryview(buffer)
    return view, view.nbytes


def tag_number(tag: Any) -> int:
    """Return a forced tag as UCX's tag; raise OverflowError if it does not fit."""
    number = operator.index(tag)
    if not 0 <= number <= ALL_BITS:
        raise OverflowError(f"tag: {number} is not an unsigned 64-bit number")
    return number


def _forced(tag: Any, force_tag: bool) -> bool:
    return bool(force_tag) and tag is not None


class Context(Protocol):
    """The part of a context that an endpoint uses."""

    open: WeakSet[Any]

    @property
    def cuda_support(self) -> bool:
        """Whether GPU memory can be sent."""
        ...


class Tags(NamedTuple):
    """The tags that two ends agreed on."""

    send: int
    recv: int


class Endpoint:
    """A connection to a peer; made by ``create_endpoint`` and ``create_listener``.

    When it is deleted, it is aborted.
    """

    def __init__(self, endpoint: Connection, ctx: Context, tags: Tags | None = None) -> None:
        self._ep: Connection | None = endpoint
        self._ctx: Context | None = ctx
        self._uid = endpoint.handle
        self._tags = None if tags is None else {"msg_send": tags.send, "msg_recv": tags.recv}
        self._sent = [0, 0]  # without and with a forced tag
        self._taken = [0, 0]  # likewise, also with an error
        self._send_count = 0
        self._recv_count = 0
        self._finished_recv_count = 0
        self._close_after_n_recv: int | None = None
        ctx.open.add(self)

    def __del__(self) -> None:
        if getattr(self, "_ep", None) is not None:
            with contextlib.suppress(weft.Error):  # another thread, or the end of the process
                self.abort()

    @property
    def released(self) -> bool:
        """Whether this side has closed it."""
        return self._ctx is None

    @property
    def uid(self) -> int:
        """A number that is unique within this process."""
        return self._uid

    @property
    def connection(self) -> Connection:
        """The connection; raises UCXCloseError after this side has closed it."""
        if self._ep is None:
            raise UCXCloseError("Endpoint closed")
        return self._ep

    def is_closed(self) -> bool:
        """Return whether either side has ended the connection."""
        return self._ep is None or not self._ep.initialized or not self._ep.alive

    def abort(self) -> None:
        """Close at once; pending operations end with UCXCanceled."""
        if self._ep is not None:
            self._ep.close()
        self._ep = None
        self._ctx = None

    def _finish(self, most: Pending) -> None:
        """End after the peer's goodbye; messages that have arrived can still be received."""
        if self._ep is not None:
            self._ep.finish(most)
        self._ctx = None

    def _usable(self) -> Connection:
        """Return the connection to send on, or raise the error that ended it."""
        ep = self.connection
        ep.wire.look()
        if not ep.open:
            ep.raise_on_error()
            if self.is_closed():
                raise UCXCloseError("Endpoint closed")
        return ep

    def _tag(self, tag: Any, force_tag: bool, mine: str) -> int:
        if tag is None:
            if self._tags is None:
                raise ValueError("an endpoint made from a worker's address has no tags: give tag=<int>, force_tag=True")
            return self._tags[mine]
        if force_tag:
            return tag_number(tag)
        # hash() of a string differs between processes
        return hash64bits(self._tag(None, False, mine), tag if isinstance(tag, str | bytes) else hash(tag))

    async def send(self, buffer: Any, tag: Hashable = None, force_tag: bool = False) -> None:
        """Send `buffer`; you may change it once this returns.

        Parameters
        ----------
        buffer : contiguous buffer
        tag : hashable, optional
            The receiver must pass the same.
        force_tag : bool
            Use `tag`, an int, as UCX's tag: it is then not specific to this endpoint, and matches a worker's ``recv``.
        """
        ep = self._usable()
        number = self._tag(tag, force_tag, "msg_send")
        data, nbytes = plain(buffer)
        count = self._send_count
        self._send_count += 1
        try:
            request = ep.wire.endpoint.tag_send(data, number)
            self._sent[_forced(tag, force_tag)] += 1
            await ep.ended(request, Pending.SEND)
        except (weft.Error, UCXCanceledError) as e:
            raise self._why(ep, e, f"[Send #{count:03}]", number, nbytes) from None

    async def am_send(self, buffer: Any) -> None:
        """Send `buffer` as an active message, for :meth:`am_recv`."""
        ep = self._usable()
        data, nbytes = plain(buffer)
        count = self._send_count
        self._send_count += 1
        try:
            request = ep.am_send(data)
            self._sent[False] += 1
            await ep.ended(request, Pending.SEND)
        except (weft.Error, UCXCanceledError) as e:
            raise self._why(ep, e, f"[AM Send #{count:03}]", None, nbytes) from None

    def _why(self, ep: Connection, error: Exception, op: str, tag: int | None, nbytes: int) -> Exception:
        """Return the reason of a failed send: the peer's, if it ended the connection, else `error`."""
        if ep.initialized:
            try:
                ep.raise_on_error()
            except UCXError as peers:
                return peers
        what = f"{op} ep: {self._uid:#x}" + ("" if tag is None else f", tag: {tag:#x}") + f", nbytes: {nbytes}"
        return type(error)(f"<{what}>: {error}") if isinstance(error, UCXError) else translated(error, what)

    async def recv(self, buffer: Any, tag: Hashable = None, force_tag: bool = False, *, mask: int = ALL_BITS) -> None:
        """Receive the next message into `buffer`, which must have the same size.

        Parameters
        ----------
        buffer : writable contiguous buffer
        tag, force_tag
            As in :meth:`send`.
        mask : int
            The bits of the tag that must match.

        Raises
        ------
        UCXMsgTruncated
            The message has another size.
        UCXCanceled
            The connection ended before a message arrived.
        UCXCloseError, UCXConnectionReset
            The connection had already ended, and no message is left.
        """
        number = self._tag(tag, force_tag, "msg_recv")
        data, nbytes = plain(buffer)
        post = functools.partial(self.connection.worker.native.tag_recv, data, number, mask)
        forced = _forced(tag, force_tag)
        try:
            await self._received(post, nbytes, number, mask, forced=forced)
        except UCXMessageTruncatedError:
            self._took(forced)
            raise
        self._took(forced)
        self._count_received()

    async def _received(
        self,
        post: Callable[[], weft.Request[tuple[int, int]]],
        nbytes: int,
        tag: int,
        mask: int = ALL_BITS,
        *,
        forced: bool = False,
        taken: bool = False,
    ) -> None:
        """Receive a message of `nbytes`, posted by `post`; if the connection is closed, it must be there or `taken`."""
        ep = self.connection
        count = self._recv_count
        self._recv_count += 1
        try:
            if not taken and (not ep.open or ep.goodbye is not None):
                ep.worker.progress()  # messages that have arrived can still be received
                if ep.worker.native.tag_probe(tag, mask) is None:
                    ep.raise_unless_open()
                    self._finish(Pending.SEND)
                    raise UCXCanceledError("the peer closed the endpoint, and no such message is left")
            received, _ = await ep.ended(post(), Pending.FORCED_RECV if forced else Pending.RECV)
        except (weft.Error, UCXCanceledError, UCXCloseError) as e:
            what = f"[Recv #{count:03}] ep: {self._uid:#x}, tag: {tag:#x}, nbytes: {nbytes}"
            raise type(e)(f"<{what}>: {e}") if isinstance(e, UCXError) else translated(e, what) from None
        if received != nbytes:
            what = f"[Recv #{count:03}] ep: {self._uid:#x}, tag: {tag:#x}"
            raise UCXMessageTruncatedError(f"<{what}>: length mismatch: {received} (got) != {nbytes} (expected)")

    async def am_recv(self) -> Any:
        """Receive the next active message, into memory of the host allocator."""
        ep = self.connection
        count = self._recv_count
        self._recv_count += 1
        try:
            message = await ep.am_recv()
        except (UCXCanceledError, UCXCloseError) as e:
            if ep.goodbye is not None:
                self._finish(Pending.SEND)
            raise type(e)(f"<[AM Recv #{count:03}] ep: {self._uid:#x}>: {e}") from None
        except weft.Error as e:
            raise translated(e, f"[AM Recv #{count:03}] ep: {self._uid:#x}") from None
        except Exception:  # the allocator's
            self._took(forced=False)
            raise
        self._took(forced=False)
        self._count_received()
        return message

    def _took(self, forced: bool) -> None:
        """Count a message of the peer, also one that did not fit."""
        self._taken[forced] += 1

    def _count_received(self) -> None:
        self._finished_recv_count += 1
        if self._close_after_n_recv is not None and self._finished_recv_count >= self._close_after_n_recv:
            self.abort()

    async def send_obj(self, obj: Any, tag: Hashable = None) -> None:
        """Send the size of a buffer, and then the buffer `obj`, for :meth:`recv_obj`."""
        _, nbytes = plain(obj)
        await self.send(array.array("Q", [nbytes]), tag=tag)
        await self.send(obj, tag=tag)

    async def recv_obj(self, tag: Hashable = None, allocator: Callable[[int], Any] = bytearray) -> Any:
        """Receive from :meth:`send_obj` into ``allocator(nbytes)``, and return that memory."""
        size = array.array("Q", [0])
        await self.recv(size, tag=tag)
        obj = allocator(size[0])
        await self.recv(obj, tag=tag)
        return obj

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

    def set_close_callback(
        self,
        callback_func: Callable[..., object],
        cb_args: Sequence[Any] | None = None,
        cb_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Set a function to call once, with these arguments, when either side ends the connection."""
        if self._ep is not None:
            self._ep.set_close_callback(functools.partial(callback_func, *(cb_args or ()), **(cb_kwargs or {})))

    def ucx_info(self) -> str:
        """Describe the wire that this endpoint uses."""
        return f"# endpoint {self.uid:#x}: closed\n" if self._ep is None else self._ep.info()

    def cuda_support(self) -> bool:
        """Return whether GPU memory can be sent."""
        return self._ctx is not None and self._ctx.cuda_support
