# SPDX-License-Identifier: BSD-3-Clause
"""What the model of links predicts: without samples, with them, with stalled ones, and when a link changes."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from weft.links import LinkModel, Place
from weft.links import model as links_model
from weft.topo.interconnect import PRIORS, InterconnectClass

MiB = 1 << 20


def model_of(hosts: dict[str, str]) -> LinkModel:
    model = LinkModel()
    for worker, host in hosts.items():
        model.place(worker, Place(host))
    return model


def feed(model: LinkModel, rate: float, *, pair: tuple[str, str] = ("a", "b"), n: int = 12, now: float = 0.0) -> None:
    for i in range(n):
        nbytes = (1 + i % 3) * 4 * MiB
        assert model.observe(*pair, nbytes, nbytes / rate, now + i)


def rate_of(model: LinkModel, source: str, destination: str, now: float = 20.0) -> float:
    return 1 / model.predict(source, destination, now).seconds_per_byte


def test_without_samples_it_is_the_prior_of_the_kind() -> None:
    model = model_of({"a": "h", "b": "h", "c": "i"})
    assert rate_of(model, "a", "b") == pytest.approx(PRIORS[InterconnectClass.SAME_HOST].bandwidth_Bps)
    assert rate_of(model, "a", "c") == pytest.approx(PRIORS[InterconnectClass.NETWORK].bandwidth_Bps)
    assert model.predict("a", "c", 0).source == "assumed"


def test_a_topology_names_the_kind() -> None:
    model = LinkModel()
    model.place("g0", Place("dgx", (("g1", InterconnectClass.NVLINK),)))
    model.place("g1", Place("dgx"))
    assert rate_of(model, "g0", "g1") == pytest.approx(PRIORS[InterconnectClass.NVLINK].bandwidth_Bps)


def test_a_pair_is_learned_with_its_latency_apart() -> None:
    model = model_of({"a": "h", "b": "i"})
    for i in range(20):
        model.observe("a", "b", 100, 5e-3, i)
        model.observe("a", "b", 8 * MiB, 5e-3 + 8 * MiB / 10e6, i)
    prediction = model.predict("a", "b", 20)
    assert prediction.source == "pair"
    assert prediction.latency_s == pytest.approx(5e-3, rel=0.2)
    assert prediction.seconds(100 * MiB) == pytest.approx(5e-3 + 100 * MiB / 10e6, rel=0.1)
    assert prediction.deviation < 0.2


def test_another_pair_of_the_same_hosts_knows_what_the_hosts_know_and_a_third_host_what_the_kind_does() -> None:
    model = model_of({"a": "h", "b": "i", "a2": "h", "b2": "i", "c": "j"})
    feed(model, 10e6)
    assert rate_of(model, "a2", "b2") == pytest.approx(10e6, rel=0.2)
    assert model.predict("a2", "b2", 20).source == "hosts"
    assert rate_of(model, "c", "b") == pytest.approx(10e6, rel=0.5)
    assert model.predict("c", "b", 20).source == "kind"
    assert model.predict("c", "b", 20).deviation > model.predict("a2", "b2", 20).deviation


def test_memory_types_are_apart() -> None:
    model = model_of({"a": "h", "b": "i"})
    feed(model, 10e6)
    assert 1 / model.predict("a", "b", 20, "cuda").seconds_per_byte > 1e9


def test_one_stalled_sample_changes_nothing() -> None:
    model = model_of({"a": "h", "b": "i"})
    feed(model, 100e6)
    before = rate_of(model, "a", "b")
    model.observe("a", "b", 8 * MiB, 30.0, 15)
    assert rate_of(model, "a", "b") == pytest.approx(before, rel=0.02)


def test_a_link_that_becomes_a_hundred_times_slower_is_followed_and_so_is_its_recovery() -> None:
    model = model_of({"a": "h", "b": "i"})
    feed(model, 100e6)
    feed(model, 1e6, n=4, now=20)
    assert rate_of(model, "a", "b", 25) == pytest.approx(1e6, rel=0.15)
    feed(model, 100e6, n=4, now=30)
    assert rate_of(model, "a", "b", 35) == pytest.approx(100e6, rel=0.15)


@pytest.mark.parametrize(("flows", "enough"), [(1.0, 3), (3.0, 1)])
@pytest.mark.parametrize("before", [4, 40])
def test_three_transfers_teach_that_a_link_is_a_hundred_times_slower_and_three_that_it_recovered(
    before: int, flows: float, enough: int
) -> None:
    """Of a link in mid-job: after how many samples is the prediction, of its pair and of its hosts, within 2x?

    Where the port was always shared, nothing was known of the pair but that it delivers as much: one is enough.
    """
    model = model_of({"a": "h", "b": "i", "a2": "h", "b2": "i"})

    def transfer(rate: float, now: float) -> bool:
        """Feed one; tell whether both are within 2x now."""
        model.observe("a", "b", 8 * MiB, 8 * MiB / (rate / flows), now, ingress_flows=flows)
        predicted = rate_of(model, "a", "b", now), rate_of(model, "a2", "b2", now)
        return all(rate / flows / 2 < each < 2 * rate for each in predicted)

    for i in range(before):
        transfer(100e6, float(i))
    slow = [transfer(1e6, before + float(i)) for i in range(20)]
    assert slow.index(True) + 1 == enough
    assert all(slow[enough - 1 :])
    again = [transfer(100e6, before + 20 + float(i)) for i in range(20)]
    assert again.index(True) + 1 == 3
    assert all(again[2:])


def test_a_link_that_is_fast_or_slow_by_turns_has_its_mean_and_its_spread() -> None:
    model = model_of({"a": "h", "b": "i"})
    rng = random.Random(1)
    for i in range(200):
        model.observe("a", "b", 8 * MiB, 8 * MiB / rng.choice([20e6, 120e6]), i)
    prediction = model.predict("a", "b", 200)
    assert 20e6 < 1 / prediction.seconds_per_byte < 120e6
    assert model.pairs["a", "b", "host"].rate.variance > 0.3


def test_what_is_old_falls_back_to_the_kind() -> None:
    model = model_of({"a": "h", "b": "i"})
    feed(model, 1e6)
    assert rate_of(model, "a", "b", 20) == pytest.approx(1e6, rel=0.2)
    assert rate_of(model, "a", "b", 40_000) > 300e6


@pytest.mark.parametrize(
    ("nbytes", "seconds", "flows"),
    [
        (-1, 1, 1),
        (0, 1, 1),
        (MiB, 0, 1),
        (MiB, -1, 1),
        (MiB, math.inf, 1),
        (MiB, math.nan, 1),
        (math.nan, 1, 1),
        (1e30, 1, 1),
        (MiB, 1e30, 1),
        (1 << 40, 1e-6, 1),
        (MiB, 1, 0),
        (MiB, 1, 1e30),
        (MiB, 1, math.nan),
        ("8", 1, 1),
        (MiB, None, 1),
    ],
)
def test_nonsense_is_refused(nbytes: float, seconds: float, flows: float) -> None:
    model = model_of({"a": "h", "b": "i"})
    feed(model, 10e6)
    before = model.predict("a", "b", 20)
    assert not model.observe("a", "b", nbytes, seconds, 20, ingress_flows=flows)
    assert model.predict("a", "b", 20) == before
    assert model.refused == 1


@pytest.mark.parametrize(("lent", "moved"), [(-1, 2), (math.nan, 1), (math.inf, 1), (0, 0), (1e30, 0)])
def test_a_lent_share_that_cannot_be_is_refused(lent: float, moved: float) -> None:
    model = LinkModel()
    assert not model.observe_lent("a", "b", lent, moved)
    assert model.refused == 1


def test_what_is_lent_takes_no_time_that_grows() -> None:
    model = model_of({"a": "h", "b": "h", "c": "h"})
    model.observe_lent("a", "b", 100 * MiB, 0)
    assert model.seconds("a", "b", 1 << 40, 0) == model.seconds("a", "b", 1, 0)
    assert model.seconds("a", "c", 1 << 40, 0) == model.seconds("a", "c", 1, 0), "the host's"
    for _ in range(30):
        model.observe_lent("a", "b", 0, MiB)
    assert model.seconds("a", "b", 1 << 30, 0) > 0.05


def test_transfers_at_the_same_time_teach_the_port_and_not_the_pair() -> None:
    model = model_of({"a": "h", "b": "i", "c": "j", "d": "k"})
    for i in range(10):
        for source in "abc":
            model.observe(source, "d", 8 * MiB, 8 * MiB / 10e6, i, ingress_flows=3)
    assert 1 / model.port_seconds_per_byte("ingress", "k") == pytest.approx(30e6, rel=0.1)
    assert rate_of(model, "a", "d") == pytest.approx(30e6, rel=0.1), "alone it would have the port"


def test_a_slow_pair_among_others_is_not_the_ports_doing() -> None:
    model = model_of({"a": "h", "b": "i", "c": "j", "d": "k"})
    for i in range(10):
        for source in "ab":
            model.observe(source, "d", 8 * MiB, 8 * MiB / 30e6, i, ingress_flows=3)
        model.observe("c", "d", 8 * MiB, 8 * MiB / 1e6, i, ingress_flows=3)
    assert rate_of(model, "c", "d") == pytest.approx(1e6, rel=0.2)
    assert rate_of(model, "a", "d") > 20e6


def test_links_differ_only_where_it_matters() -> None:
    model = model_of({"a": "h", "b": "i", "c": "j"})
    assert not model.differ
    feed(model, 100e6)
    feed(model, 120e6, pair=("a", "c"))
    assert not model.differ, "noise"
    feed(model, 10e6, pair=("b", "c"))
    assert model.differ
    model.forget("b")
    assert not model.differ


@pytest.mark.parametrize(("rate", "differ"), [(1e9, False), (100e6, True)])
def test_hosts_with_several_workers_differ_where_the_network_is_slow_beside_memory(rate: float, differ: bool) -> None:
    model = model_of({"a": "h", "b": "i", "c": "h"})
    assert not model.differ, "nothing is known of the network"
    feed(model, rate)
    assert model.differ is differ


def test_one_host_does_not_differ() -> None:
    assert not model_of({"a": "h", "b": "h", "c": "h"}).differ


def test_who_left_is_forgotten_but_its_hosts_are_not() -> None:
    model = model_of({"a": "h", "b": "i"})
    feed(model, 10e6)
    model.forget("a")
    assert model.pairs == {}
    model.place("a2", Place("h"))
    assert rate_of(model, "a2", "b") == pytest.approx(10e6, rel=0.2)
    model.forget("a2")
    model.forget("b")
    assert not model.workers()
    assert not model._of_worker  # pyright: ignore[reportPrivateUsage]


def test_a_decision_at_a_thousand_workers_visits_no_more_than_at_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """O(1): what is counted is how many levels are combined, not how long that takes."""
    looked: list[str] = []
    stock = links_model._refine  # pyright: ignore[reportPrivateUsage]

    def refine(known: Any, level: Any, name: str, now_s: float) -> Any:
        looked.append(name)
        return stock(known, level, name, now_s)

    monkeypatch.setattr(links_model, "_refine", refine)
    counts: list[list[str]] = []
    for n in (2, 1000):
        model = model_of({f"w{i}": f"h{i % 50}" for i in range(n)})
        model.observe("w0", "w1", 8 * MiB, 1.0, 0)
        model.observe("w0", "w1", 1, 1e-3, 0)
        looked.clear()
        model.predict("w0", "w1", 1)
        model.predict("w0", "w1", 2)
        counts.append([*looked])
    assert counts == [["kind", "hosts", "pair"]] * 2, "three levels, once"
