# SPDX-License-Identifier: BSD-3-Clause
"""The exceptions under the name that ucx-py's core has for them."""

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
