# SPDX-License-Identifier: BSD-3-Clause
"""Receives that are posted, cancelled and dropped at random: those that are left get every message, in order."""

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.test_peer import pair, run
from tests.tls_pair import tls_pair

READERS = ["recv", "recv_into", "recv_many"]
STEPS = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 4), st.sampled_from([8, 5_000, 300_000, 700_000])),
    st.tuples(st.just("post"), st.integers(1, 8), st.sampled_from(READERS)),
    st.tuples(st.just("give up"), st.sampled_from(["cancel", "drop"]), st.sets(st.integers(0, 3), min_size=1)),
    st.tuples(st.just("turns"), st.integers(1, 50), st.just(None)),
)


class Readers:
    """The receives of one end, in the order in which they were posted, and what the finished ones got."""

    def __init__(self, peer):
        self.peer, self.posted, self.got = peer, [], []

    def post(self, how, count=1):
        into = bytearray(1 << 20)
        arguments = {"recv": (), "recv_into": (into,), "recv_many": (count,)}[how]
        self.posted.append((how, getattr(self.peer, how)(*arguments), into))

    def settle(self):
        """Take what the first ones got. One that was cancelled, and that says so, got nothing."""
        while self.posted and self.posted[0][1].done():
            how, request, into = self.posted.pop(0)
            if request.cancelled():
                continue
            result = request.result()
            messages = result if how == "recv_many" else [into[:result] if how == "recv_into" else result]
            self.got += [int.from_bytes(bytes(each[:8]), "little") for each in messages]

    def give_up(self, how, which):
        """Cancel or drop some that are pending, all before a turn of the loop."""
        for i in sorted(which, reverse=how == "drop"):
            if i < len(self.posted) and not self.posted[i][1].done():
                if how == "drop":
                    del self.posted[i]
                else:
                    self.posted[i][1].cancel()


async def play(ends, steps):
    sender, receiver = ends
    readers, sent, requests = Readers(receiver), 0, []
    for step in steps:
        match step:
            case "send", count, nbytes:
                for _ in range(count):
                    requests.append(sender.send(sent.to_bytes(8, "little") * (nbytes // 8)))
                    sent += 1
            case "post", count, reader:
                readers.post(reader, count)
            case "give up", how, which:
                readers.give_up(how, which)
            case _, turns, _:
                for _ in range(turns):
                    await asyncio.sleep(0)
        readers.settle()
    for _, request, _ in readers.posted:
        request.cancel()
    readers.settle()
    while len(readers.got) < sent:
        readers.post("recv")
        await readers.posted[-1][1]
        readers.settle()
    assert readers.got == list(range(sent))
    await asyncio.gather(*requests)


@pytest.mark.parametrize("carrier", ["ring", "ucx", "tls"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(STEPS, min_size=3, max_size=30))
def test_no_message_is_lost_or_overtaken(carrier, steps):
    async def main():
        made = tls_pair() if carrier == "tls" else pair(settings={"TLS": "tcp"} if carrier == "ucx" else None)
        async with made as ends:
            await asyncio.wait_for(play(ends, steps), 10)

    run(main())
