# SPDX-License-Identifier: BSD-3-Clause
"""``weft explain`` as a whole: this process asks, a child answers."""

import concurrent.futures
import json
import re
import sys

import pytest

import weft
from weft import _cli as cli
from weft.explain import round_trip


def explained(capsys, *arguments):
    assert cli.main(["explain", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tls", "lane", "line"),
    [
        ("", "ring/memory", "weft intra-node message(ring/memory)"),
        ("tcp", "tcp/lo", "intra-node cfg#0 tag(tcp/lo), not weft's ring: UCX_TLS=tcp is set"),
    ],
    ids=["ring", "tcp"],
)
def test_a_child_on_this_host(tls, lane, line, capsys, monkeypatch):
    monkeypatch.delenv("UCX_NET_DEVICES", raising=False)
    monkeypatch.setattr(round_trip, "_MEASURE_S", 0.05)
    if tls:
        monkeypatch.setenv("UCX_TLS", tls)
    else:
        monkeypatch.delenv("UCX_TLS", raising=False)
    told = explained(capsys)
    assert told["lines"][1].endswith(line)
    assert [each["transport"] for each in told["transports"] if each["chosen"]] == [lane.partition("/")[0]]
    sends = [size for size in told["sizes"] if size["operation"] == "send"]
    assert {size["lanes"] for size in sends} == {lane}
    assert all(time["observed_s"] > 0 for time in told["times"])
    if tls:
        [posix] = [each for each in told["transports"] if each["transport"] == "posix"]
        assert (posix["reason"], posix["evidence"]) == ("excluded by UCX_TLS", "UCX_TLS=tcp, set by the environment")


@pytest.mark.parametrize("terminal", [True, False])
def test_on_a_terminal_it_says_what_the_other_machine_runs(terminal, monkeypatch, capsys):
    monkeypatch.setattr(round_trip, "_PATIENCE_S", 0.01)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    assert cli.main(["explain", "--listen", "127.0.0.1:0", "--once"]) == 1
    said = capsys.readouterr().out
    address = re.search(r"127\.0\.0\.1:\d+", said)[0]
    told = f"listening on {address}; on the other machine: weft explain {address}"
    assert said == (f"{told}\n" if terminal else f"{address}\n")


def test_nobody_calls(monkeypatch, capsys):
    monkeypatch.setattr(round_trip, "_PATIENCE_S", 0.01)
    assert cli.main(["explain", "--listen", "127.0.0.1:0", "--once"]) == 1
    assert capsys.readouterr().err == "weft explain: listen on 127.0.0.1:0: nobody was answered within 0.01 s\n"


@pytest.mark.parametrize("arguments", [[""], ["--listen", ""]])
def test_an_empty_address(arguments, capsys):
    assert cli.main(["explain", *arguments]) == 2
    assert capsys.readouterr().err == "weft explain: the address is empty: write HOST:PORT\n"


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("[fe80::1]:1", "a link-local address needs its network device: fe80::1%DEVICE"),
        ("[fe80::1%nodev]:1", "no such host or network device: "),
    ],
)
def test_a_link_local_address(address, why, capsys):
    assert cli.main(["explain", address]) == 1
    assert why in capsys.readouterr().err


def test_nobody_there(capsys):
    assert cli.main(["explain", "127.0.0.1:1"]) == 1
    assert "nothing listens there" in capsys.readouterr().err


def test_another_program_of_weft_s_answers(capsys):
    with weft.listen("127.0.0.1:0") as listener, concurrent.futures.ThreadPoolExecutor(1) as thread:
        done = thread.submit(lambda: listener.accept(100).abort())
        assert cli.main(["explain", listener.address]) == 1
        done.result(100)
    assert "what answers is not weft explain --listen; start that there" in capsys.readouterr().err


def test_an_address_and_listen(capsys):
    assert cli.main(["explain", "127.0.0.1:1", "--listen", "127.0.0.1:0"]) == 2
    assert "not both" in capsys.readouterr().err


def test_a_child_that_dies_at_once(monkeypatch):
    monkeypatch.setattr(round_trip.sys, "executable", "/bin/false")
    with pytest.raises(weft.UnreachableError, match="exited at once, with status 1"), round_trip.child():
        pass
