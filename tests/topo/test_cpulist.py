# SPDX-License-Identifier: BSD-3-Clause
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.topo import cpulist


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("", ()), ("0", (0,)), ("0-3,8", (0, 1, 2, 3, 8)), ("8,0-1\n", (0, 1, 8)), ("3,3,2-3", (2, 3)), (" 1, 2", (1, 2))],
)
def test_parse(text, numbers):
    assert cpulist.parse(text) == numbers


@pytest.mark.parametrize("text", ["-", "3-1", "a", "1,,2", "0-", "99999", "0-99999999999", "²", "0x1", "N/A"])
def test_parse_refuses(text):
    with pytest.raises(ValueError, match="in"):
        cpulist.parse(text)


@given(st.sets(st.integers(0, cpulist.MOST - 1), max_size=40))
def test_join_is_what_parse_reads(numbers):
    assert cpulist.parse(cpulist.join(numbers)) == tuple(sorted(numbers))
