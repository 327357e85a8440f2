# SPDX-License-Identifier: BSD-3-Clause
"""The halves of conversations put together, and the table of them."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from distributed.comm import CommClosedError
from rich.console import Console

import weft
from weft.dask.observe.pairs import Pair, Transports, join, named, transports


def row(
    sent: int = 0, received: int = 0, *, lent: int = 0, address: str = "ucx://x:1", errors: int = 0
) -> dict[str, Any]:
    return {
        "address": address,
        "lanes": ["ring/memory"],
        "sent_messages": int(bool(sent)),
        "sent_nbytes": sent,
        "sent_seconds": 0.5,
        "lent_messages": int(bool(lent)),
        "lent_nbytes": lent,
        "received_messages": int(bool(received)),
        "received_nbytes": received,
        "borrowed_messages": 0,
        "borrowed_nbytes": 0,
        "bandwidth_Bps": 1e9 if sent > lent else None,
        "errors": errors,
    }


def report(process: str, **peers: dict[str, Any]) -> dict[str, Any]:
    return {"process": process, "peers": peers}


def test_a_direction_is_counted_once_and_by_its_sender() -> None:
    pairs = join({"a": "0", "b": "1"}, [report("a", b=row(100, 7)), report("b", a=row(8, 99))])
    assert [(p.source, p.destination, p.nbytes, p.seconds) for p in pairs] == [("0", "1", 100, 0.5), ("1", "0", 8, 0.5)]


def test_who_was_not_asked_is_known_from_its_receiver_and_by_its_address() -> None:
    (pair,) = join({"a": "scheduler"}, [report("a", nanny=row(0, 50, address="ucx://h:9"))])
    assert (pair.source, pair.destination, pair.nbytes) == ("ucx://h:9", "scheduler", 50)
    assert pair.seconds is None
    assert pair.bandwidth_Bps is None


def test_processes_without_a_port_are_told_apart() -> None:
    gone = {name: row(0, 50, address="ucx://127.0.0.1:0") for name in ("3f2a99", "77bb12")}
    pairs = join({"a": "scheduler"}, [report("a", **gone)])
    assert [p.source for p in pairs] == ["ucx://127.0.0.1:0 (3f2a)", "ucx://127.0.0.1:0 (77bb)"]


def test_the_same_process_twice_counts_once() -> None:
    both = report("a", a=row(100, 100))
    (pair,) = join(named([("a", "0"), ("a", "1")]), [both, both])
    assert (pair.source, pair.destination, pair.nbytes) == ("0, 1", "0, 1", 100)


def test_lent_memory_is_a_lane() -> None:
    (pair,) = join({}, [report("a", b=row(100, lent=60))])
    assert pair.lanes == ("ring/memory", "lent")
    assert (pair.lent_nbytes, pair.lent_messages) == (60, 1)


def test_how_fast_a_receiver_had_it_is_told_of_lent_memory_too() -> None:
    halves = [report("a", b=row(100, lent=100)), report("b", a=row(0, 100))]
    (pair,) = join({"a": "0", "b": "1"}, halves, {("a", "b"): 5e9, ("b", "a"): 1e9})
    assert (pair.bandwidth_Bps, pair.requests_Bps) == (None, 5e9)
    (seen,) = join({"b": "1"}, halves[1:], {("a", "b"): 5e9})
    assert seen.requests_Bps == 5e9


def test_a_comm_that_broke_before_it_sent_is_told() -> None:
    (pair,) = join({}, [report("a", b=row(errors=1))])
    assert (pair.messages, pair.errors) == (0, 1)


PAIRS = [
    Pair("0", "1", ("ring/memory", "lent"), 1234, 3 << 30, 2 << 30, 56, 1.5, 8.126e9, 0, 21.3e9),
    Pair("<b>", "scheduler", ("tcp/eth0",), 1, 100, 0, 0, None, None, 2),
]


def test_rows_are_json() -> None:
    rows = json.loads(Transports(PAIRS).to_json())
    assert rows == Transports(PAIRS).rows
    assert rows[0]["lanes"] == ["ring/memory", "lent"]
    assert rows[0]["bandwidth_Bps"] == 8.126e9
    assert rows[1]["seconds"] is None


def test_the_table_prints_itself() -> None:
    text = str(Transports(PAIRS))
    for word in ("ring/memory, lent", "1,234", "3 GiB", "2 GiB", "in 56", "8.13 GB/s", "21.3 GB/s", "scheduler"):
        assert word in text
    console = Console(width=80, color_system=None)
    with console.capture() as capture:
        console.print(Transports(PAIRS))
    assert max(map(len, capture.get().splitlines())) <= 80
    assert "8.13 GB/s" in capture.get()


def test_the_addresses_of_workers_without_names_are_printed_whole() -> None:
    a, b = "ucx://192.168.100.103:33963", "ucx://192.168.100.104:33964"
    assert f" {a}  {b} " in str(Transports([dataclasses.replace(PAIRS[0], source=a, destination=b)]))


def test_a_long_table_says_what_it_leaves_out() -> None:
    table = Transports(PAIRS * 50)
    assert "60 more pairs are in .rows" in str(table)
    assert len(table.rows) == 100
    assert repr(table) == "<weft.dask.Transports, 100 pairs>"


def test_a_notebook_shows_names_as_they_are() -> None:
    page = Transports(PAIRS)._repr_html_()
    assert "<td>&lt;b&gt;</td>" in page
    assert page.count("<tr>") == 3


class Cluster:
    """As much of a client as is asked, of a cluster whose workers answer so."""

    def __init__(self, scheme: str = "ucx", **answers: Any) -> None:
        self.answers = {f"{scheme}://{name}": answer for name, answer in answers.items()}
        self.scheduler = SimpleNamespace(address=f"{scheme}://s")

    async def run(self, ask: object, *, on_error: str = "raise") -> dict[str, Any]:
        errors = [answer for answer in self.answers.values() if isinstance(answer, Exception)]
        if errors and on_error == "raise":
            raise errors[0]
        assert on_error in ("raise", "return")
        return self.answers

    async def run_on_scheduler(self, ask: object) -> dict[str, Any]:
        return report("s", a=row(5)) | {"requests": {}}

    def sync(self, ask: Callable[..., Any], *args: Any) -> Any:
        return asyncio.run(ask(*args))


def test_a_worker_that_has_just_died_is_counted() -> None:
    died = CommClosedError("the peer's process has ended")
    cluster = Cluster(a=report("a", b=row(100)) | {"name": "0"}, b=died)
    table = transports(cluster)
    assert ("0", 100) in {(pair.source, pair.nbytes) for pair in table.pairs}
    assert "1 worker did not answer" in str(table)
    assert "1 worker did not answer" in table._repr_html_()
    assert "2 workers did not answer" in str(Transports(PAIRS, 2))
    assert "did not answer" not in str(Transports(PAIRS))


def test_a_cluster_without_ucx_has_no_rows_of_another() -> None:
    answers = {"a": report("a", b=row(100)) | {"name": "0"}}
    assert transports(Cluster("tcp", **answers)).rows == []
    assert transports(Cluster("ucx", **answers)).rows != []


@pytest.mark.parametrize("client", [None, "ucx://127.0.0.1:8786"])
def test_what_is_no_client_is_refused(client: object) -> None:
    with pytest.raises(weft.InvalidParamError, match=r"is not a distributed\.Client"):
        transports(client)


def test_what_fails_at_a_worker_is_raised() -> None:
    with pytest.raises(ModuleNotFoundError, match="no weft there"):
        transports(Cluster(a=ModuleNotFoundError("no weft there")))
