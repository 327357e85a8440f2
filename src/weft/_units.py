# SPDX-License-Identifier: BSD-3-Clause
"""Reading and writing of sizes, times and rates: the only place that knows their units."""

from __future__ import annotations

import math
import re

#: The suffixes of sizes. Where both divide a size, the binary one is preferred.
_DIVIDING = {"GiB": 2**30, "GB": 10**9, "MiB": 2**20, "MB": 10**6, "KiB": 2**10, "kB": 10**3, "B": 1}
UNITS = {"": 1, "KB": 10**3, **_DIVIDING}


def parse_size(text: str) -> int:
    """Read a size: ``8``, ``1KiB`` or ``1 MB``.

    Raises
    ------
    ValueError
        It is not a whole number above 0 of bytes or of a known unit; the message says so.
    """
    match = re.fullmatch(r"([0-9]+) ?([A-Za-z]*)", text.strip())
    if match is None or match[2] not in UNITS or int(match[1]) == 0:
        units = "a whole number of B, kB, KiB, MB, MiB, GB or GiB"
        raise ValueError(f"{text!r} is not a size such as 8, 1KiB or 1MB ({units})")
    return int(match[1]) * UNITS[match[2]]


def format_size(nbytes: int) -> str:
    """Write a size exactly, with the largest unit that divides it: ``64 KiB``, ``1 MB``, ``1000001 B``."""
    unit = next(unit for unit, one in _DIVIDING.items() if nbytes % one == 0 and (nbytes or one == 1))
    return f"{nbytes // _DIVIDING[unit]} {unit}"


def format_nbytes(nbytes: float) -> str:
    """Write an amount of memory: ``5.49 GiB``, ``12.3 MiB``, ``512 B``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(nbytes) < 999.5 or unit == "TiB":
            return f"{nbytes:.0f} B" if unit == "B" else f"{_three_digits(nbytes)} {unit}"
        nbytes /= 1024
    raise AssertionError


def format_rate(rate_Bps: float | None) -> str:  # noqa: N803
    """Write bytes/second: ``8.13 GB/s``; a dash for None."""
    return "-" if rate_Bps is None else _scaled(rate_Bps, (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)))


def format_seconds(seconds: float | None) -> str:
    """Write a duration: ``8.71 ms``; a dash for None."""
    return "-" if seconds is None else _scaled(seconds, (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)))


def format_ratio(ratio: float) -> str:
    """Write a ratio with two decimals; if it is small, with two significant digits; if large, with none."""
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def format_deviation(deviation: float) -> str:
    """Write the standard deviation of a logarithm: as a share, ``12%``, or from 1 on as a factor, ``x2.7``."""
    return f"{deviation:.0%}" if deviation < 1 else f"x{math.exp(deviation):.2g}"


def _scaled(value: float, units: tuple[tuple[str, float], ...]) -> str:
    # Compare the rounded value: 999.7 MB/s is 1 GB/s.
    name, one = next(((name, one) for name, one in units if abs(value) >= 0.9995 * one), units[-1])
    return f"{_three_digits(value / one)} {name}"


def _three_digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.3g}"
