# SPDX-License-Identifier: BSD-3-Clause
"""From whom each of many gets one value: a chain by itself, over hosts that differ, and after deaths."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from weft.links.fanout import Chain, Parent, piece_nbytes

MiB = 1 << 20
FAST, SLOW = 1e-8, 1e-6


def chain_of(*members: str, rates: Mapping[str, float] | None = None) -> tuple[Chain, list[Parent | None]]:
    """Have workers join that are called by their host and a letter, as ``h1a``; ``h0a`` has the value."""
    chain = Chain("h0a", "h0", 100 * MiB)
    return chain, [chain.join(each, each[:-1], lambda host: (rates or {}).get(host, FAST), 0.0) for each in members]


def test_each_hangs_on_the_tail() -> None:
    _, parents = chain_of("h1a", "h2a", "h3a", "h4a")
    assert parents == [Parent("h0a"), Parent("h1a"), Parent("h2a"), Parent("h3a")]


def test_a_value_goes_into_each_host_once() -> None:
    _, parents = chain_of("h1a", "h1b", "h2a", "h1c", "h2b", "h0b")
    assert parents == [
        Parent("h0a"),
        Parent("h1a", lent=True),
        Parent("h1a"),
        Parent("h1a", lent=True),
        Parent("h2a", lent=True),
        Parent("h0a", lent=True),
    ]


def test_nobody_fast_waits_for_somebody_slow() -> None:
    chain = Chain("h0a", "h0", 100 * MiB)
    assert chain.join("far", "f", lambda _: SLOW, 0.0) == Parent("h0a")
    assert chain.join("near", "n", lambda _: FAST, 0.0) == Parent("h0a"), "twice as long as alone, not a hundred times"
    assert chain.join("nearer", "m", lambda _: FAST, 0.0) == Parent("near")


def test_those_behind_one_that_died_go_to_those_before_it() -> None:
    chain, _ = chain_of("h1a", "h2a", "h3a", "h4a")
    assert chain.join("h3a", "h3", lambda _: FAST, 1.0, failed=["h2a"]) == Parent("h1a")
    assert chain.join("h5a", "h5", lambda _: FAST, 1.0) == Parent("h4a")
    chain.leave("h5a")
    assert chain.join("h6a", "h6", lambda _: FAST, 1.0) == Parent("h4a")


def test_nobody_waits_for_one_that_came_later() -> None:
    chain, _ = chain_of("h1a", "h2a", "h3a")
    assert chain.join("h1a", "h1", lambda _: FAST, 1.0, failed=["h0a"]) is None
    assert chain.join("h2a", "h2", lambda _: FAST, 1.0, failed=["h1a", "h0a"]) is None


def test_a_borrower_whose_lender_died_gets_it_itself_and_lends_it() -> None:
    chain, _ = chain_of("h1a", "h1b", "h1c")
    assert chain.join("h1b", "h1", lambda _: FAST, 1.0, failed=["h1a"]) == Parent("h0a")
    assert chain.join("h1c", "h1", lambda _: FAST, 1.0, failed=["h1a"]) == Parent("h1b", lent=True)


def test_one_that_waits_for_other_values_does_not_need_a_chain() -> None:
    def join(chain: Chain, name: str, beside: int, sends: int) -> Parent | None:
        return chain.join(name, name, lambda _: FAST, 0.0, beside_nbytes=beside * 100 * MiB, source_sends=sends)

    chain = Chain("h0a", "h0", 100 * MiB)
    assert [join(chain, f"h{i}", 7, i - 1) for i in range(1, 7)] == [Parent("h0a")] * 6, "all send their own to all"
    assert join(chain, "h7", 7, 8) == Parent("h1"), "the source has more to send than this one to receive"

    alone = Chain("h0a", "h0", 100 * MiB)
    assert [join(alone, f"h{i}", 0, i > 1) for i in (1, 2, 3)] == [Parent("h0a"), Parent("h1"), Parent("h2")]


def test_a_chain_ends_when_all_have_it() -> None:
    chain, _ = chain_of("h1a", "h2a", "h3a")
    chain.has_it("h1a")
    assert chain.under_way
    chain.has_it("h2a")
    chain.leave("h3a")
    assert not chain.under_way


@pytest.mark.parametrize("nbytes", [8 * MiB, 100 * MiB, 1 << 30, 1 << 40])
def test_pieces_are_between_1_and_8_mib(nbytes: int) -> None:
    assert MiB <= piece_nbytes(nbytes) <= 8 * MiB
