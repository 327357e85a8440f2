# SPDX-License-Identifier: BSD-3-Clause
"""Every exception weft raises, and the one table from UCX status to class."""

from __future__ import annotations


class Error(Exception):
    """Base of all weft errors.

    Attributes
    ----------
    status : int
        UCX's ``ucs_status_t``, or 0 if the error does not come from UCX.
    op : str
        The operation that failed, e.g. ``"tag_send"``; empty if there was none.
    """

    def __init__(self, message: str = "", *, status: int = 0, op: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.op = op


class ClosedError(Error):
    """You used an object after its own ``close`` or ``abort``."""


class PeerLostError(Error, ConnectionError):
    """The peer died, aborted or became unreachable. Messages that had arrived were delivered first."""


class PeerClosedError(PeerLostError):
    """The peer closed the connection, and everything that it sent has been delivered."""


class CanceledError(Error):
    """The operation was cancelled before it completed."""


class TruncatedError(Error):
    """The message was longer than the destination."""


class TimedOutError(Error, TimeoutError):
    """The timeout expired. A request that timed out in ``wait`` is still pending."""


class NoMemoryError(Error, MemoryError):
    """Memory, shared memory or another resource ran out."""


class InvalidParamError(Error, ValueError):
    """UCX or weft does not accept an argument."""


class NotContiguousError(Error, BufferError):
    """The buffer is not contiguous in memory. Nothing was sent or posted."""


class ReadOnlyError(Error, BufferError):
    """The destination is read-only. Nothing was posted."""


class UnsupportedError(Error):
    """This build of UCX, or this machine, does not support the operation."""


class UnreachableError(Error, ConnectionError):
    """No permitted transport reaches the peer."""


class AddressError(Error, OSError):
    """This host cannot listen at that address: it is in use, belongs to another host, or is not permitted."""


class HandshakeError(Error, ConnectionError):
    """The peer violated the handshake protocol: it closed the socket, or sent an unexpected message."""

    #: Whether it closed or reset the socket: it gave up, or it ended.
    ended: bool = False


class ProtocolError(HandshakeError):
    """The other side of a new connection does not speak weft, or has another version of it."""


class TlsError(HandshakeError):
    """TLS negotiation failed: only one side uses TLS, or they share no version or cipher."""


class CertificateError(TlsError):
    """One side refused the other's certificate; the message says which."""


class EncryptionError(UnreachableError):
    """Messages would leave this host unencrypted, and one side does not allow it. None was sent."""


class TopologyError(Error, ValueError):
    """A description of a machine is malformed or truncated; the message names the line."""


class LoadError(Error, ImportError):
    """There is no usable libucp: it is missing, too old, or mixed with a second UCX in this process."""


class ThreadError(Error, RuntimeError):
    """A worker was used by a thread that does not own it, or by a forked process."""


#: ``ucs_status_t`` -> class; anything else is a plain :class:`Error`.
#: Source: ``ucs/type/status.h``.
BY_STATUS: dict[int, type[Error]] = {
    -3: PeerLostError,  # IO_ERROR
    -4: NoMemoryError,
    -2: NoMemoryError,  # NO_RESOURCE
    -5: InvalidParamError,
    -6: UnreachableError,
    -7: InvalidParamError,  # INVALID_ADDR
    -8: UnsupportedError,  # NOT_IMPLEMENTED
    -9: TruncatedError,
    -14: UnreachableError,  # NO_DEVICE
    -16: CanceledError,
    -17: NoMemoryError,  # SHMEM_SEGMENT
    -20: TimedOutError,
    -22: UnsupportedError,
    -23: PeerLostError,  # REJECTED
    -24: PeerLostError,  # NOT_CONNECTED
    -25: PeerLostError,  # CONNECTION_RESET
    -80: PeerLostError,  # ENDPOINT_TIMEOUT
}


def from_status(status: int, reason: str, op: str, what: str) -> Error:
    """Make the exception for a failed UCX call; `reason` is UCX's own text for `status`."""
    cls = BY_STATUS.get(status, Error)
    return cls(f"{op}{what}: {reason}", status=status, op=op)
