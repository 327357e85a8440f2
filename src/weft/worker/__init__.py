# SPDX-License-Identifier: BSD-3-Clause
"""``weft worker``: start the workers of a plan on this machine, for a scheduler elsewhere.

- ``command``: its options, and the plan that they describe.
- ``nannies``: start a nanny for each worker, and stop them all.
"""

from __future__ import annotations

import json
from pathlib import Path

from weft.errors import InvalidParamError


def written_address(file: str) -> str | None:
    """Return the address that a scheduler wrote; None if `file` does not exist yet, or is incomplete.

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
