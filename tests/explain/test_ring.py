# SPDX-License-Identifier: BSD-3-Clause
"""Connections that weft's own ring carries, explained: from what a channel tells, without UCX."""

import dataclasses
import itertools
import json
import subprocess
import sys

import pytest

import weft
from weft import explain
from weft._native import Channel
from weft.explain import ring
from weft.explain.reasons import KNOWN


class OverRing:
    """What a channel, or a link, tells whose messages the ring carries."""

    handle = 0

    def __init__(self, transports=(ring.LANE,)):
        self.transports = list(transports)

    def print_info(self):
        return ""

    def evaluate_perf(self, nbytes):
        return None


class Sizes:
    """`Channel`'s sizes, on a machine where the last `small` bytes go through small pieces."""

    def __init__(self, small):
        self.last_small_nbytes = lambda: small

    def __getattr__(self, name):
        return getattr(Channel, name)


ENDS = {"same_host": True, "local_address": "127.0.0.1:1", "remote_address": "127.0.0.1:2", "remote": {}}


def explained(channel=None):
    return explain.explain(channel or OverRing(), config={}, why_ucx=None, **ENDS)


def test_it_is_a_lane_with_a_name_of_its_own():
    told = explained()
    assert [(lane.transport, lane.device, lane.roles) for lane in told.lanes] == [("ring", "memory", "messages")]
    assert told.lines == ("UCX is not used", "weft intra-node message(ring/memory)")
    assert (told.ucx, told.endpoint, told.why_ucx, told.settings) == ("", "", "", {})
    assert all(time.predicted_s is None for time in told.times)


@pytest.mark.parametrize("small", [0, 8 << 20])
def test_every_size_of_a_send_is_told_once(monkeypatch, small):
    monkeypatch.setattr(ring, "Channel", Sizes(small))
    sends = [size for size in explained().sizes if size.operation == "send"]
    assert (sends[0].first, sends[-1].last) == (0, None)
    assert all(after.first == before.last + 1 for before, after in itertools.pairwise(sends))
    assert sends[0].last + Channel.header_nbytes == Channel.whole_nbytes
    assert [size.first for size in sends[2:]] == [Channel.rendezvous_nbytes, *([small + 1] if small else [])]
    assert sends[-1].protocol.endswith("; the last 8 MiB in pieces of 8 KiB" if small else "then pieces of 32 KiB")
    assert {(size.lanes, size.layer) for size in sends} == {(ring.LANE, "weft")}


def test_what_is_lent_and_staged_is_told():
    handed = [(size.operation, size.first, size.last) for size in explained().sizes if "handed over" in size.protocol]
    assert handed == [
        ("lend", Channel.lend_nbytes, None),
        ("stage", Channel.stage_nbytes, Channel.stage_limit_nbytes),
    ]


def test_each_transport_of_ucx_has_its_reason():
    used, *others = explained().transports
    assert (used.transport, used.chosen) == ("ring", True)
    assert {each.transport for each in others} == set(KNOWN)
    assert {each.reason for each in others} == {"weft's own ring carries messages between two processes of one host"}
    assert {each.evidence for each in others} == {"UCX_TLS: not set; set it to have UCX carry them"}
    assert not any(each.chosen for each in others)


def test_it_prints_within_a_page_and_as_json():
    told = explained()
    text = str(told)
    assert max(map(len, text.splitlines())) <= 120
    assert text.splitlines()[:2] == ["127.0.0.1:1 -> 127.0.0.1:2, on this host", "UCX is not used"]
    assert f"\n{ring.LANE}   messages\n" in text
    record = json.loads(json.dumps(told.json()))
    assert record["lanes"] == [{"transport": "ring", "device": "memory", "roles": "messages"}]
    assert record["lines"][1] == "weft intra-node message(ring/memory)"


def test_a_caller_over_a_unix_socket_has_no_port():
    told = dataclasses.replace(explained(), local_address="127.0.0.1:0")
    assert str(told).splitlines()[0] == "127.0.0.1 -> 127.0.0.1:2, on this host"


def test_a_peer_that_was_lost():
    with pytest.raises(weft.PeerLostError, match="its lanes with it"):
        explained(OverRing(transports=()))


def test_a_new_link_is_told_of(capfd):
    explain.announce(OverRing(), {}, why_ucx=None, same_host=True)
    assert capfd.readouterr().err == "UCX is not used\nweft intra-node message(ring/memory)\n"


@pytest.mark.parametrize(
    ("why", "same_host", "end"),
    [("UCX_TLS is set", True, "tag(tcp/lo), not weft's ring: UCX_TLS is set\n"), ("", False, "tag(tcp/lo)\n")],
)
def test_a_new_link_of_ucx_on_this_host_is_told_of_with_the_reason(why, same_host, end, capfd):
    explain.announce(OverRing(["tcp/lo"]), {}, why_ucx=why, same_host=same_host)
    assert capfd.readouterr().err.endswith(end)


@pytest.mark.parametrize(
    ("why", "same_host", "apart", "said"),
    [
        ("a GPU is visible", True, "", ("a GPU is visible", "what both sides reported in the handshake")),
        ("", True, "", ("unknown", "what both sides reported in the handshake")),
        ("", False, "it is on another host", ("works within one host only", "it is on another host")),
    ],
)
def test_why_ucx_carries_it(why, same_host, apart, said):
    verdict = ring.verdict_of_ucx(why, same_host=same_host, apart=apart)
    assert (verdict.transport, verdict.chosen, verdict.reason, verdict.evidence) == ("ring", False, *said)


def test_no_ucx_is_loaded_for_it():
    code = """
import sys
from tests.explain import test_ring
print(test_ring.explained())
assert "libuc" not in open("/proc/self/maps").read()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100, stdout=subprocess.DEVNULL)
