# SPDX-License-Identifier: BSD-3-Clause
"""The exceptions under the module name of ucx-py's core."""

from weft.compat.ucp.exceptions import (
    UCXBaseException,
    UCXCanceled,
    UCXCloseError,
    UCXConfigError,
    UCXConnectionReset,
    UCXError,
    UCXMsgTruncated,
    UCXNotConnected,
    UCXUnreachable,
    UCXWarning,
)

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
]
