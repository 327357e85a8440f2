# SPDX-License-Identifier: BSD-3-Clause
"""``ApplicationContext``: the UCP context, its worker, and its open objects. ``process`` holds the only one."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, TypeVar, cast
from weakref import WeakSet

import weft
from weft.compat._core import describe, handshake
from weft.compat._core.address import UCXAddress
from weft.compat._core.connection import Connection
from weft.compat._core.endpoint import ALL_BITS, Endpoint, Tags, plain, tag_number
from weft.compat._core.exceptions import UCXBusyError, UCXConfigError, UCXError, UCXMessageTruncatedError, translated
from weft.compat._core.listener import Listener
from weft.compat._core.worker import Worker

log = logging.getLogger("ucx")

E = TypeVar("E", bound=Endpoint)
L = TypeVar("L", bound=Listener)


class ApplicationContext(Generic[E, L]):
    """A UCP context with one worker, which belongs to the thread that first uses it.

    Parameters
    ----------
    config_dict : mapping of str to str
        UCX settings without ``UCX_``.
    connect_timeout : float, optional
        Seconds for a handshake; by default ``UCXPY_CONNECT_TIMEOUT``, else 5.
    """

    #: The classes of this library.
    endpoint_type: ClassVar[type[Endpoint]]
    listener_type: ClassVar[type[Listener]]

    def __init__(self, config_dict: Mapping[str, str] | None = None, connect_timeout: float | None = None) -> None:
        try:
            self.native = weft.Context(dict(config_dict or {}))
        except weft.InvalidParamError as e:
            raise UCXConfigError(str(e)) from None
        self.connect_timeout = (
            float(os.environ.get("UCXPY_CONNECT_TIMEOUT", 5)) if connect_timeout is None else connect_timeout
        )
        self.open: WeakSet[Endpoint | Listener] = WeakSet()
        self._worker: Worker | None = None
        for name, (value, origin) in self.native.config.items():
            log.info("UCX_%s: %s (%s)", name, value, origin)

    def allocator(self) -> Callable[[int], Any]:
        """Return the function that allocates memory for active messages."""
        return bytearray

    @property
    def core(self) -> Worker:
        """The worker, attached to the running loop if there is one."""
        worker = self._made()
        self.continuous_ucx_progress()
        return worker

    def _made(self) -> Worker:
        if self._worker is None:
            try:
                self._worker = Worker(self.native, self.allocator())
            except weft.Error as e:
                raise translated(e, "init") from None
        return self._worker

    @property
    def settings(self) -> dict[str, str]:
        """The settings that differ from UCX's defaults and the environment."""
        return {name: value for name, (value, _) in self.native.config.items()}

    @property
    def cuda_support(self) -> bool:
        """Whether UCX may use its GPU transports."""
        tls = describe.config(self.settings)["TLS"]
        named = set(tls.removeprefix("^").split(",")) & {"all", "cuda", "cuda_copy", "cuda_ipc"}
        return bool(named) != tls.startswith("^")

    def continuous_ucx_progress(self, event_loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Progress in this loop; functions that make endpoints already do so."""
        if event_loop is None:
            try:
                event_loop = asyncio.get_running_loop()
            except RuntimeError:
                return
        try:
            self._made().attach(event_loop)
        except weft.ThreadError as e:
            raise translated(e, "continuous_ucx_progress") from None

    def endpoint(self, joined: handshake.Joined) -> E:
        """Return the endpoint of a new connection."""
        made = self.endpoint_type(joined.connection, self, Tags(joined.tag_send, joined.tag_recv))
        return cast("E", made)

    def create_listener(
        self,
        callback_func: Callable[[E], Any],
        port: int | None = None,
        endpoint_error_handling: bool = True,
        connect_timeout: float | None = None,
    ) -> L:
        """Listen; see :meth:`weft.compat._core.process.Process.create_listener`."""
        timeout = self.connect_timeout if connect_timeout is None else connect_timeout
        try:
            listener = self.listener_type(self, port or 0, callback_func, endpoint_error_handling, timeout)
        except OSError as e:
            failed = UCXBusyError if e.errno == errno.EADDRINUSE else UCXError
            raise failed(f"create_listener on port {port or 'any'}: {e.strerror}") from None
        self.open.add(listener)
        return cast("L", listener)

    async def create_endpoint(
        self,
        ip_address: str,
        port: int,
        endpoint_error_handling: bool = True,
        connect_timeout: float | None = None,
    ) -> E:
        """Connect; see :meth:`weft.compat._core.process.Process.create_endpoint`."""
        worker = self.core
        timeout = self.connect_timeout if connect_timeout is None else connect_timeout
        what = f"create_endpoint to {ip_address}:{port}"
        sock = socket.socket()
        sock.setblocking(False)
        try:
            async with asyncio.timeout(timeout):
                try:
                    await asyncio.get_running_loop().sock_connect(sock, (ip_address, port))
                except BaseException:
                    sock.close()
                    raise
                joined = await handshake.client(worker, sock, error_handling=endpoint_error_handling)
        except weft.Error as e:
            raise translated(e, what) from None
        except TimeoutError:
            raise TimeoutError(f"{what}: no answer within {timeout} s") from None
        except OSError as e:
            raise translated(weft.UnreachableError(str(e)), what) from None
        return self.endpoint(joined)

    async def create_endpoint_from_worker_address(self, address: UCXAddress, endpoint_error_handling: bool = True) -> E:
        """Connect; see :meth:`weft.compat._core.process.Process.create_endpoint_from_worker_address`."""
        worker = self.core
        native, worker_id, near = UCXAddress(address).parts()
        if worker_id is None:
            worker_id = hash(native) & 0xFFFF_FFFF_FFFF_FFFF
        try:
            wire = worker.wire_to(worker_id, native)
            if near and not wire.watched:
                wire.reach_door()
        except weft.Error as e:
            raise translated(e, "create_endpoint_from_worker_address") from None
        connection = Connection(wire, worker_id, error_handling=endpoint_error_handling)
        return cast("E", self.endpoint_type(connection, self))

    async def recv(self, buffer: Any, tag: Any, mask: int = ALL_BITS) -> None:
        """Receive into `buffer` a message that any endpoint sent with this forced tag."""
        worker = self.core
        data, nbytes = plain(buffer)
        tag = tag_number(tag)
        what = f"[Worker Recv] tag: {tag:#x}, nbytes: {nbytes}"
        try:
            received, _ = await worker.native.tag_recv(data, tag, mask)
        except weft.Error as e:
            raise translated(e, what) from None
        if received != nbytes:
            raise UCXMessageTruncatedError(f"<{what}>: length mismatch: {received} (got) != {nbytes} (expected)")

    def open_objects(self) -> list[Endpoint | Listener]:
        """List the endpoints and listeners that this side has not closed."""
        return [each for each in self.open if not each.released]

    def check_thread(self) -> None:
        """Raise weft's ThreadError if the worker belongs to another thread."""
        if self._worker is not None:
            self._worker.native.progress()

    def end(self) -> bool:
        """Destroy the worker, unless something is open or the worker belongs to another thread. True: it is gone."""
        if self.open_objects():
            return False
        try:
            self.close()
        except weft.ThreadError:
            return False
        return True

    def close(self) -> None:
        """Destroy the worker."""
        if self._worker is not None:
            self._worker.close()
