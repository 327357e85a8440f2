# SPDX-License-Identifier: BSD-3-Clause
"""The small functions that ucx-py's programs take from ``ucp.utils``."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import socket
from collections.abc import Sequence

__all__ = ["get_event_loop", "get_ucxpy_logger", "hash64bits", "hmean"]


def get_event_loop() -> asyncio.AbstractEventLoop:
    """Return the running loop, or a new one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.new_event_loop()


def get_ucxpy_logger() -> logging.Logger:
    """Return the logger ``ucx``, which writes lines in ucx-py's format at the level ``UCXPY_LOG_LEVEL``."""
    logger = logging.getLogger("ucx")
    logger.setLevel(os.environ.get("UCXPY_LOG_LEVEL", "WARNING"))
    if not logger.handlers:
        logger.propagate = False
        handler = logging.StreamHandler()
        handler.setFormatter(
            logging.Formatter(
                f"[%(created).6f] [{socket.gethostname()}:%(process)d] UCXPY  %(levelname)s %(message)s",
            )
        )
        logger.addHandler(handler)
    return logger


def hash64bits(*args: object) -> int:
    """Return 64 bits that depend on what `args` look like; the same in every process."""
    return int.from_bytes(hashlib.sha1(repr(args).encode(), usedforsecurity=False).digest()[:8])


def hmean(a: Sequence[float]) -> float:
    """Return the harmonic mean; 0 of nothing."""
    return len(a) / sum(1 / value for value in a) if len(a) else 0.0
