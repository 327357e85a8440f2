# SPDX-License-Identifier: BSD-3-Clause
"""weft's keys in Dask's configuration: defaults, schema, variables, and that they do what they say."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import jsonschema
import pytest
import yaml
from distributed import Client, Scheduler, Worker
from distributed.comm import connect, listen
from distributed.comm.core import FatalCommClosedError
from tests.dask.ends import ends_across, ends_here

import weft.dask
from weft.dask import config
from weft.errors import InvalidParamError

LoopFactory = Callable[[], asyncio.AbstractEventLoop]

SCHEMA = yaml.safe_load((Path(weft.dask.__file__).parent / "weft-schema.yaml").read_text())


def test_every_key_has_a_default_that_its_schema_allows() -> None:
    jsonschema.validate(config.DEFAULTS, SCHEMA)
    described = SCHEMA["properties"]["weft"]["properties"]
    assert set(described) == set(config.DEFAULTS["weft"])
    assert all(key["description"] for key in described.values())


@pytest.mark.parametrize("wrong", [{"lend": "maybe"}, {"ucx": "tcp"}, {"ucx": {"tls": {}}}, {"lending": True}])
def test_the_schema_refuses(wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"weft": wrong}, SCHEMA)


def test_defaults_are_what_dask_shows() -> None:
    assert dask.config.get("weft") == config.DEFAULTS["weft"]


def test_a_configuration_that_was_cleared_gives_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask.config, "global_config", {})
    monkeypatch.setattr(dask.config, "config", {})
    assert (config.lend(), config.arrays_in_pool(), config.ucx()) == (True, True, {})


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        ({}, {}),
        (None, {}),
        ({"tls": "tcp,self", "net-devices": "eth0"}, {"TLS": "tcp,self", "NET_DEVICES": "eth0"}),
        (
            {"NET_DEVICES": ["eth0", "mlx5_0:1"], "Max_Rndv_Rails": 2},
            {"NET_DEVICES": "eth0,mlx5_0:1", "MAX_RNDV_RAILS": "2"},
        ),
        ({"tls": None, "net-devices": "eth0"}, {"NET_DEVICES": "eth0"}),
        ({"proto-info": True, "mm_error_handling": False}, {"PROTO_INFO": "y", "MM_ERROR_HANDLING": "n"}),
    ],
)
def test_settings_by_ucx_names(given: Any, settings: dict[str, str]) -> None:
    with dask.config.set({"weft.ucx": given}):
        assert config.ucx() == settings


def test_settings_of_distributed_ucxx_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_NET_DEVICES", "eth1")
    environment = {"tls": "tcp,self", "net-devices": "eth0", "memtrack-dest": "stdout"}
    with dask.config.set({"distributed-ucxx.environment": environment, "weft.ucx": {"tls": "posix,self"}}):
        assert config.ucx() == {"TLS": "posix,self", "MEMTRACK_DEST": "stdout"}
    with dask.config.set({"distributed.comm.ucx.environment": {"tls": "tcp"}}):
        assert config.ucx() == {"TLS": "tcp"}
    with dask.config.set({"distributed-ucxx.environment": "tcp"}), pytest.raises(weft.InvalidParamError, match="tcp"):
        config.ucx()


def test_settings_by_variables() -> None:
    code = "from weft.dask import config; print(config.ucx(), config.lend())"
    env = {"DASK_WEFT__UCX__NET_DEVICES": "eth0", "DASK_WEFT__UCX__TLS": "tcp,self", "DASK_WEFT__LEND": "false"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | env, capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stdout.strip() == "{'NET_DEVICES': 'eth0', 'TLS': 'tcp,self'} False"


@pytest.mark.parametrize("key", ["lend", "arrays_in_pool", "device", "rmm"])
def test_words_for_yes_and_no(key: str) -> None:
    for yes in (True, 1, "yes", "On", "y", "true"):
        with dask.config.set({f"weft.{key}": yes}):
            assert getattr(config, key)() is True
    for no in (False, 0, "no", "Off", "n", "False", "", None):
        with dask.config.set({f"weft.{key}": no}):
            assert getattr(config, key)() is False
    name = key.replace("_", "-")
    for neither in ("maybe", 3, [1], 0.5):
        refused = pytest.raises(InvalidParamError, match=re.escape(f"weft.{name}: {neither!r} is neither"))
        with dask.config.set({f"weft.{key}": neither}), refused:
            getattr(config, key)()


def test_settings_without_a_name_are_refused() -> None:
    """Dask itself would put the default in place of it, without a word."""
    code = "from weft.dask import config; config.ucx()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"DASK_WEFT__UCX": "tcp"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "InvalidParamError: weft.ucx: 'tcp' is not a mapping" in done.stderr
    assert "DASK_WEFT__UCX__TLS" in done.stderr


async def test_settings_reach_both_sides_of_a_connection(loop_factory: LoopFactory) -> None:
    with dask.config.set({"weft.ucx": {"tls": "tcp,self"}}):
        async with ends_across(loop_factory) as (a, b):
            assert a.transports == b.transports == ["tcp/lo"]
            await a.write({"x": 1})
            assert await b.read() == {"x": 1}


async def test_a_setting_that_ucx_does_not_know_is_named() -> None:
    refused = pytest.raises((InvalidParamError, OSError), match="NO_SUCH")
    with dask.config.set({"weft.ucx": {"tls": "posix,self", "no-such": 1}}), refused:
        async with ends_here():
            pass


async def test_settings_that_leave_no_device_end_a_connect_at_once() -> None:
    async with listen("ucx://127.0.0.1:0", print) as listener:
        refused = pytest.raises(FatalCommClosedError, match="UCX found no device with TLS=nonsense")
        with dask.config.set({"weft.ucx": {"tls": "nonsense"}}), refused:
            await connect(listener.contact_address, timeout=1000)


@pytest.mark.parametrize(
    "wrong", [{"lend": 3}, {"device": "banana"}, {"rmm": "si"}, {"encrypted-payload": "foo"}, {"ucx": "tcp"}]
)
async def test_who_begins_to_listen_hears_which_key_is_wrong(wrong: dict[str, Any]) -> None:
    [key] = wrong
    with dask.config.set({f"weft.{key}": wrong[key]}), pytest.raises(InvalidParamError, match=f"weft.{key}: "):
        async with listen("ucx://127.0.0.1:0", print):
            pass


async def test_a_scheduler_listens_on_both_protocols() -> None:
    hosts = {"protocol": ["ucx", "tcp"], "host": ["127.0.0.1"] * 2, "port": [0, 0]}
    async with Scheduler(**hosts, dashboard=False, dashboard_address=":0") as scheduler:
        ucx, tcp = (listener.contact_address for listener in scheduler.listeners)
        async with (
            Worker(ucx, nthreads=1) as worker,
            Client(tcp, asynchronous=True) as over_tcp,
            Client(ucx, asynchronous=True) as over_ucx,
        ):
            assert worker.address.startswith("ucx://")
            assert await over_tcp.submit(sum, [1, 2, 3]) == 6
            assert await over_ucx.submit(sum, [4, 5]) == 9


def test_the_page_has_every_key() -> None:
    page = Path(__file__).parents[2] / "docs/dask.md"
    rows = [line.split("|")[1].strip(" `") for line in page.read_text().splitlines() if line.startswith("| `weft.")]
    assert sorted(rows) == sorted(f"weft.{key}" for key in config.DEFAULTS["weft"])


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("lnd", "did you mean weft.lend?"),
        ("arrays_in_pol", "did you mean weft.arrays-in-pool?"),
        ("x", "weft has claim-ucx,"),
    ],
)
def test_a_key_that_weft_does_not_have_is_told(key: str, hint: str, caplog: pytest.LogCaptureFixture) -> None:
    with dask.config.set({f"weft.{key}": False, "weft.arrays_in_pool": True}):
        config.check()
    (said,) = caplog.messages
    assert said.startswith(f"weft.{key.replace('_', '-')} in Dask's configuration has no effect; {hint}")


@pytest.mark.parametrize("given", [None, True, {1: 2}])
def test_a_section_that_is_none_stops_nobody(given: Any) -> None:
    with dask.config.set({"weft": given}):
        config.check()
