# SPDX-License-Identifier: BSD-3-Clause
"""Dask's work on the hosts of a lab: which labs will do, and a tiny run (root and a kernel that permits it)."""

import json

import pytest

pytest.importorskip("distributed")
pytest.importorskip("dask.dataframe")

import weft
from weft import _cli as cli
from weft import lab
from weft.bench.common import lab_hosts
from weft.bench.dask import command, lab_clusters, rounds

TWO = {"hosts": {"a": {}, "b": {"cpus": "0"}}, "links": [{"between": ["a", "b"], "rate": "100mbit"}]}
FILE = '[hosts.a]\n[hosts.b]\n[[links]]\nbetween = ["a", "b"]\n'


def test_the_link_that_joins_all():
    links = [{"between": ["a", "b"]}, {"between": ["b", "c", "a"]}]
    assert lab_hosts.common_cable(lab.parse(TWO)) == 0
    assert lab_hosts.common_cable(lab.parse({"hosts": {"a": {}, "b": {}, "c": {}}, "links": links})) == 1


@pytest.mark.parametrize(
    "planned",
    [{"hosts": {"a": {}}}, {"hosts": {"a": {}, "b": {}, "c": {}}, "links": [{"between": ["a", "b"]}]}],
)
def test_labs_in_which_not_all_meet(planned):
    with pytest.raises(weft.InvalidParamError, match="two hosts, and one link between all"):
        lab_hosts.common_cable(lab.parse(planned))


def test_a_record_tells_of_its_lab():
    record = {"lab": lab_hosts.described(lab.parse(TWO))}
    assert json.loads(json.dumps(record)) == record
    assert lab_hosts.told(record) == "Hosts a, b: namespaces of one machine, joined by a cable (100mbit)"
    assert lab_hosts.told({}) == ""


@pytest.mark.parametrize(
    "other", [["--hosts", "a,b"], ["--interface", "lab0"], ["--type", "gpu"], ["--scheduler-address", "a:1"]]
)
def test_a_lab_has_its_own_hosts(other, monkeypatch, capsys):
    monkeypatch.setattr(lab_clusters, "run", lambda *_: pytest.fail("started nevertheless"))
    monkeypatch.setattr(rounds.importlib.util, "find_spec", lambda name: name)
    assert cli.main(["bench", "merge", "--lab", "two.toml", *other]) == 2
    assert "--lab" in capsys.readouterr().err


def test_what_the_first_host_is_told(monkeypatch):
    told = []
    monkeypatch.setattr(lab_clusters, "run", lambda args, *rest: told.append((args.lab.name, *rest)) or 7)
    assert cli.main(["bench", "transpose", "--lab", "two.toml", "-p", "ucx", "--threads-per-worker", "3"]) == 7
    assert told == [("two.toml", ["ucx"], command.Deployment(workers=1, threads=3), command.ON_HOST)]


@pytest.mark.slow
def test_a_merge_on_two_hosts(tmp_path, capfd):
    (tmp_path / "two.toml").write_text(FILE)
    record = tmp_path / "merge.json"
    given = "--protocol", "ucx", "--workers", "2", "-c", "5_000", "--ignore-size", "1KiB"
    runs = "--runs", "1", "--warmup-runs", "0", "--timeout", "200", "--json", str(record)
    try:
        with lab.Lab(lab.parse(TWO)):
            pass
    except weft.UnsupportedError as e:
        pytest.skip(str(e))
    status = cli.main(["bench", "merge", "--lab", str(tmp_path / "two.toml"), *given, *runs])
    said = capfd.readouterr()
    assert status == 0, said.err
    (entry,) = json.loads(record.read_text())["workloads"]
    assert entry["correct"]
    assert [address.split(":")[1] for address in entry["workers"]] == ["//10.77.0.1"] * 2 + ["//10.77.0.2"] * 2
    for pair in entry["pairs"]:
        beside = (pair["w1"] < 2) == (pair["w2"] < 2)
        used = set(pair["lanes"]) - {"lent"}
        assert used == {"ring/memory" if beside else "tcp/lab0"} or not (used or pair["transfers"]), pair
    assert set(entry["lanes"]) - {"lent"} == {"ring/memory", "tcp/lab0"}
    assert "Hosts a, b: namespaces of one machine" in said.out
