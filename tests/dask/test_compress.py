# SPDX-License-Identifier: BSD-3-Clause
"""Results are compressed for a link that is slower than the codec, and for no other."""

from __future__ import annotations

import os
from collections import deque
from typing import Any

import dask.config
import numpy as np
import pytest
from distributed.protocol import to_serialize
from tests.dask.ends import MIB, ends_here

import weft
import weft.dask
from weft.dask.learn import compress
from weft.dask.learn.compress import Speed

SLOW, FAST = 10e6, 10e9


@pytest.fixture(autouse=True)
def known_speeds(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = {"lz4": Speed(600e6, 0.55), "zstd": Speed(200e6, 0.4)}
    monkeypatch.setattr(compress, "speed", speeds.__getitem__)


@pytest.mark.parametrize(
    ("rate_Bps", "reads", "codec"),
    [
        (SLOW, ["zstd", "lz4"], "zstd"),
        (SLOW, ["lz4"], "lz4"),
        (20e6, ["zstd", "lz4"], "zstd"),
        (65e6, ["zstd", "lz4"], "lz4"),
        (95e6, ["zstd", "lz4"], None),  # it would be there in 0.71 of the time
        (FAST, ["zstd", "lz4"], None),
        (None, ["zstd", "lz4"], None),
        (SLOW, [], None),
        (SLOW, ["brotli", 7, None], None),
        (SLOW, None, None),
        (SLOW, 7, None),
    ],
)
def test_the_codec_is_what_brings_data_soonest(rate_Bps: float | None, reads: Any, codec: str | None) -> None:  # noqa: N803
    assert compress.choose(rate_Bps, reads) == codec


def test_a_codec_is_measured_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert {"lz4", "zstd"} <= set(compress.readable())
    for name in compress.readable():
        measured = compress.speed(name)
        assert measured.bytes_a_second > 1e6
        assert 0.1 < measured.ratio < 0.9
        assert compress.speed(name) is measured


@pytest.mark.parametrize("to", ["process", "host"])
@pytest.mark.parametrize(
    ("links", "same_host", "rate_Bps", "text", "codecs"),
    [
        ("learn", False, SLOW, True, ["zstd"]),
        ("learn", False, SLOW, False, ["zstd"]),  # noise does not shrink
        ("learn", False, FAST, True, []),
        ("learn", True, SLOW, True, []),
        ("observe", False, SLOW, True, []),
    ],
)
async def test_results_shrink_on_a_slow_link(
    links: str,
    same_host: bool,
    rate_Bps: float,  # noqa: N803
    text: bool,
    codecs: list[str],
    to: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = weft.dask.UCX.__init__

    def make(comm: weft.dask.UCX, peer: weft.Peer, **more: Any) -> None:
        peer.same_host = same_host
        made(comm, peer, **more)

    monkeypatch.setattr(weft.dask.UCX, "__init__", make)
    data = b"weft " * (MIB // 5) if text else os.urandom(MIB)
    with dask.config.set({"weft.links": links}):
        async with ends_here() as (here, there):
            traffic = here._traffic.with_process
            monkeypatch.setattr(traffic, "rates_Bps", deque([rate_Bps] if to == "process" else []))
            monkeypatch.setattr(here._traffic, "_to_host", deque([rate_Bps]))
            monkeypatch.setattr(traffic, "lanes", ())
            sent = await here.write({"status": "OK", "data": {"x": to_serialize(np.frombuffer(data, "u1"))}})
            message = await there.read()
            assert message["data"]["x"].tobytes() == data
            assert (sent < MIB // 2) is (codecs == ["zstd"] and text)
            assert list(traffic.lanes) == codecs
