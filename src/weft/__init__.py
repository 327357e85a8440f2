# SPDX-License-Identifier: BSD-3-Clause
"""Move data between Python processes over the best wire they share.

A map of the house; imports go one way, ``native <- core <- topo <- dask, bench, compat <- cli``:

- ``_native``: UCP itself (context, worker, endpoint, request, memory, listener, connection, receive pool).
- ``_load``: which libucp. ``config``: which settings. ``errors``: every exception.
- ``explain``: which wire carries a connection, and why; ``pair``: two processes to try it with.
- ``connect``, ``listen``, ``peer``: connections, over ``handshake`` (what is said), ``tls`` (around it), ``drive``
  (over a socket) and ``links`` (the workers of a loop or thread).
- ``memory``: arrays that can be lent. ``typing``: what may be sent, for type checkers.
- ``topo``: what the machine consists of, and where to put workers. ``shm``: what killed processes left behind.
- ``lab``: hosts and links on one machine.
- ``compat``: other libraries' interfaces, so that their programs run over weft.
- ``dask``: the ``ucx://`` comm. ``bench``: measurements and the demo. ``cli``: the command.

Importing this package loads no UCX, starts nothing and sets no environment variable; the first ``Context`` does
the loading.
"""

from weft._native import (
    ActiveMessage,
    Endpoint,
    Memory,
    RemoteKey,
    Request,
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

__version__ = "0.1.0"

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
