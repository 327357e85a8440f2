# SPDX-License-Identifier: BSD-3-Clause
"""ucx-py's exceptions: its names for those that both drop-ins share."""

from weft.compat._core.exceptions import UCXCanceledError as UCXCanceled
from weft.compat._core.exceptions import UCXCloseError, UCXConfigError, UCXError, translated
from weft.compat._core.exceptions import UCXConnectionResetError as UCXConnectionReset
from weft.compat._core.exceptions import UCXError as UCXBaseException
from weft.compat._core.exceptions import UCXMessageTruncatedError as UCXMsgTruncated
from weft.compat._core.exceptions import UCXNotConnectedError as UCXNotConnected
from weft.compat._core.exceptions import UCXUnreachableError as UCXUnreachable


class UCXWarning(UserWarning):
    """A warning."""


__all__ = [
    "UCXBaseException",
    "UCXCanceled",
    "UCXCloseError",
    "UCXConfigError",
    "UCXConnectionReset",
    "UCXError",
    "UCXMsgTruncated",
    "UCXNotConnected",
    "UCXUnreachable",
    "UCXWarning",
    "translated",
]
