# SPDX-License-Identifier: BSD-3-Clause
"""The ``ucx://`` comm: one Dask message is one weft message.

The requirements beyond the abstract base class are collected from distributed's callers: ``_peer_addr`` and
``_local_addr``, a coroutine ``write`` that returns a size, ``closed`` that turns true when the peer goes, and an abort
plus the original exception when a read or write is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.util
import logging
import time
import weakref
from collections.abc import Awaitable, Callable, Generator
from ssl import SSLContext
from typing import Any

from distributed.comm.addressing import get_address_host, parse_host_port, unparse_host_port
from distributed.comm.core import BaseListener, Comm, CommClosedError, Connector, FatalCommClosedError
from distributed.comm.registry import Backend
from distributed.comm.utils import ensure_concrete_host, from_frames, to_frames
from distributed.utils import ensure_ip, get_ip, nbytes
from distributed.worker import Worker

from weft import _native
from weft._connect.address import source_towards
from weft._connect.encryption import EncryptionPolicy
from weft._connect.route import NoRouteError
from weft.connect import connect
from weft.dask import acknowledge, config, handshake, patches
from weft.dask.learn import measured
from weft.dask.memory.arrow import arrow_in_pool
from weft.dask.memory.limits import count_in_nanny, count_worker
from weft.dask.observe import traffic
from weft.dask.offload import read_offloads, write_offloads
from weft.dask.patches_batched import send_at_once
from weft.dask.patches_host import serve_host_freely
from weft.dask.tensors import device
from weft.errors import (
    ClosedError,
    EncryptionError,
    Error,
    InvalidParamError,
    NotContiguousError,
    PeerLostError,
    ProtocolError,
    ThreadError,
    TlsError,
)
from weft.listen import Listener
from weft.peer import Peer
from weft.typing import Request

logger = logging.getLogger("distributed.comm.ucx")

PREFIX = "ucx://"

#: A Dask connection argument: which flow this comm is (`learn.fanout` asks for more than one).
FLOW = "weft_flow"
#: Frames are never split: each is received into one block, so nothing has to be joined.
_WHOLE = 2**62
#: Seconds that a graceful close waits for a peer that does not receive the sent data.
_CLOSE_TIMEOUT_S = 10.0

_comms: weakref.WeakSet[UCX] = weakref.WeakSet()


class UCX(Comm):  # type: ignore[misc]
    """A comm between two Dask processes: each Dask message is one weft message."""

    def __init__(
        self,
        peer: Peer,
        *,
        local_addr: str,
        peer_addr: str,
        deserialize: bool,
        worker: str = "",
        report: measured.Report | None = None,
        tells: bool = True,
        gives: bool = True,
    ) -> None:
        super().__init__(deserialize=deserialize)
        self._peer = peer
        self._to_cuda = "cuda" in peer.memory_types
        self._lend = config.lend()
        self._local_addr = local_addr
        self._peer_addr = peer_addr
        self._traffic = traffic.CommTraffic(peer, peer_addr)
        mode = config.links()
        process, report = self._traffic.with_process.process, report or measured.nobodys
        self._links = measured.CommLinks(peer, process, worker, report) if mode != "off" else None
        self._compresses = mode == "learn" and not peer.same_host
        self._told, self._heard = handshake.exchanged(peer, known=tells)
        self._gives, self._given = gives, acknowledge.Given()
        _comms.add(self)

    @property
    def local_address(self) -> str:
        return self._local_addr

    @property
    def peer_address(self) -> str:
        return self._peer_addr

    @property
    def transports(self) -> list[str]:
        """The lanes that carry this comm's messages, as ``transport/device``."""
        return self._peer.transports

    @property
    def lent(self) -> bool:
        """Whether memory was lent, in either direction."""
        return any(self._peer.lent_nbytes)

    def handshake_info(self) -> dict[str, Any]:
        holds = device.can_hold(self._peer.memory_types, deserialize=self.deserialize)
        told = handshake.of_process(holds_device=holds, gives=self._gives)
        if not self._peer.same_host:
            from weft.dask.learn import compress  # loaded lazily: not needed if all peers are on this host

            told[compress.READS] = compress.readable()
        return {**super().handshake_info(), **told}

    async def read(self, deserializers: Any = None) -> Any:
        if self._heard is not None:  # Dask's handshake, which came with weft's
            heard, self._heard = self._heard, None
            return heard
        if self._given.heard:
            return self._given.hear()
        try:
            frames = await self._peer.recv_frames(device.allocate)
        except ClosedError as e:  # closed by this side; close may still be sending, and an abort would cut it short
            raise CommClosedError(f"{self!r}: {e}") from e
        except PeerLostError as e:
            self._traffic.failed(e)
            self.abort()
            raise CommClosedError(f"{self!r}: {e}") from e
        except BaseException:
            self.abort()
            raise
        size = sum(map(nbytes, frames))
        self._traffic.received(size)
        if self._links is not None:
            self._links.received(size)
        try:
            msg = await from_frames(
                frames,
                deserialize=self.deserialize,
                deserializers=deserializers,
                allow_offload=self.allow_offload and self.deserialize and read_offloads(frames, size),
            )
        except EOFError:
            self.abort()
            raise CommClosedError(f"{self!r}: aborted, a message was truncated") from None
        self._given.passed(msg, size, self, sent=False)
        return msg

    async def write(self, msg: Any, serializers: Any = None, on_error: str = "message") -> int:
        if self._told:  # Dask's handshake, which went with weft's
            self._told = False
            return 0
        if self._given.acknowledges(msg):
            return 0
        to_device = self._to_cuda and self.remote_info.get(device.CAPABILITY, False)
        frames = await to_frames(
            msg,
            allow_offload=self.allow_offload and write_offloads(msg),
            serializers=device.families(serializers, to_device=to_device),
            on_error=on_error,
            context={
                "sender": self.local_info,
                "recipient": self.remote_info,
                **self.handshake_options,
                **(self._compression(msg) if self._compresses and not to_device else {}),
            },
            frame_split_size=_WHOLE,
        )
        began = time.perf_counter()
        try:
            message = self._peer.pack(frames)
        except NotContiguousError:
            message = self._peer.pack([_contiguous(frame) for frame in frames])
        if message.on_device and not to_device:
            raise device.refused(self._peer_addr)
        links = self._links
        sending = None if links is None else links.begin_send(message.nbytes)
        try:
            await self._peer.send_packed(message, lend=self._lend and _carries_results(msg), stage=self._lend)
        except (PeerLostError, ClosedError) as e:
            self._traffic.failed(e)
            self.abort()
            raise CommClosedError(f"{self!r}: {e}") from e
        except BaseException:
            self.abort()
            raise
        finally:
            if sending is not None and links is not None:
                links.end_send(sending)
        self._traffic.sent(message.nbytes, began)
        self._given.passed(msg, message.nbytes, self, sent=True)
        return message.nbytes

    def _compression(self, msg: Any) -> dict[str, str]:
        """Choose a codec for a message's values; none if Dask compresses everything anyway, or if it would not pay."""
        if msg.__class__ is not dict or "data" not in msg or self.handshake_options.get("compression"):
            return {}
        from weft.dask.learn import compress

        codec = compress.choose(self._traffic.rate_Bps, self.remote_info.get(compress.READS))
        if codec is None:
            return {}
        self._traffic.compressed(codec)
        return {"compression": codec}

    # ---- values in pieces: not Dask messages, so the reader must expect them (`learn.pieces`) ------------------------

    def send_piece(self, piece: memoryview) -> Request[None]:
        """Send bytes unchanged, without copying them first."""
        return self._peer.send(piece)

    def recv_piece(self, into: memoryview) -> Request[int]:
        """Receive bytes sent by :meth:`send_piece` into their final place."""
        return self._peer.recv_into(into)

    @contextlib.contextmanager
    def sending_pieces(self, nbytes: int) -> Generator[list[int]]:
        """Count the sends in the block as one transfer, of `nbytes` or of the value put into the yielded list."""
        sent = [nbytes]
        began, links = time.perf_counter(), self._links
        sending = None if links is None else links.begin_send(nbytes)
        try:
            yield sent
        finally:
            if sending is not None and links is not None:
                links.end_send(sending)
            self._traffic.sent(sent[0], began)

    def pieces_received(
        self, nbytes: int, seconds: float | None, at_once: float, *, of_nbytes: int | None = None
    ) -> None:
        """Count received pieces as one transfer, or as a part of one of `of_nbytes`, `at_once` pieces at a time.

        `seconds` is None if the time says nothing about the link.
        """
        self._traffic.received(nbytes)
        if self._links is not None:
            self._links.received_pieces(nbytes, seconds, at_once, of_nbytes)

    async def close(self) -> None:
        if self._peer.closed:
            return
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._peer.close()
        except TimeoutError:
            logger.warning("%r: the peer did not answer the close within %s s; aborted", self, _CLOSE_TIMEOUT_S)
        except Error as e:
            logger.debug("%r: closing: %s", self, e)
        finally:
            self._peer.abort()

    def abort(self) -> None:
        self._peer.abort()

    def closed(self) -> bool:
        return self._peer.closed or self._peer.ended


def _contiguous(frame: Any) -> Any:
    """Copy a frame that is strided, as Dask's tcp does."""
    try:
        view = memoryview(frame)
    except (TypeError, ValueError):  # it is on a device, or of a type that NumPy has no format for
        return frame
    return frame if view.contiguous else view.tobytes()


def _carries_results(msg: Any) -> bool:
    """Tell whether a message carries task results (answer to ``get_data``) or P2P shards, held immutable by Dask.

    Nothing else may be lent: an actor's method often returns a part of its state, which it then changes. A shard is a
    task's result, or was cut out of one for its receiver.
    """
    if msg.__class__ is not dict or "data" not in msg:
        return False
    return msg.get("status") == "OK" or msg.get("op") == "shuffle_receive"


def _security(address: str, connection_args: dict[str, Any]) -> tuple[SSLContext | None, EncryptionPolicy]:
    """Extract from distributed's ``Security`` what weft needs.

    Raises
    ------
    RuntimeError
        Encryption is required, and there is no TLS, or the configuration allows unencrypted payload.
    """
    context: SSLContext | None = connection_args.get("ssl_context")
    payload = config.encrypted_payload()
    if connection_args.get("require_encryption") and (context is None or payload == "clear"):
        why = "no TLS is configured for it" if context is None else "weft.encrypted-payload is 'clear'"
        raise RuntimeError(
            f"encryption required by Dask configuration, refusing communication from/to {address!r}: {why}"
        )
    return context, payload if context is not None else "refuse"


@functools.lru_cache(1024)
def _say_once(why: str) -> None:
    """Log a fatal error once: a worker keeps retrying its scheduler without saying why it fails."""
    logger.warning("%s", why)


#: Errors of a connect that a retry cannot help.
_PERMANENT = (ProtocolError, TlsError, EncryptionError, NoRouteError, InvalidParamError)


class UCXConnector(Connector):  # type: ignore[misc]
    """Makes a :class:`UCX` comm to a :class:`UCXListener`; distributed calls it."""

    async def connect(self, address: str, deserialize: bool = True, **connection_args: Any) -> UCX:
        context, payload = _security(PREFIX + address, connection_args)
        target = unparse_host_port(*parse_host_port(address))
        report = connection_args.get(measured.REPORT)
        tells = report is not None  # a worker's comm, whose half of Dask's handshake nobody changes
        try:
            peer = await connect(
                target,
                timeout=3600,  # distributed bounds the attempt itself, and retries what is an OSError
                info=handshake.info(known=tells),
                settings=config.ucx(),
                ssl=context,
                payload=payload,
                flow=connection_args.get(FLOW, 0),
            )
        except _PERMANENT as e:
            _say_once(str(e))
            raise FatalCommClosedError(str(e)) from e
        except (OSError, ThreadError):
            raise
        except Error as e:  # out of memory or descriptors, which is temporary; without an OSError a task would hang
            raise CommClosedError(str(e)) from e
        return UCX(
            peer,
            local_addr=PREFIX + peer.local_address,
            peer_addr=PREFIX + address,
            deserialize=deserialize,
            worker=PREFIX + address,
            report=report,
            tells=tells,
        )


class UCXListener(BaseListener):  # type: ignore[misc]
    """Listens on one address of this host, or on all of them; distributed calls it."""

    prefix = PREFIX

    def __init__(
        self,
        address: str,
        comm_handler: Callable[[UCX], Awaitable[None]],
        deserialize: bool = True,
        allow_offload: bool = True,
        default_host: str | None = None,
        **connection_args: Any,
    ) -> None:
        super().__init__()
        self._payload: EncryptionPolicy
        self._ssl, self._payload = _security(PREFIX + address, connection_args)
        self.ip, self.port = parse_host_port(address, 0)
        self.comm_handler = comm_handler
        self.deserialize = deserialize
        self.allow_offload = allow_offload
        self.default_host = default_host
        self._listener: Listener | None = None
        self._host_port: tuple[str, int] | None = None
        self._report: measured.Report | None = None
        self._gives = False

    async def start(self) -> None:
        config.check()
        # lazy: distributed may load this module while it is itself half imported
        from weft.dask.observe.attach import attach, report_of

        server = patches.server_of(self.comm_handler)
        if isinstance(server, Worker):
            _arrays_of_tasks_in_pool()
            _import_numpy_serializers()
            count_worker(server)
            serve_host_freely(server)
            patches.close_beside_its_nanny(server)
            self._report = report_of(server)
            self.ip = self.ip or _wildcard_towards(server.scheduler.address)
            self.default_host = self.default_host or _host_towards(server.scheduler.address, self.ip)
        elif patches.is_nanny(server):
            count_in_nanny(server)
        attach(server)
        self._gives = acknowledge.gives(server)
        listener = Listener(
            unparse_host_port(self.ip, self.port),
            None,
            info=handshake.info(known=True, gives=self._gives),
            settings=config.ucx(),
            on_peer=self._on_peer,
            ssl=self._ssl,
            payload=self._payload,
        )
        await listener.start()
        self._listener = listener
        self._host_port = parse_host_port(listener.bound_address)
        if isinstance(server, Worker):
            patches.close_without_delay(server)

    def stop(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.stop()

    async def _on_peer(self, peer: Peer) -> None:
        comm = UCX(
            peer,
            local_addr=PREFIX + peer.local_address,
            peer_addr=PREFIX + peer.remote_address,
            deserialize=self.deserialize,
            report=self._report,
            gives=self._gives,
        )
        comm.allow_offload = self.allow_offload
        if self._listener is None:
            # stop() ran while this connection was being set up, and did not know of this comm
            comm.abort()
            return
        try:
            await self.on_connection(comm)
        except CommClosedError:
            logger.info("Connection from %s closed before handshake completed", comm.peer_address)
            return
        except Exception as e:  # noqa: BLE001 - whatever a stranger's first message makes distributed raise
            comm.abort()
            logger.warning("Connection from %s closed, its handshake is not a Dask message: %r", comm.peer_address, e)
            return
        except BaseException:
            comm.abort()
            raise
        await self.comm_handler(comm)

    def get_host_port(self) -> tuple[str, int]:
        """The listening address as a (host, port) tuple."""
        if self._host_port is None:
            raise ValueError("invalid operation on non-started UCXListener")
        return self._host_port

    @property
    def listen_address(self) -> str:
        return f"{PREFIX}{unparse_host_port(*self.get_host_port())}"

    @property
    def contact_address(self) -> str:
        host, port = self.get_host_port()
        host = ensure_concrete_host(host, default_host=self.default_host)
        return f"{PREFIX}{unparse_host_port(host, port)}"


def _wildcard_towards(scheduler: str) -> str:
    """Return where a worker listens that was told no host: on all addresses of the family that its scheduler has."""
    return "::" if ":" in ensure_ip(get_address_host(scheduler)) else ""


def _host_towards(scheduler: str, bound: str) -> str | None:
    """Return this host's address on the route to the scheduler, if its family is that of the bound address.

    A worker that listens on all addresses advertises one. distributed chooses it by this rule for tcp:// and tls://;
    for other protocols it takes the default route's interface, which need not lead to the cluster.
    """
    host = ensure_ip(get_address_host(scheduler))
    if (":" in host) != (":" in bound):
        return None
    return source_towards(host) if ":" in host else str(get_ip(host))


def _arrays_of_tasks_in_pool() -> None:
    """Let NumPy and Arrow allocate in the pool what tasks make, so that it can be lent.

    NumPy keeps its allocator in a context variable, Arrow has one for the whole process.
    """
    if config.arrays_in_pool() and importlib.util.find_spec("numpy") is not None:
        patches.set_in_context_of_tasks(lambda: _native.numpy_in_pool(True))
    if config.arrays_in_pool() and importlib.util.find_spec("pyarrow") is not None:
        arrow_in_pool()


def _import_numpy_serializers() -> None:
    """Import Dask's serializers of NumPy, and ``numpy.ma`` with them, at start, not with the first array that moves.

    It takes 8 ms, as long as 15 fetches of 128 KiB, while other workers wait for that array.
    """
    if importlib.util.find_spec("numpy") is not None:
        importlib.import_module("distributed.protocol.numpy")


@functools.lru_cache(1024)
def _address_host(loc: str) -> str:
    return str(parse_host_port(loc)[0])


class UCXBackend(Backend):  # type: ignore[misc]
    """The entry for ``ucx`` in distributed's registry of protocols."""

    def get_connector(self) -> UCXConnector:
        return UCXConnector()

    def get_listener(
        self, loc: str, handle_comm: Callable[[UCX], Awaitable[None]], deserialize: bool, **connection_args: Any
    ) -> UCXListener:
        return UCXListener(loc, handle_comm, deserialize, **connection_args)

    def get_address_host(self, loc: str) -> str:
        return _address_host(loc)

    def get_address_host_port(self, loc: str) -> tuple[str, int]:
        return parse_host_port(loc)  # type: ignore[no-any-return]

    def resolve_address(self, loc: str) -> str:
        host, port = parse_host_port(loc)
        return str(unparse_host_port(ensure_ip(host), port))

    def get_local_address_for(self, loc: str) -> str:
        host, _ = parse_host_port(loc)
        return str(unparse_host_port(get_ip(ensure_ip(host)), None))


def lanes() -> dict[str, list[str]]:
    """Return the lanes of this process's open comms.

    Returns
    -------
    dict of str to list of str
        The peer's address to its lanes, as ``["ring/memory"]`` or ``["tcp/eth0"]``; ``lent`` is one of them if memory
        was lent, in either direction.
    """
    by_peer: dict[str, list[str]] = {}
    for comm in list(_comms):
        if not comm.closed():
            used = by_peer.setdefault(comm.peer_address, list(comm.transports))
            if comm.lent and "lent" not in used:
                used.append("lent")
    return by_peer


send_at_once(UCX, config.send_at_once)
