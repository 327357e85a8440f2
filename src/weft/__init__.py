# SPDX-License-Identifier: BSD-3-Clause
"""Move data between Python processes over the best wire they share.

What is public is imported here; the map of the package is in docs/design.md, which a test keeps true. Importing this
package loads no UCX, starts nothing and sets no environment variable; the first ``Context`` does the loading.
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
