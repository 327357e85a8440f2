# SPDX-License-Identifier: BSD-3-Clause
"""A worker's memory limit as Dask's users write it: ``4GiB``, ``0.5`` of the machine, ``auto``, 0 for none."""

from __future__ import annotations

import math
import re

from weft.errors import InvalidParamError

_SCALE = "kmgtp"
_SIZE = re.compile(r"([0-9]*\.?[0-9]+(?:e[0-9]{1,2})?) ?(?:([kmgtp])(i?))?b?", re.IGNORECASE)
#: A smaller limit is a mistake, such as 4 for 4 GiB.
_LEAST_NBYTES = 1 << 20


def memory_limit(asked: str | float | None, have_nbytes: int | None) -> int | None:
    """Return the limit in bytes; 0 for none, None if the plan chooses.

    Parameters
    ----------
    asked : str, int, float or None
        ``auto`` leaves it to the plan; None and 0 are no limit; up to 1 is a fraction of `have_nbytes`, as for
        ``dask worker``; else bytes, as a number or such as ``4GiB``, ``500 MB``, ``2e9``.
    have_nbytes : int or None
        The memory that may be used, if it is known.

    Raises
    ------
    InvalidParamError
        `asked` has another form, is less than 1 MiB, or is a fraction of an unknown amount.
    """
    if asked == "auto":
        return None
    value = 0.0 if asked is None else _number(asked)
    if 0 < value <= 1:
        if have_nbytes is None:
            raise InvalidParamError(
                f"memory limit {asked!r}: a fraction of the machine's memory, which is not known here; "
                "write a size such as 4GiB"
            )
        return int(value * have_nbytes)
    if math.isfinite(value) and (value == 0 or value >= _LEAST_NBYTES):
        return int(value)
    raise InvalidParamError(
        f"memory limit {asked!r}: write a size from 1 MiB up such as 4GiB, a number of bytes, up to 1 for a fraction "
        "of the machine's memory, 0 for none, or auto"
    )


def _number(asked: str | float) -> float:
    if not isinstance(asked, str):
        return float(asked)
    match = _SIZE.fullmatch(asked.strip())
    if match is None:
        return math.nan
    scale = 1024 if match[3] else 1000
    return float(match[1]) * (scale ** (_SCALE.index(match[2].lower()) + 1) if match[2] else 1)
