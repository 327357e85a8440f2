# SPDX-License-Identifier: BSD-3-Clause
"""Why a benchmark cannot go on."""

from __future__ import annotations


class BenchError(Exception):
    """The benchmark cannot be run, or a process of it died or hung; the message is the one line to print.

    Attributes
    ----------
    last : str
        The last line that a measured process printed before it failed, or an empty string.
    """

    def __init__(self, message: str, *, last: str = "") -> None:
        super().__init__(message)
        self.last = last


class UsageError(BenchError):
    """The options ask for what cannot be, or do not go together."""
