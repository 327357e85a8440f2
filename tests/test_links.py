# SPDX-License-Identifier: BSD-3-Clause
"""What a worker keeps of its links."""

import pytest
from scripts import fuzz_handshake as fuzz

from weft import links


@pytest.fixture
def worker(monkeypatch):
    monkeypatch.setattr(links, "_native", fuzz.PAPER)
    return links.LocalWorker(None, same_host=True)


@pytest.mark.parametrize("decides", ["here", "there"])
def test_lost_links_go_when_new_ones_come(worker, decides):
    for number in range(100):
        remote_id = f"{number:032x}"
        if decides == "here":
            link, _ = fuzz.next_value(worker.decide(remote_id))
        else:
            link = worker.obey(remote_id, {"id": "1", "new": True}, "accept")
        link.prepare("peer")
        link.settle()
        if number:  # the first one stays
            link.native.close()
    assert sorted(worker.links) == ["0" * 32, remote_id]


@pytest.mark.parametrize(("value", "wanted"), [("", False), ("0", False), ("n", False), ("1", True), ("y", True)])
def test_whether_new_endpoints_are_told_of(value, wanted, monkeypatch):
    monkeypatch.setenv("WEFT_EXPLAIN", value)
    assert links._told_of() is wanted
