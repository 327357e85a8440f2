# SPDX-License-Identifier: BSD-3-Clause
"""The file that a Dask scheduler writes its address to."""

from __future__ import annotations

import json
from pathlib import Path

from weft.errors import InvalidParamError


def address(file: str) -> str | None:
    """Return the scheduler's address; None if `file` does not exist yet, or is incomplete.

    Raises
    ------
    InvalidParamError
        It cannot be read.
    """
    try:
        return str(json.loads(Path(file).read_text(encoding="utf-8"))["address"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    except OSError as error:
        raise InvalidParamError(f"--scheduler-file {file}: {error.strerror}") from error
