# SPDX-License-Identifier: BSD-3-Clause
"""The classes of UCXX's asyncio interface."""

from weft.compat.ucxx._lib_async.application_context import ApplicationContext
from weft.compat.ucxx._lib_async.endpoint import Endpoint
from weft.compat.ucxx._lib_async.listener import Listener

__all__ = ["ApplicationContext", "Endpoint", "Listener"]
