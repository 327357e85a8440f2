# SPDX-License-Identifier: BSD-3-Clause
"""ucx-py's exceptions, and which of them a weft error becomes."""

from weft import errors


class UCXBaseException(Exception):  # noqa: N818
    """Base of all."""


class UCXError(UCXBaseException):
    """UCX could not do it."""


class UCXConfigError(UCXError):
    """UCX knows no such setting, or not such a value."""


class UCXWarning(UserWarning):
    """Something to look at."""


class UCXCloseError(UCXBaseException):
    """The endpoint is closed."""


class UCXCanceled(UCXBaseException):
    """The endpoint was closed, or its peer lost, while the operation was under way."""


class UCXConnectionReset(UCXBaseException):
    """The peer is gone."""


class UCXMsgTruncated(UCXBaseException):
    """The message is not as long as the buffer."""


class UCXNotConnected(UCXBaseException):
    """There is no connection."""


class UCXUnreachable(UCXBaseException):
    """Nothing leads to the peer."""


# ucx-py raises UCXError in these two cases, and has a better class that it does not use.
class _TooLongError(UCXMsgTruncated, UCXError):
    pass


class _NobodyThereError(UCXUnreachable, UCXError):
    pass


def translated(error: errors.Error, what: object) -> Exception:
    """Return the exception that ucx-py would raise where weft raised `error`."""
    message = f"<{what}>: {error}"
    match error:
        case errors.CanceledError():
            return UCXCanceled(message)
        case errors.ClosedError():
            return UCXCloseError(message)
        case errors.TruncatedError():
            return _TooLongError(message)
        case errors.UnreachableError():
            return _NobodyThereError(f"<{what}>: Destination is unreachable: {error}")
        case errors.NotContiguousError() | errors.ReadOnlyError():
            return ValueError(message)
        case _:
            return UCXError(message)
