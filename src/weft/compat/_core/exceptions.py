# SPDX-License-Identifier: BSD-3-Clause
"""The exceptions of both drop-ins, by UCXX's names, and which of them a weft error becomes.

ucx-py's names are other names of these classes. All of them are :class:`UCXError`, as in UCXX.
"""

from weft import errors


class UCXError(Exception):
    """UCX could not do it. Base of all."""


class UCXInvalidParamError(UCXError):
    """An argument that UCX cannot take."""


class UCXConfigError(UCXInvalidParamError):
    """UCX knows no such setting, or not such a value."""


class UCXCloseError(UCXError):
    """The endpoint is closed."""


class UCXCanceledError(UCXError):
    """The endpoint was closed, or its peer lost, while the operation was under way."""


class UCXConnectionResetError(UCXError):
    """The peer is gone."""


class UCXEndpointTimeoutError(UCXError):
    """The worker with this address is gone."""


class UCXMessageTruncatedError(UCXError):
    """The message is not as long as the buffer."""


class UCXNotConnectedError(UCXError):
    """Nobody listens there."""


class UCXUnreachableError(UCXNotConnectedError):
    """Nothing leads to the peer."""


class UCXNoMemoryError(UCXError):
    """Memory, shared memory or another resource ran out."""


class UCXTimedOutError(UCXError):
    """The time given was over."""


class UCXUnsupportedError(UCXError):
    """This UCX, or this drop-in, cannot do it."""


_CLASSES: dict[type[errors.Error], type[Exception]] = {
    errors.CanceledError: UCXCanceledError,
    errors.ClosedError: UCXCloseError,
    errors.TruncatedError: UCXMessageTruncatedError,
    errors.NotContiguousError: ValueError,
    errors.ReadOnlyError: ValueError,
    errors.NoMemoryError: UCXNoMemoryError,
    errors.TimedOutError: UCXTimedOutError,
    errors.UnsupportedError: UCXUnsupportedError,
    errors.InvalidParamError: UCXInvalidParamError,
    errors.PeerLostError: UCXConnectionResetError,
}


def translated(error: Exception, what: object) -> Exception:
    """Return the exception of the drop-ins where weft raised `error` for `what`."""
    if isinstance(error, errors.UnreachableError):
        return UCXUnreachableError(f"<{what}>: Destination is unreachable: {error}")
    if isinstance(error, UCXError):
        return error
    found = (_CLASSES[each] for each in type(error).__mro__ if each in _CLASSES)
    return next(found, UCXError)(f"<{what}>: {error}")
