# SPDX-License-Identifier: BSD-3-Clause
"""Small functions that programs import from ``ucp.utils`` and ``ucxx.utils``."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import socket
from collections.abc import Sequence


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
    """Return a 64-bit hash of the repr of `args`, the same in every process."""
    return int.from_bytes(hashlib.sha1(repr(args).encode(), usedforsecurity=False).digest()[:8])


def hmean(a: Sequence[float]) -> float:
    """Return the harmonic mean; 0 if empty."""
    return len(a) / sum(1 / value for value in a) if len(a) else 0.0


def format_time(x: float) -> str:
    """Write seconds as ns, us, ms or s."""
    for factor, unit in ((1e9, "ns"), (1e6, "us"), (1e3, "ms")):
        if x < 1000 / factor:
            return f"{x * factor:.3f} {unit}"
    return f"{x:.3f} s"


def format_bytes(x: float) -> str:
    """Write bytes as B, KiB, MiB, GiB or TiB."""
    if x < 1024:
        return f"{x} B"
    for unit in ("KiB", "MiB", "GiB"):
        x /= 1024
        if x < 1024:
            return f"{x:.2f} {unit}"
    return f"{x / 1024:.2f} TiB"


def print_separator(separator: str = "-", length: int = 80) -> None:
    """Print a line."""
    print(separator * length)


def print_key_value(key: str, value: object, key_length: int = 25) -> None:
    """Print a key, padded to a column, and its value."""
    print(f"{key: <{key_length}} | {value}")


def print_multi(values: Sequence[str], key_length: int = 25) -> None:
    """Print values in columns."""
    print(" | ".join([*(f"{value: <{key_length}}" for value in values[:-1]), values[-1]]))
