# SPDX-License-Identifier: BSD-3-Clause
"""The limit of open files. Only commands and clusters that start processes raise it; importing weft does not."""

from __future__ import annotations

import logging
import resource

_log = logging.getLogger("weft")


def raise_limit() -> None:
    """Raise this process's soft limit of open files to the hard limit; child processes inherit it.

    If the system refuses, the limit is unchanged.

    Source: ``setrlimit(2)``.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as refusal:  # a syscall filter, or fs.nr_open was lowered below the hard limit
        _log.info("the limit of open files stays %s: %s", soft, refusal)
