# SPDX-License-Identifier: BSD-3-Clause
"""What is said before a connection exists, without sockets and without UCX where they are not the point."""

import asyncio
import contextlib
import json
import os
import socket
import sys
import threading
import time

import pytest
from scripts import fuzz_handshake as fuzz

import weft
from weft import config
from weft._connect import admission, handshake, handshake_io, links, message
from weft._connect.admission import SameHostListener

FUZZ_CASES = int(os.environ.get("WEFT_TEST_FUZZ", "2000"))


def words(body, *, magic=b"WEFT", version=message.VERSION, nbytes=None):
    return message.HEAD.pack(magic, version, len(body) if nbytes is None else nbytes) + body


@pytest.fixture
def room(monkeypatch):
    monkeypatch.setattr(links, "_native", fuzz.PAPER)
    room = fuzz.Room()
    yield room
    room.close()


@pytest.fixture
def same_host():
    listener = SameHostListener()
    yield listener
    listener.close()


def outcome(room, side, stream):
    """Run one side of a handshake with `stream` until it wants more than there is."""
    steps = room.steps(side, fuzz.PaperWorkers(fuzz.LOW))
    answer, at = None, 0
    while True:
        step = steps.send(answer)
        answer = None
        if isinstance(step, handshake.UpTo):
            answer = b""
        elif not isinstance(step, bytes | handshake.Attend):
            assert step <= 1 << 16
            assert at + step <= len(stream), "it asks for more"
            answer, at = stream[at : at + step], at + step


@pytest.mark.parametrize("side", ["client", "server"])
@pytest.mark.parametrize(
    ("stream", "text"),
    [
        (b"GET / HTTP/1.1\r\n", "does not speak weft.*GET"),
        (words(b"{}", magic=b"weft"), "does not speak weft"),
        (
            b":" + bytes(7) + b"\1" + bytes(7),
            "it began with .*, as Dask's tcp:// does; use one",
        ),
        (words(b"{}", version=0), "version 0"),
        (words(b"{}", version=1), f"speaks version 1 of the handshake, this one {message.VERSION}"),
        (words(b"", nbytes=(1 << 16) + 1), "announced 65537 B"),
        (words(b"", nbytes=0xFFFFFFFF), "announced 4294967295 B"),
        (words(b"{"), "no JSON"),
        (words(b"\xff\xfe"), "no JSON"),
        (words(b"[" * 60_000), "no JSON.*(recursion|Expecting value|Stack overflow)"),  # 3.14's parser goes that deep
        (words(b"9" * 60_000), "no JSON.*digits"),
        (words(b"[]"), "list, not an object"),
        (words(b"{}"), "no valid 'info'"),
        (words(b'{"info": []}'), "no valid 'info'"),
    ],
    ids=lambda value: repr(value)[:20] if isinstance(value, bytes) else None,
)
def test_words_that_are_none(room, side, stream, text):
    with pytest.raises(weft.HandshakeError, match=text):
        outcome(room, side, stream)


def test_a_caller_of_another_version_hears_which_one_is_spoken():
    async def main():
        async with weft.listen("127.0.0.1:0", lambda peer: None) as listener:
            reader, writer = await asyncio.open_connection(*listener.address.split(":"))
            writer.write(words(b"{}" * 1000, version=message.VERSION + 1))
            magic, version, _ = message.HEAD.unpack(await reader.readexactly(message.HEAD.size))
            assert (magic, version) == (b"WEFT", message.VERSION)
            writer.close()
            await writer.wait_closed()

    asyncio.run(main())


#: A process whose weft speaks the version before this one's: it listens, and calls an address that it is told.
OLDER = """
import asyncio, sys, weft
from weft._connect import message
message.VERSION -= 1
async def main():
    async with weft.listen("127.0.0.1:0", lambda peer: None) as listener:
        print(listener.address, flush=True)
        address = (await asyncio.to_thread(sys.stdin.readline)).strip()
        try:
            await weft.connect(address)
        except weft.Error as e:
            print(type(e).__name__, e, flush=True)
asyncio.run(main())
"""


def test_two_versions_on_one_host(spawn, caplog):
    """Whoever calls has a named error at once; neither waits for the other to hang up."""
    older, newer = message.VERSION - 1, message.VERSION
    child = spawn(OLDER)
    text = f"the other side speaks version {older} of the handshake, this one {newer}"
    with pytest.raises(weft.ProtocolError, match=text):
        weft.connect(child.line()).open()

    async def main():
        async with weft.listen("127.0.0.1:0", lambda peer: peer.close()) as listener:
            child.say(listener.address)
            line = await asyncio.to_thread(child.line)
            assert line.startswith(
                f"ProtocolError connect to {listener.address}: the other side speaks version {newer}"
            )
            async with weft.connect(listener.address) as peer:  # others are served
                assert peer.transports

    asyncio.run(main())
    assert text in caplog.text


def test_a_refusal_is_told_and_its_length_bounded(room):
    with pytest.raises(weft.UnreachableError, match="refused: because") as caught:
        outcome(room, "client", words(b'{"error": "because %s"}' % (b"x" * 60_000)))
    assert len(str(caught.value)) < 1200


def test_an_address_that_is_too_short_for_one_does_not_reach_ucx(room):
    stream = words(b'{"info": {}}') + words(b'{"route": "network"}')
    link, segments = {"id": "1", "new": True}, config.tcp_segments({})
    asks = {"worker": fuzz.HIGH, "channel": "1", "link": link, "segments": segments}
    stream += words(json.dumps(asks).encode())
    with pytest.raises(weft.HandshakeError, match="address has 2 B"):
        outcome(room, "server", stream + words(b'{"address": "0000"}'))


def test_a_side_without_tcp_is_named(room):
    stream = words(b'{"info": {}}') + words(b'{"route": "network"}')
    asks = {"worker": fuzz.HIGH, "channel": "1", "link": {"id": "1", "new": True}, "segments": {}}
    with pytest.raises(weft.InvalidParamError, match="UCX_TLS excludes tcp there, but not here"):
        outcome(room, "server", stream + words(json.dumps(asks).encode()))


def test_who_claims_to_be_this_process_over_the_network_is_refused(room):
    """A link to oneself has no socket that tells of its end: a stranger must not get one."""
    stream = words(b'{"info": {}}') + words(b'{"route": "network"}')
    stream += words(b'{"worker": "%s", "channel": "1", "link": {"id": "1", "new": true}}' % fuzz.LOW.encode())
    with pytest.raises(weft.HandshakeError, match="claims to be this process"):
        outcome(room, "server", stream)


# ---- the side same_host --------------------------------------------------------------------------------------------


def caller_at(same_host):
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    caller.connect(b"\0" + same_host.name.encode())
    return caller


def test_a_caller_may_show_its_nonce_late(same_host):
    """Between its connect and its nonce, the handshake of another may look who is there."""
    nonce = b"0123456789abcdef"
    with caller_at(same_host) as caller:
        assert same_host.accept(b"x" * 16) is None
        caller.send(nonce[:5])
        assert same_host.accept(nonce) is None
        caller.send(nonce[5:])
        with same_host.accept(nonce) as taken:
            taken.send(b"welcome")
            assert caller.recv(10) == b"welcome"
        assert same_host.accept(nonce) is None


def test_callers_that_died_do_not_fill_the_same_host_listener(same_host, fds):
    before = fds()
    for i in range(600):
        with caller_at(same_host) as caller:
            caller.send(i.to_bytes(16, "little") * (1 + i % 2))
        assert same_host.accept(b"x" * 16) is None
    assert fds() == before


def test_callers_that_stay_make_room_for_the_newest(same_host, fds):
    with contextlib.ExitStack() as stack:
        for i in range(300):
            stack.enter_context(caller_at(same_host)).send(i.to_bytes(16, "little"))
            same_host.accept(b"x" * 16)
        assert len(same_host._callers) == 256
        assert same_host.accept((0).to_bytes(16, "little")) is None
        taken = same_host.accept((299).to_bytes(16, "little"))
        assert taken is not None
        taken.close()


@pytest.mark.parametrize("hello", [("{name}", "00" * 17), ("{name}", ""), ("other-{name}", "00" * 16), ("", "00" * 16)])
def test_a_listener_cannot_have_its_callers_write_to_any_socket(hello):
    """A stranger's hello names a Unix socket: only one of weft's is written to, and only a nonce."""
    name, nonce = hello
    name = name.format(name=f"weft-{os.urandom(8).hex()}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.setblocking(False)
        other.bind(b"\0" + (name or f"{os.urandom(8).hex()}").encode())
        other.listen()
        assert (
            handshake._prove_same_host({"unix": name, "nonce": nonce, "spaces": admission.own_namespaces()}, "connect")
            is None
        )
        with pytest.raises(BlockingIOError):
            other.accept()


# ---- time -----------------------------------------------------------------------------------------------------


def test_a_drip_does_not_outlast_the_deadline():
    """Whoever sends a byte now and then is turned away all the same."""

    def wants():
        yield 1 << 16

    mine, theirs = socket.socketpair()
    stop = threading.Event()

    def drip():
        with contextlib.suppress(OSError):
            while not stop.is_set():
                theirs.send(b"x")
                time.sleep(0.0005)

    thread = threading.Thread(target=drip)
    thread.start()
    with mine, theirs:
        with pytest.raises(weft.TimedOutError, match=r"no handshake within 0\.02 s"):
            handshake_io.run_blocking(wants(), mine, "accept", deadline=time.monotonic() + 0.02, timeout=0.02)
        stop.set()
        thread.join(100)


# ---- anything -------------------------------------------------------------------------------------------------


def test_spoiled_handshakes_end_with_named_errors(fds):
    before = fds()
    outcomes = fuzz.fuzz(FUZZ_CASES, seed=1)
    assert fds() == before
    assert outcomes.total() == FUZZ_CASES
    ends = {"connected", "HandshakeError"}
    assert {f"{side}: {end}" for side in ("client", "server", "near client", "near server") for end in ends} <= set(
        outcomes
    )


def test_the_fuzzer_finds_what_is_wrong(monkeypatch):
    monkeypatch.setattr(handshake, "channel_of", lambda message, what, name="channel": int(message[name], 16))
    with pytest.raises(fuzz.FindingError, match="seed 1, case"):
        fuzz.fuzz(FUZZ_CASES, seed=1)


def test_threads_that_accept_side_by_side_each_get_their_caller(same_host):
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    failures = []

    def call(number):
        try:
            for turn in range(100):
                nonce = b"%8d%8d" % (number, turn)
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
                    caller.connect(b"\0" + same_host.name.encode())
                    caller.send(nonce)
                    if (accepted := same_host.accept(nonce)) is None:
                        failures.append((number, turn))
                    else:
                        accepted.close()
        except Exception as e:
            failures.append(e)

    threads = [threading.Thread(target=call, args=[number]) for number in range(8)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch)
    assert not failures


def test_a_listener_that_a_signal_handler_closes_in_the_middle_is_closed(same_host, monkeypatch):
    def receive(_):
        same_host.close()
        return False

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.connect(b"\0" + same_host.name.encode())
        monkeypatch.setattr(same_host, "_receive", receive)
        assert same_host.accept(b"n" * 16) is None
        assert caller.recv(1) == b""
