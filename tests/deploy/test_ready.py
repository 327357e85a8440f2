# SPDX-License-Identifier: BSD-3-Clause
"""Waiting for workers, with a client that only counts."""

import json

import pytest

pytest.importorskip("distributed", reason="Dask is not installed")

from weft.deploy import ready


class Client:
    """Has as many workers as `here`, whatever it is connected to."""

    here = 3
    calls: list[dict[str, object]]

    def __init__(self, **options):
        self.calls.append(options)
        if options.get("address") == "tcp://nobody:1":
            raise OSError("timed out trying to connect")
        self.scheduler = type("Rpc", (), {"address": options.get("address", "ucx://from-file:2")})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def wait_for_workers(self, n_workers, timeout):
        self.calls.append({"n_workers": n_workers, "timeout": timeout})
        if n_workers > self.here:
            raise TimeoutError("too few")

    def scheduler_info(self, n_workers):
        assert n_workers == -1
        return {"workers": dict.fromkeys(range(self.here))}


@pytest.fixture
def calls(monkeypatch):
    monkeypatch.setattr(Client, "calls", [], raising=False)
    monkeypatch.setattr(ready, "Client", Client)
    return Client.calls


@pytest.fixture
def plans(tmp_path):
    for i, workers in enumerate((1, 2)):
        (tmp_path / f"plan-{i}.json").write_text(json.dumps({"workers": [{}] * workers}))
    return [str(path) for path in sorted(tmp_path.glob("*.json"))]


def test_all_workers_of_all_plans(calls, plans, capsys):
    where = ["tcp://a:1", "/x/scheduler.json"]
    assert ready.main(["--timeout", "5", "--plans", *plans, "--schedulers", *where]) == 0
    assert capsys.readouterr().out == "tcp://a:1,ucx://from-file:2\n"
    waits = {"n_workers": 3, "timeout": 5.0}
    common = {"timeout": 5.0, "set_as_default": False}
    assert calls == [{"address": where[0], **common}, waits, {"scheduler_file": where[1], **common}, waits]


def test_too_few_are_counted(calls, plans, capsys, monkeypatch):
    monkeypatch.setattr(Client, "here", 2)
    assert ready.main(["--timeout", "5", "--plans", *plans, "--schedulers", "tcp://a:1"]) == 1
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "weft.deploy.ready: tcp://a:1: 2 of 3 workers within 5 s: too few\n")


def test_no_scheduler(calls, plans, capsys):
    assert ready.main(["--plans", *plans, "--schedulers", "tcp://nobody:1"]) == 1
    assert "tcp://nobody:1: 0 of 3 workers within 120 s: timed out" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[]", '{"workers": 3}', "weft worker: no GPU found"])
def test_what_is_no_plan(calls, tmp_path, text, capsys):
    (tmp_path / "plan").write_text(text)
    assert ready.main(["--plans", str(tmp_path / "plan"), "--schedulers", "tcp://a:1"]) == 1
    assert "is not what weft worker --plan --json prints" in capsys.readouterr().err
    assert calls == []


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "0", "1e300", "soon"])
def test_what_is_no_timeout(calls, plans, text, capsys):
    with pytest.raises(SystemExit) as ended:
        ready.main([f"--timeout={text}", "--plans", *plans, "--schedulers", "tcp://a:1"])
    assert ended.value.code == 2
    assert f"argument --timeout: '{text}'" in capsys.readouterr().err
    assert calls == []
