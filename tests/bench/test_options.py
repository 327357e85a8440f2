# SPDX-License-Identifier: BSD-3-Clause
"""What the benchmarks' command lines have in common: sizes, ranges of sizes, names, and bounded times."""

import argparse

import pytest

from weft import _cli as cli
from weft.bench.common import options


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("8", 8),
        ("8B", 8),
        ("1kB", 1000),
        ("1KB", 1000),
        ("1KiB", 1024),
        ("64 KiB", 65536),
        ("1MB", 10**6),
        ("1MiB", 2**20),
        ("2GiB", 2**31),
    ],
)
def test_size(text, nbytes):
    assert options.size(text) == nbytes


@pytest.mark.parametrize("text", ["", "0", "-8", "1.5MiB", "1Mib", "1 mb", "MiB", "1KiB2", "1e6", "\u0661KiB"])
def test_size_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is not a size such as 8, 1KiB or 1MB"):
        options.size(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1:8", [1, 2, 4, 8]),
        ("1:7", [1, 2, 4]),
        ("8:8", [8]),
        ("1:1KiB:32", [1, 32, 1024]),
        ("1KiB:4KiB,8,4096", [8, 1024, 2048, 4096]),
    ],
)
def test_ranges_of_sizes(text, expected):
    assert options.sizes(text) == expected


@pytest.mark.parametrize("text", ["8:1", "1:", ":8", "1:8:1", "1:8:", "1:8:x", "1:8:2:2", "1:8:\u0662"])
def test_range_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match=r"is not a (range|size) such as"):
        options.sizes(text)


def test_names_are_those_that_are_allowed():
    assert options.some_of(("a", "b"), "b, a") == ["b", "a"]
    with pytest.raises(argparse.ArgumentTypeError, match="'c' is not one of a, b"):
        options.some_of(("a", "b"), "a,c")


@pytest.mark.parametrize(
    ("command", "option"),
    [(name, "--seconds-per-cell") for name in ("pingpong", "sweep", "peers")]
    + [("sweep", "--limit"), ("merge", "--timeout"), ("send-recv", "--timeout")],
)
def test_a_time_that_no_timer_takes(command, option, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", command, option, "1e300"])
    assert ended.value.code == 2
    assert f"argument {option}: '1e300' is above 100000000, three years" in capsys.readouterr().err
