# SPDX-License-Identifier: BSD-3-Clause
"""Two loops of one host that call each other at the same time: one link, one packet each way, and what may go wrong."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import weft
from weft._connect import handshake_io, links, local

TIMEOUT_S = 20


async def echo(peer: weft.Peer) -> None:
    while True:
        try:
            await peer.send(await peer.recv())
        except weft.Error:
            return


class Both:
    """Two loops, each in its thread and with a listener. Neither reads before both have sent their first packet."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.packets = 0
        self.errors: list[BaseException] = []
        self.listening, self.sent, self.done = (threading.Barrier(2, timeout=TIMEOUT_S) for _ in range(3))
        self.addresses: dict[int, str] = {}
        send, lock, called = handshake_io._send_packet, threading.Lock(), set[int]()

        def counted(sock: Any, packet: local.Packet) -> None:
            send(sock, packet)
            with lock:
                self.packets += 1
                first = threading.get_ident() not in called
                called.add(threading.get_ident())
            if first:
                self.sent.wait()

        monkeypatch.setattr(handshake_io, "_send_packet", counted)

    def run(self, talk: Callable[[weft.Peer], Coroutine[Any, Any, None]]) -> None:
        threads = [threading.Thread(target=self._thread, args=(number, talk)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * TIMEOUT_S)
        if self.errors:
            raise self.errors[0]

    def _thread(self, number: int, talk: Callable[[weft.Peer], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            async with asyncio.timeout(TIMEOUT_S), weft.listen("127.0.0.1:0", echo) as listener:
                self.addresses[number] = listener.address
                self.listening.wait()
                async with weft.connect(self.addresses[1 - number]) as peer:
                    await talk(peer)
                await asyncio.to_thread(self.done.wait)

        try:
            asyncio.run(main())
        except BaseException as e:  # the test raises it
            self.errors.append(e)


async def talk(peer: weft.Peer) -> None:
    assert peer.transports == ["ring/memory"]
    for message in (b"small", b"large" * 100_000):
        await peer.send(message)
        assert bytes(await peer.recv()) == message


def test_calls_that_cross_share_a_link_and_take_one_packet_each_way(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[links.Call] = []
    take = links.Call.take
    monkeypatch.setattr(links.Call, "take", lambda call: (taken.append(call), take(call))[1])
    both = Both(monkeypatch)
    both.run(talk)
    assert both.packets == 4
    assert len(taken) == 1
    assert taken[0].channel is None, "the connection has it"


def test_a_side_that_does_not_know_of_crossing_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an older weft, which reads no `crossed`: its answer to the waiting call has no more than the link's name."""
    encode = local.encode

    def without(**message: Any) -> bytes:
        return encode(**{name: value for name, value in message.items() if name != "crossed"})

    monkeypatch.setattr(local, "encode", without)
    both = Both(monkeypatch)
    both.run(talk)
    assert both.packets == 6


def test_a_call_that_lost_its_link_to_another_connects_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other side has another link than the one that was made of this call's offer."""
    cross, tried = links.Call.cross, 0

    def elsewhere(call: links.Call, link: links.Link) -> None:
        nonlocal tried
        tried += 1
        cross(call, link)
        call.link = links.Link(link.worker, link.remote_id, "another", sock)

    monkeypatch.setattr(links.Call, "cross", elsewhere)
    both = Both(monkeypatch)
    with socket.socket() as sock:
        both.run(talk)
    assert tried == 1
