# SPDX-License-Identifier: BSD-3-Clause
"""UCXX's exceptions: one for each UCX status. weft raises those in ``weft.compat._core.exceptions``."""

from weft.compat._core.exceptions import (
    UCXBusyError,
    UCXCanceledError,
    UCXCloseError,
    UCXConfigError,
    UCXConnectionResetError,
    UCXEndpointTimeoutError,
    UCXError,
    UCXInvalidParamError,
    UCXMessageTruncatedError,
    UCXNoMemoryError,
    UCXNotConnectedError,
    UCXTimedOutError,
    UCXUnreachableError,
    UCXUnsupportedError,
)

UCXCanceled = UCXCanceledError
UCXMsgTruncated = UCXMessageTruncatedError


class UCXAlreadyExistsError(UCXError):
    """``UCS_ERR_ALREADY_EXISTS``."""


class UCXBufferTooSmallError(UCXError):
    """``UCS_ERR_BUFFER_TOO_SMALL``."""


class UCXExceedsLimitError(UCXError):
    """``UCS_ERR_EXCEEDS_LIMIT``."""


class UCXFirstEndpointFailureError(UCXError):
    """``UCS_ERR_FIRST_ENDPOINT_FAILURE``."""


class UCXFirstLinkFailureError(UCXError):
    """``UCS_ERR_FIRST_LINK_FAILURE``."""


class UCXInvalidAddrError(UCXError):
    """``UCS_ERR_INVALID_ADDR``."""


class UCXIOError(UCXError):
    """``UCS_ERR_IO_ERROR``."""


class UCXLastEndpointFailureError(UCXError):
    """``UCS_ERR_LAST_ENDPOINT_FAILURE``."""


class UCXLastLinkFailureError(UCXError):
    """``UCS_ERR_LAST_LINK_FAILURE``."""


class UCXNoDeviceError(UCXError):
    """``UCS_ERR_NO_DEVICE``."""


class UCXNoElemError(UCXError):
    """``UCS_ERR_NO_ELEM``."""


class UCXNoMessageError(UCXError):
    """``UCS_ERR_NO_MESSAGE``."""


class UCXNoProgressError(UCXError):
    """``UCS_ERR_NO_PROGRESS``."""


class UCXNoResourceError(UCXError):
    """``UCS_ERR_NO_RESOURCE``."""


class UCXNotImplementedError(UCXError):
    """``UCS_ERR_NOT_IMPLEMENTED``."""


class UCXOutOfRangeError(UCXError):
    """``UCS_ERR_OUT_OF_RANGE``."""


class UCXRejectedError(UCXError):
    """``UCS_ERR_REJECTED``."""


class UCXShmemSegmentError(UCXError):
    """``UCS_ERR_SHMEM_SEGMENT``."""


class UCXSomeConnectsFailedError(UCXError):
    """``UCS_ERR_SOME_CONNECTS_FAILED``."""


__all__ = [
    "UCXAlreadyExistsError",
    "UCXBufferTooSmallError",
    "UCXBusyError",
    "UCXCanceled",
    "UCXCanceledError",
    "UCXCloseError",
    "UCXConfigError",
    "UCXConnectionResetError",
    "UCXEndpointTimeoutError",
    "UCXError",
    "UCXExceedsLimitError",
    "UCXFirstEndpointFailureError",
    "UCXFirstLinkFailureError",
    "UCXIOError",
    "UCXInvalidAddrError",
    "UCXInvalidParamError",
    "UCXLastEndpointFailureError",
    "UCXLastLinkFailureError",
    "UCXMessageTruncatedError",
    "UCXMsgTruncated",
    "UCXNoDeviceError",
    "UCXNoElemError",
    "UCXNoMemoryError",
    "UCXNoMessageError",
    "UCXNoProgressError",
    "UCXNoResourceError",
    "UCXNotConnectedError",
    "UCXNotImplementedError",
    "UCXOutOfRangeError",
    "UCXRejectedError",
    "UCXShmemSegmentError",
    "UCXSomeConnectsFailedError",
    "UCXTimedOutError",
    "UCXUnreachableError",
    "UCXUnsupportedError",
]
