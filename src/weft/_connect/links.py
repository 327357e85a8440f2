# SPDX-License-Identifier: BSD-3-Clause
"""The workers of a thread or event loop, and their links to other workers.

Each loop (or thread, for blocking calls) has one worker for each route: one for peers on this host, without any network
transport, and one for each network device, and each flow over it, that a connection needed. A link lasts until one of
its two workers is closed; connections on it come and go.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import threading
import weakref
from collections.abc import AsyncGenerator, Generator
from typing import Any, Protocol, cast

from weft import _native
from weft._connect.address import infiniband_ports
from weft._connect.channel_protocol import Channel
from weft._connect.route import Route
from weft.config import LINK_FREE_NBYTES, LINK_SHM_NBYTES, LinkContext, ucx_library
from weft.errors import Error, HandshakeError, PeerLostError, ThreadError, UnreachableError

_contexts: dict[tuple[tuple[str, str], ...], LinkContext] = {}
_contexts_lock = threading.Lock()
_loops: list[tuple[object, Workers]] = []  # (event loop, its workers); few, and swept at each lookup
_loops_lock = threading.Lock()
_thread = threading.local()


class OtherHandshake:
    """A step of a handshake: wait until another handshake with the same worker has ended.

    `sock` is that handshake's socket, which is closed after it in any case.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = weakref.ref(sock)
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def over(self) -> bool:
        """Whether the handshake runs no more. A signal handler's exception may have ended it before it said so."""
        sock = self._sock()
        return sock is None or sock.fileno() < 0

    def ended(self) -> asyncio.Future[None]:
        """Return a future that is done when the other handshake has ended."""
        future = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        return future

    def end(self) -> None:
        """Wake all waiting handshakes."""
        for future in self._waiters:
            if not future.done() and not future.get_loop().is_closed():
                future.set_result(None)


class Call(OtherHandshake):
    """A local handshake that offers a link, and the connection that it makes: its two channels' ids, and its name.

    `listens` are the listeners of this side that the other side is told of.
    """

    def __init__(
        self,
        prepared: _native.Link,
        sock: socket.socket,
        name: str,
        mine: int,
        theirs: int,
        listens: frozenset[str],
    ) -> None:
        super().__init__(sock)
        self.prepared: _native.Link | None = prepared  #: what it has offered, until a link is made of it
        self.name, self.mine, self.theirs, self.listens = name, mine, theirs, listens
        self.link: Link | None = None
        self.channel: Channel | None = None  #: on `link`, which the other side's own call has led to

    def take(self) -> _native.Link:
        """Return what it has offered, which is the caller's from then on."""
        prepared, self.prepared = self.prepared, None
        assert prepared is not None, "its owner looked"
        return prepared

    def cross(self, link: Link) -> None:
        """Use `link`, which the other side's call has led to: from now on the other side may send over it."""
        self.link, self.channel = link, link.native.open(self.mine, self.theirs, self.name)

    def drop(self) -> None:
        """Close what this handshake has made and nobody uses."""
        if self.channel is not None:
            self.channel.abort()
        if self.prepared is not None:
            self.prepared.close()
        self.channel = self.prepared = None


class Link:
    """The only endpoint pair between two workers, made by the first handshake between them, over `sock`."""

    def __init__(
        self,
        worker: ConnectionWorker,
        remote_id: str,
        link_id: str,
        sock: socket.socket,
        native: _native.Link | None = None,
    ) -> None:
        self.worker = worker
        self.remote_id = remote_id
        self.id = link_id
        self.settled = False
        self.crossed = ""  #: id of the other side's channel that is already open there, for a call that has yet to end
        self._joined = False
        self._native = native
        self._making = OtherHandshake(sock)

    @property
    def native(self) -> _native.Link:
        if self._native is None:
            raise PeerLostError("the link was abandoned before it was established")
        return self._native

    @property
    def lost(self) -> bool:
        return self._native is not None and self._native.lost

    @property
    def half_made(self) -> bool:
        """Whether its handshake ended without making it."""
        return not self.settled and self._making.over

    def is_made_of(self, native: _native.Link) -> bool:
        return self._native is native

    def prepare(self, sock: socket.socket, name: str) -> str | None:
        """Make this side of a new link; return its address for the other side, or None if the link exists already.

        The memory that belongs to the address is sent over `sock`.
        """
        if self._native is None:
            self._native = _native.prepare_link(self.worker.native, self.worker.same_host, name)
            if self.remote_id != self.worker.id:
                self._native.offer(sock.fileno())
        return None if self._joined else self.native.address.hex()

    def join(self, address: bytes | None, sock: socket.socket, name: str, memory: int = -1) -> str | None:
        """Connect a new link to the other side; `sock` becomes its liveness socket. Return what :meth:`prepare` does.

        `memory` is the other side's, and stays the caller's; -1 if it arrives over `sock`.
        """
        mine = self.prepare(sock, name)
        if self._joined:
            return mine
        if self.remote_id == self.worker.id:  # a link to itself: neither end can be lost
            self._connect(self.native.address, _to_itself() if self.worker.same_host else -1, name)
        else:
            if address is None:
                raise PeerLostError(f"connect to {name}: the other side uses a link that is gone; connect again")
            try:
                self._connect(address, os.dup(sock.fileno()), name, memory)
            except Error:
                raise
            except BaseException:  # a signal handler's, perhaps before the copy had an owner: the other side must know
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
                raise
        self._joined = True
        return mine

    def _connect(self, address: bytes, fd: int, name: str, memory: int = -1) -> None:
        try:
            self.native.join(address, fd, memory)
        except UnreachableError as e:
            _close(fd)
            raise UnreachableError(f"connect to {name}: {e}{_hint(same_host=self.worker.same_host)}") from None
        except BaseException:
            _close(fd)
            raise

    def check(self, name: str) -> None:
        """Raise if the new link was lost before it was of use."""
        if self.lost:
            why = f"no usable transport to the worker's address: UCX's connection was refused{_hint(same_host=False)}"
            raise UnreachableError(f"connect to {name}: {why}")

    def settle(self) -> bool:
        """Let other handshakes use the link, now that both sides have it. Return whether this handshake made it."""
        new, self.settled = not self.settled, True
        self._making.end()
        return new

    def abandon(self) -> None:
        """Drop the link that a failed handshake was making: neither side can use it."""
        if not self.settled:
            if self._native is not None:  # first: a link that is lost is in nobody's way
                self._native.close()
            if self.worker.links.get(self.remote_id) is self:
                del self.worker.links[self.remote_id]
        self._making.end()

    def drop(self) -> None:
        """Drop a link that the other side does not have."""
        self.native.close()

    def making(self) -> OtherHandshake:
        """Return the step that waits until this link is made or dropped."""
        return self._making


def _to_itself() -> int:
    """Make the socket over which a worker lends to itself: it receives its own datagrams, and no others."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        # once it is connected, the kernel rejects other senders; before that, the random name keeps them out
        sock.bind(b"\0weft-" + os.urandom(16))
        sock.connect(sock.getsockname())
        return sock.detach()


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)


class ConnectionWorker:
    """A worker of this loop or thread, and its links by the other worker's id."""

    def __init__(self, context: LinkContext | None, *, same_host: bool) -> None:
        # without a context, which is not public, it has rings only
        self.native = _native.Worker(cast("LinkContext", context), links_only=same_host)
        self.context = context
        self.same_host = same_host
        self.id = os.urandom(16).hex()
        self.links: dict[str, Link] = {}
        self._probe: _native.Worker | None = None
        self.outdated = False  #: its UCX may have started while the network was not there
        self.handshakes = 0  #: under way with it
        self._sweep_at = 8
        self._listeners: dict[str, str] = {}  # by a listener's Unix socket name: the id of its worker

    @property
    def usable(self) -> bool:
        """Whether new links may be made with it: it is up to date, or others use it."""
        in_use = not self.outdated or self.handshakes > 0 or not all(link.lost for link in self.links.values())
        return in_use and not self.native.closed

    def close(self) -> None:
        """Close the worker, which aborts its connections."""
        if self._probe is not None:
            self._probe.close()
        self.native.close()

    def check_way_back(self, address: bytes | None, what: str) -> None:
        """Refuse a caller to whose `address` UCX has no way.

        UCX opens a TCP connection there and sends a connection request, at most 42 B; then this closes it.

        A caller that UCX cannot answer would end this process: with its first message, UCX 1.22 makes an endpoint that
        has no transport, and crashes as it reports that (``ucp_ep_set_lanes_failed``).
        """
        if address is None or infiniband_ports():  # they reach whom tcp does not, and answer at once
            return
        if ucx_library().version < (1, 17):  # its connect waits, for minutes behind a firewall; it reads routes anew
            return
        if self._probe is None:
            assert self.context is not None, "across the network"
            self._probe = _native.Worker(self.context.bare())
        try:
            endpoint = self._probe.connect(address)
        except UnreachableError as e:
            raise UnreachableError(
                f"{what}: UCX has no route back to it over the device that it came by ({e}). UCX reads routes once: if"
                " they have changed since the listener started, restart it; if another device is on the way, set"
                " UCX_NET_DEVICES to that one"
            ) from None
        endpoint.close(force=True)
        self._probe.progress()

    def link_to(self, listener: str) -> Link | None:
        """Return the link to the worker behind this Unix socket name, or None."""
        link = self.links.get(self._listeners.get(listener, ""))
        return link if link is not None and link.settled and not link.lost else None

    def link_with(self, remote_id: str) -> Link | None:
        """Return the link to that worker, which another handshake may still be making; None if there is none."""
        link = self.links.get(remote_id)
        if link is not None and link.half_made:
            link.abandon()
            return None
        return link if link is not None and not link.lost else None

    def link_to_itself(self, sock: socket.socket, name: str) -> Link:
        """Return the link from this worker to itself; a handshake may be making it."""
        link = self.link_with(self.id)
        if link is None:
            link = self.add(self.id, os.urandom(8).hex(), sock)
            link.join(None, sock, name)
        return link

    def remember(self, listener: str, remote_id: str) -> None:
        """Record which worker accepts at this Unix socket name."""
        self._listeners[listener] = remote_id

    def forget(self, listener: str) -> None:
        """Drop that record: another worker may accept there by now."""
        self._listeners.pop(listener, None)

    def decide(
        self, remote_id: str, sock: socket.socket
    ) -> Generator[OtherHandshake, None, tuple[Link, dict[str, Any]]]:
        """Use the existing link to that worker, or make one; called by the worker with the lower id."""
        while True:
            link = self.link_with(remote_id)
            if link is None:
                link = self.add(remote_id, os.urandom(8).hex(), sock)
                return link, {"id": link.id, "new": True}
            if link.settled:
                return link, {"id": link.id, "new": False}
            if remote_id == self.id:  # a link to itself: this handshake's other half is making it
                return link, {"id": link.id, "new": False}
            yield link.making()

    def follow(
        self,
        remote_id: str,
        decision: dict[str, Any],
        sock: socket.socket,
        what: str,
        native: _native.Link | None = None,
    ) -> Link:
        """Use or make the link that the other side chose; a new one is made from `native`, if that was prepared."""
        link_id, new = decision.get("id"), decision.get("new")
        if not isinstance(link_id, str) or not isinstance(new, bool):
            raise HandshakeError(f"{what}: the other side's message has no valid 'link'")
        link = self.links.get(remote_id)
        if link is not None and link.id == link_id:
            if link.lost:
                raise PeerLostError(f"{what}: the link between the two processes was lost; connect again")
            return link
        if not new:
            raise PeerLostError(f"{what}: the other side named a link that this thread does not have; connect again")
        return self.add(remote_id, link_id, sock, native)

    def add(self, remote_id: str, link_id: str, sock: socket.socket, native: _native.Link | None = None) -> Link:
        """Register a link that the handshake over `sock` makes."""
        self.link_with(remote_id)  # drops one that is half made
        # A restarted worker has a new id: without the sweep, each worker that ever connected would stay.
        if len(self.links) >= self._sweep_at:
            self.links = {known: link for known, link in self.links.items() if not link.lost}
            self._listeners = {name: known for name, known in self._listeners.items() if known in self.links}
            self._sweep_at = 2 * len(self.links) + 8
        link = self.links[remote_id] = Link(self, remote_id, link_id, sock, native)
        return link


class Abortable(Protocol):
    """A connection without a worker."""

    def abort(self) -> None: ...


class Workers:
    """The workers of one event loop or one thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self.loop = loop
        self._workers: dict[tuple[str, tuple[tuple[str, str], ...] | None, int], ConnectionWorker] = {}
        self.listens: set[str] = set()  #: Unix socket names of its listeners
        self.calls: dict[str, Call] = {}  #: by such a name, the handshake that may make a link to it
        self._shutdown: AsyncGenerator[None] | None = None
        self._connections: weakref.WeakSet[Abortable] = weakref.WeakSet()
        self.pid = os.getpid()

    def worker(self, route: Route, *, same_host: bool) -> ConnectionWorker:
        """Return the worker for peers on this host reached by UCX, or for peers reached by `route`."""
        settings = tuple(sorted(route.settings(same_host=same_host).items()))
        # A device that gets another address needs a new worker: UCX tells peers the address that it began with.
        return self._worker("", settings) if same_host else self._worker(route.host, settings, route.flow)

    def known_worker(self, route: Route) -> ConnectionWorker | None:
        """Return the worker for peers reached by `route` over the network, if there is one already."""
        try:
            settings = tuple(sorted(route.settings(same_host=False).items()))
        except UnreachableError:
            return None
        worker = self._workers.get((route.host, settings, route.flow))
        return worker if worker is not None and worker.usable and not worker.outdated else None

    def ring_worker(self) -> ConnectionWorker:
        """Return the worker for peers on this host, without UCX."""
        return self._worker("", None)

    def _worker(self, host: str, settled: tuple[tuple[str, str], ...] | None, flow: int = 0) -> ConnectionWorker:
        """Return the worker for peers that the address `host` reaches; "" for those on this host."""
        key = (host, settled, flow)
        worker = self._workers.get(key)
        if worker is None or not worker.usable:
            if worker is not None and not worker.native.closed:
                worker.close()
                _forget(worker.context)
            context = None if settled is None else _context(settled)
            try:
                worker = self._workers[key] = ConnectionWorker(context, same_host=not host)
            except UnreachableError:
                _forget(context)
                raise
            if self.loop is not None:
                worker.native.attach(self.loop)
        return worker

    def progress(self) -> None:
        """Notice peers that are gone. In a loop its turns do that; a thread may only accept, or connect."""
        for worker in list(self._workers.values()):
            if not worker.native.closed:
                worker.native.progress()

    async def close_with_loop(self) -> None:
        """Close these workers when the loop shuts down in order (``asyncio.run``)."""
        if self._shutdown is None:
            self._shutdown = _until_shutdown(self)
            await anext(self._shutdown)

    def close(self) -> None:
        """Close every worker, which aborts connections that are still open."""
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()
        for connection in list(self._connections):
            connection.abort()

    def abort_with(self, connection: Abortable) -> None:
        """Abort a connection without a worker when the workers are closed."""
        self._connections.add(connection)

    def drop(self) -> None:
        """Drop every worker without closing it."""
        for worker in self._workers.values():
            worker.links.clear()  # break the reference cycle
        self._workers.clear()

    def __del__(self) -> None:
        # A thread that ends drops its workers: in that thread, so it may close them, and without the garbage collector.
        if self.loop is None and self._workers and self.pid == os.getpid() and not sys.is_finalizing():
            with contextlib.suppress(ThreadError):
                self.close()


async def _until_shutdown(workers: Workers) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        with _loops_lock:
            _loops[:] = [entry for entry in _loops if entry[1] is not workers]
        workers.close()


def _hint(*, same_host: bool) -> str:
    """Return a known reason why UCX may have no way to the peer."""
    if not same_host:
        return (
            " (are UCX's own ports filtered, do UCX_TLS or UCX_NET_DEVICES exclude the network, or has the device"
            " several addresses? `weft doctor --pair` tells. UCX reads routes once: if they have changed since one side"
            " started, restart it)"
        )
    shm = os.statvfs("/dev/shm")  # noqa: S108
    free, takes, wants = (nbytes >> 10 for nbytes in (shm.f_bavail * shm.f_frsize, LINK_SHM_NBYTES, LINK_FREE_NBYTES))
    if free >= wants:
        return " (do UCX_TLS or `settings` differ between the two sides?)"
    return f" (shared memory: /dev/shm has {free} KiB free; each side of a link takes {takes} where {wants} are free)"


def _context(key: tuple[tuple[str, str], ...]) -> LinkContext:
    with _contexts_lock:
        context = _contexts.get(key)
        if context is None:
            context = _contexts[key] = LinkContext(dict(key))
        return context


def _forget(outdated: LinkContext | None) -> None:
    """Let the next worker have a new context: UCX looks for network devices only when it makes one."""
    with _contexts_lock:
        for key in [key for key, context in _contexts.items() if context is outdated]:
            del _contexts[key]


def workers_of_thread() -> Workers:
    """Return the workers of this thread, for blocking calls."""
    workers = getattr(_thread, "workers", None)
    if workers is None or workers.pid != os.getpid():
        _refuse_fork()
        workers = _thread.workers = Workers(None)
    return workers


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, if any."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def workers_of_loop() -> Workers:
    """Return the workers of the running loop; close those of closed loops."""
    _refuse_fork()
    loop = running_loop()
    if loop is None:
        raise RuntimeError(
            "no asyncio event loop runs in this thread, and weft awaits in asyncio only; "
            "elsewhere, as under trio, use `with` and .wait() in a thread"
        )
    found = None
    orphans: list[Workers] = []
    with _loops_lock:
        for entry in list(_loops):
            owner, workers = entry
            if owner is loop:
                found = workers
            elif isinstance(owner, asyncio.AbstractEventLoop) and owner.is_closed():
                _loops.remove(entry)
                orphans.append(workers)
        if found is None:
            found = Workers(loop)
            _loops.append((loop, found))
    for orphan in orphans:
        _close_orphan(orphan)
    await found.close_with_loop()
    return found


def _close_orphan(workers: Workers) -> None:
    try:
        workers.close()
    except ThreadError:
        # Its thread has ended, so nothing can use it any more: dropping the workers destroys them.
        workers.drop()


def _refuse_fork() -> None:
    if _native.forked():
        raise forked()


def forked() -> ThreadError:
    """Return the error for the use of weft in a child that was forked from its user."""
    return ThreadError(
        "this process was forked from one that uses weft and cannot use weft itself;"
        " start processes with spawn or forkserver"
    )
