# SPDX-License-Identifier: BSD-3-Clause
"""Sizes, times and rates as people read and write them."""

import pytest

from weft import _units as units


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1000, "1 kB"),
        (1024, "1 KiB"),
        (1_000_001, "1000001 B"),
        (3 << 30, "3 GiB"),
        (10**6, "1 MB"),
    ],
)
def test_an_exact_size_is_read_as_it_was_written(nbytes, text):
    assert units.format_size(nbytes) == text
    if nbytes:
        assert units.parse_size(text) == units.parse_size(text.replace(" ", "")) == nbytes


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5MiB", "8 apples", "MiB", "1mb"])
def test_what_is_not_a_size_is_refused(text):
    with pytest.raises(ValueError, match="is not a size such as 8, 1KiB or 1MB"):
        units.parse_size(text)


def test_amounts_have_three_digits():
    written = [
        units.format_nbytes(n) for n in (0, 999, 1000, 1 << 20, 12.34 * 2**20, 5.49 * 2**30, 5000 * 2**30, 99 << 40)
    ]
    assert written == ["0 B", "999 B", "0.977 KiB", "1 MiB", "12.3 MiB", "5.49 GiB", "4.88 TiB", "99 TiB"]


def test_a_rate_is_rounded_before_its_unit_is_chosen():
    written = [units.format_rate(rate) for rate in (None, 0, 512, 8.13e9, 999.7e6, 999.4e6, 12e12)]
    assert written == ["-", "0 kB/s", "0.512 kB/s", "8.13 GB/s", "1 GB/s", "999 MB/s", "12,000 GB/s"]


def test_durations():
    written = [units.format_seconds(s) for s in (None, 0, 2.5e-10, 1.84e-7, 8.71e-3, 0.9996, 15.14, 1234)]
    assert written == ["-", "0 ns", "0.25 ns", "184 ns", "8.71 ms", "1 s", "15.1 s", "1,234 s"]


def test_ratios():
    assert [units.format_ratio(r) for r in (0.0153, 0.5149, 1, 9.994, 15.2)] == ["0.015", "0.51", "1.00", "9.99", "15"]
