# SPDX-License-Identifier: BSD-3-Clause
"""Every exception weft raises, and the one table from UCX status to class."""

from __future__ import annotations


class Error(Exception):
    """Base of all weft errors.

    Attributes
    ----------
    status : int
        The ``ucs_status_t`` behind the error, or 0 where UCX had no part in it.
    op : str
        The operation that failed, e.g. ``"tag_send"``; empty where none was under way.
    """

    def __init__(self, message: str = "", *, status: int = 0, op: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.op = op


class ClosedError(Error):
    """You closed it: the object was used after its own ``close`` or ``abort``."""


class PeerLostError(Error, ConnectionError):
    """They went: the peer died, aborted, or became unreachable. What had arrived was delivered first."""


class PeerClosedError(PeerLostError):
    """They closed it: the peer said goodbye, and everything that it sent has been delivered."""


class CanceledError(Error):
    """The operation was cancelled before it completed."""


class TruncatedError(Error):
    """The message was longer than the destination."""


class TimedOutError(Error, TimeoutError):
    """The time given was over. A request that timed out in ``wait`` is still pending."""


class NoMemoryError(Error, MemoryError):
    """Memory, shared memory or another resource ran out."""


class InvalidParamError(Error, ValueError):
    """An argument that UCX or weft cannot take."""


class NotContiguousError(Error, BufferError):
    """The buffer's items do not lie side by side in memory. Nothing was sent or posted."""


class ReadOnlyError(Error, BufferError):
    """The destination cannot be written. Nothing was posted."""


class UnsupportedError(Error):
    """This build of UCX, or this machine, cannot do it."""


class UnreachableError(Error, ConnectionError):
    """No transport that may be used leads to the peer."""


class AddressError(Error, OSError):
    """This host cannot listen at that address: it is taken, or not this host's, or not permitted."""


class HandshakeError(Error, ConnectionError):
    """The peer violated the handshake protocol: it closed the socket, or sent a message that does not belong there."""


class ProtocolError(HandshakeError):
    """The other side of a new connection does not speak weft, or not this version of it."""


class TlsError(HandshakeError):
    """TLS negotiation failed: only one of the two sides has TLS, or they have no version or cipher in common."""


class CertificateError(TlsError):
    """One side refused the other's certificate; the message says which."""


class EncryptionError(UnreachableError):
    """Messages would leave this host unencrypted, and one of the two sides does not allow it. None was sent."""


class TopologyError(Error, ValueError):
    """The text that describes a machine is malformed or cut off; the message names its line."""


class LoadError(Error, ImportError):
    """No usable libucp: missing, too old, or a second or mixed set in this process."""


class ThreadError(Error, RuntimeError):
    """A worker was used from a thread, or after a fork in a process, that does not own it."""


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
