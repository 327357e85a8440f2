# SPDX-License-Identifier: BSD-3-Clause
"""The limit of open files. Only commands and clusters that start processes raise it; importing weft does not."""

from __future__ import annotations

import logging
import resource

_log = logging.getLogger("weft")


def raise_limit() -> None:
    """Raise this process's soft limit of open files to the hard one; what it starts from now on inherits that.

    Where the system refuses, the limit stays as it is.

    Source: ``setrlimit(2)``.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as refusal:  # a filter, or fs.nr_open was lowered below the hard limit
        _log.info("the limit of open files stays %s: %s", soft, refusal)
