# SPDX-License-Identifier: BSD-3-Clause
"""Move data between Python processes over the best wire they share.

- :func:`connect` and :func:`listen` make a connection: a :class:`Peer` on each side, blocking or in an event loop.
- :class:`Context`, :class:`Worker` and :class:`Endpoint` are UCP's own objects: tags, active messages, streams, remote
  memory and atomic operations.
- Dask uses weft as ``ucx://`` once it is installed; ``weft.dask`` has what you call yourself.

Every operation returns a :class:`Request`: ``request.wait()`` blocks, ``await request`` suspends. All errors derive
from :class:`Error`. Importing weft loads no UCX, starts nothing and sets no environment variable; the first ``Context``
or connection over UCX loads it.
"""

from weft import _signatures
from weft._native import (
    ActiveMessage,
    Endpoint,
    Memory,
    RemoteKey,
    Rkey,
    SockaddrListener,
    TagMessage,
    Worker,
)
from weft.config import Context, ucx_library
from weft.connect import connect
from weft.errors import (
    AddressError,
    CanceledError,
    CertificateError,
    ClosedError,
    EncryptionError,
    Error,
    HandshakeError,
    InvalidParamError,
    LoadError,
    NoMemoryError,
    NotContiguousError,
    PeerClosedError,
    PeerLostError,
    ProtocolError,
    ReadOnlyError,
    ThreadError,
    TimedOutError,
    TlsError,
    TopologyError,
    TruncatedError,
    UnreachableError,
    UnsupportedError,
)
from weft.listen import Listener, listen
from weft.memory import arrays_in_pool
from weft.peer import Peer
from weft.typing import Request

__version__ = "0.1.0"

_signatures.show()

__all__ = [
    "ActiveMessage",
    "AddressError",
    "CanceledError",
    "CertificateError",
    "ClosedError",
    "Context",
    "EncryptionError",
    "Endpoint",
    "Error",
    "HandshakeError",
    "InvalidParamError",
    "Listener",
    "LoadError",
    "Memory",
    "NoMemoryError",
    "NotContiguousError",
    "Peer",
    "PeerClosedError",
    "PeerLostError",
    "ProtocolError",
    "ReadOnlyError",
    "RemoteKey",
    "Request",
    "Rkey",
    "SockaddrListener",
    "TagMessage",
    "ThreadError",
    "TimedOutError",
    "TlsError",
    "TopologyError",
    "TruncatedError",
    "UnreachableError",
    "UnsupportedError",
    "Worker",
    "arrays_in_pool",
    "connect",
    "listen",
    "ucx_library",
]
