# SPDX-License-Identifier: BSD-3-Clause
"""The exceptions of both drop-ins, by UCXX's names, and the mapping of weft's errors to them.

ucx-py's names are aliases of these classes. All of them derive from :class:`UCXError`, as in UCXX.
"""

from weft import _native, errors


class UCXError(Exception):
    """UCX failed. Base of all."""


class UCXBusyError(UCXError):
    """The port is in use."""


class UCXInvalidParamError(UCXError):
    """UCX does not accept an argument."""


class UCXConfigError(UCXInvalidParamError):
    """UCX does not know a setting, or does not accept its value."""


class UCXCloseError(UCXError):
    """The endpoint is closed."""


class UCXCanceledError(UCXError):
    """The endpoint was closed, or its peer was lost, during the operation."""


class UCXConnectionResetError(UCXError):
    """The peer is gone."""


class UCXEndpointTimeoutError(UCXError):
    """The worker with this address is gone."""


class UCXMessageTruncatedError(UCXError):
    """The message and the buffer differ in size."""


class UCXNotConnectedError(UCXError):
    """Nothing listens at that address."""


class UCXUnreachableError(UCXNotConnectedError):
    """No transport reaches the peer."""


class UCXNoMemoryError(UCXError):
    """Memory, shared memory or another resource ran out."""


class UCXTimedOutError(UCXError):
    """The timeout expired."""


class UCXUnsupportedError(UCXError):
    """This UCX, or this drop-in, does not support the operation."""


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
    """Return the drop-ins' exception for `error`, which weft raised for the operation `what`."""
    if isinstance(error, errors.UnreachableError):
        return UCXUnreachableError(f"<{what}>: Destination is unreachable: {error}")
    if isinstance(error, UCXError):
        return error
    if isinstance(error, errors.ThreadError) and not _native.forked():
        return UCXError(f"<{what}>: {error}; to change threads, call reset() there before it ends")
    found = (_CLASSES[each] for each in type(error).__mro__ if each in _CLASSES)
    return next(found, UCXError)(f"<{what}>: {error}")
