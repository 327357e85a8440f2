# SPDX-License-Identifier: BSD-3-Clause
"""UCX's tables, as 1.16, 1.18 and 1.22 printed them: endpoints that had sent small, large and split messages."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft._native import Channel
from weft.explain import protocols
from weft.explain.protocols import UNKNOWN, Lane, Row, Size

TEXTS = {path.stem: path.read_text() for path in (Path(__file__).parent / "texts").glob("*.txt")}
EAGER = "active message by ucp_am_send* from host memory"
RENDEZVOUS = "active message by ucp_am_send*(rndv) from host memory"
FRAGMENTED = "rendezvous fragmented copy-in copy-out"


def rows(name, operation):
    [found] = [table.rows for table in protocols.tables(TEXTS[name]) if table.operation == operation]
    return found


def sends(name):
    return [size for size in protocols.sizes(protocols.tables(TEXTS[name]), lends=True) if size.operation == "send"]


@pytest.mark.parametrize(
    ("name", "last"), [("posix-1.22", 579764), ("posix-1.18", None), ("posix-1.16", 579041), ("tcp-1.16", 272559)]
)
def test_tables_of_every_layout(name, last):
    found = protocols.tables(TEXTS[name])
    assert [table.name for table in found] == ["weft intra-node cfg#0"] * 3
    assert {table.operation for table in found} == {EAGER, RENDEZVOUS, EAGER.replace("from", "from iov[2]")}
    assert protocols.scope(found) == "intra-node cfg#0"
    assert rows(name, EAGER)[-1].last is None
    assert last is None or rows(name, EAGER)[-1].first == last


def test_rows():
    assert rows("posix-1.22", EAGER)[0] == Row(0, 92, "short", "posix/memory", estimated=False)
    assert rows("posix-1.22", RENDEZVOUS)[0] == Row(0, 0, "rendezvous no data fetch", "", estimated=True)


def test_units_of_sizes():
    text = "| x self cfg#1 | op |\n| 2K..1M | a | b |\n| 3 | c | d |\n| 1G..inf | e | f |"
    [table] = protocols.tables(text)
    assert [(row.first, row.last) for row in table.rows] == [(2048, 1 << 20), (3, 3), (1 << 30, None)]


def test_lanes_with_roles():
    assert protocols.lanes(TEXTS["tcp-1.16"], ["tcp/lo"]) == [Lane("tcp", "lo", "am am_bw#0 keepalive wireup")]
    assert protocols.lanes("", ["tcp/lo"]) == [Lane("tcp", "lo", UNKNOWN)]
    assert protocols.lanes(TEXTS["tcp-1.16"], []) == []


@pytest.mark.parametrize("name", TEXTS)
def test_sizes_of_a_send_have_neither_gap_nor_overlap(name):
    told = sends(name)
    assert told[0].first == 0
    assert told[-1].last is None
    assert all(after.first == before.last + 1 for before, after in itertools.pairwise(told))


def test_the_header_is_not_the_users():
    first = sends("posix-1.22")[0]
    assert (first.first, first.last, first.layer) == (0, 92 - Channel.header_nbytes, "UCX")


def test_weft_asks_for_rendezvous_before_ucx_would():
    assert sends("posix-1.22")[-2:] == [
        Size("send", 8249 - Channel.header_nbytes, (256 << 10) - 1, "multi-frag copy-in", "posix/memory", "UCX"),
        Size("send", 256 << 10, None, f"{FRAGMENTED} (expected)", "posix/memory", "UCX"),
    ]


def test_before_the_first_large_message_ucx_own_choice_is_told():
    found = [table for table in protocols.tables(TEXTS["posix-1.22"]) if table.operation != RENDEZVOUS]
    last = protocols.sizes(found, lends=False)[-1]
    assert (last.first, last.last, last.protocol) == (256 << 10, None, f"{FRAGMENTED} (expected)")


@pytest.mark.parametrize(("lends", "ways"), [(True, ["lend", "lend", "stage"]), (False, ["lend"])])
def test_what_weft_decides_is_told_too(lends, ways):
    by_weft = [size for size in protocols.sizes([], lends=lends) if size.layer == "weft"]
    assert [size.operation for size in by_weft] == ["send_frames"] * 2 + ways
    assert by_weft == protocols.by_weft(lends=lends)


@pytest.mark.parametrize("text", ["", "#\n", "# | weft intra-node cfg#0 |", "am_send: 0..<egr/short>..92", "| a | b |"])
def test_without_tables_it_is_unknown(text):
    found = protocols.tables(text)
    told = [size for size in protocols.sizes(found, lends=True) if size.operation == "send"]
    assert [(size.first, size.protocol, size.lanes) for size in told] == [
        (0, UNKNOWN, UNKNOWN),
        (256 << 10, UNKNOWN, UNKNOWN),
    ]


def test_a_row_that_cannot_be_read_leaves_its_sizes_unknown():
    text = TEXTS["posix-1.22"].replace("     93..8248 |", "   93 to 8248 |")
    [gap] = [size for size in protocols.sizes(protocols.tables(text), lends=True) if size.protocol == UNKNOWN]
    assert (gap.first, gap.last) == (61, (256 << 10) - 1)


@settings(max_examples=50)
@given(st.lists(st.one_of(st.text("|+-#. 0123456789KMGinfcg"), st.sampled_from(TEXTS["posix-1.22"].splitlines()))))
def test_any_text_is_borne(lines):
    text = "\n".join(lines)
    told = [size for size in protocols.sizes(protocols.tables(text), lends=True) if size.operation == "send"]
    assert (told[0].first, told[-1].last) == (0, None)
    assert all(after.first == before.last + 1 for before, after in itertools.pairwise(told))
    protocols.lanes(text, ["tcp/lo"])
    protocols.scope(protocols.tables(text))
