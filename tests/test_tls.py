# SPDX-License-Identifier: BSD-3-Clause
"""Connections that begin with TLS: who is let in, who is told what, and what may travel in the clear."""

import asyncio
import contextlib
import gc
import os
import socket
import ssl
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.certificates import Authority, authority, stranger

import weft
from weft._connect import encryption, handshake
from weft._connect.route import Route

LOOPBACK = "127.0.0.1:0"


def test_both_faces_and_both_ways():
    async def main():
        async def echo(peer):
            await peer.send(await peer.recv())

        async with weft.listen(LOOPBACK, echo, ssl=authority().listener(), info={"a": 1}) as listener:
            address = listener.address

            def blocking():
                with weft.connect(address, ssl=authority().connector()) as peer:
                    peer.send(b"x" * 300_000).wait(100)
                    return bytes(peer.recv().wait(100)), peer.remote, peer.transports

            assert await asyncio.to_thread(blocking) == (b"x" * 300_000, {"a": 1}, ["ring/memory"])
            async with weft.connect(address, ssl=authority().connector()) as peer:
                await peer.send(b"again")
                assert await peer.recv() == b"again"

    asyncio.run(main())


def test_a_blocking_listener_turns_away_and_goes_on(caplog):
    with weft.listen(LOOPBACK, ssl=authority().listener()) as listener:
        address = listener.address

        def call():
            with pytest.raises(weft.TlsError, match="requires TLS"):
                weft.connect(address, timeout=100).open()
            with weft.connect(address, ssl=authority().connector()) as peer:
                peer.send(b"x").wait(100)

        with ThreadPoolExecutor(1) as pool:
            calling = pool.submit(call)
            with listener.accept(100) as peer:
                assert peer.recv().wait(100) == b"x"
            calling.result(100)
    assert "does not speak TLS; it began with b'WEFT" in caplog.text


CASES = {
    "a listener that this side does not trust": (
        lambda: stranger().listener(),
        lambda: authority().connector(),
        weft.CertificateError,
        "this side refuses the other's certificate",
        "the other side refuses this one's certificate",
    ),
    "a connector that the listener does not trust": (
        lambda: authority().listener(),
        lambda: trusting(authority(), stranger()),
        weft.CertificateError,
        "the other side refuses this one's certificate",
        "this side refuses the other's certificate",
    ),
    "a connector that shows nothing": (
        lambda: authority().listener(),
        lambda: authority().connector(shows=False),
        weft.CertificateError,
        "the other side refuses this one's certificate, or wants one and got none",
        "the other side presented no certificate",
    ),
    "a connector without TLS": (
        lambda: authority().listener(),
        lambda: None,
        weft.TlsError,
        "the other side requires TLS",
        "does not speak TLS; it began with b'WEFT",
    ),
    "a listener without TLS": (
        lambda: None,
        lambda: authority().connector(),
        weft.TlsError,
        "does not speak TLS, or not this version of it",
        "the other side uses TLS, and this side has no `ssl`",
    ),
    "no version in common": (
        lambda: limited(authority().listener(), minimum=ssl.TLSVersion.TLSv1_3),
        lambda: limited(authority().connector(), maximum=ssl.TLSVersion.TLSv1_2),
        weft.TlsError,
        "not this version of it",
        "TLS negotiation failed: UNSUPPORTED_PROTOCOL",
    ),
}


def trusting(whom, as_whom):
    context = as_whom.connector()
    whom.ca.configure_trust(context)
    return context


def limited(context, *, minimum=None, maximum=None):
    if minimum:
        context.minimum_version = minimum
    if maximum:
        context.maximum_version = maximum
    return context


@pytest.mark.parametrize("face", ["blocking", "await"])
@pytest.mark.parametrize("case", CASES)
def test_both_sides_name_what_is_wrong(case, face, caplog):
    listens, connects, kind, told_connector, told_listener = CASES[case]

    async def main():
        async with weft.listen(LOOPBACK, never, ssl=listens()) as listener:
            connecting = weft.connect(listener.address, timeout=100, ssl=connects())
            with pytest.raises(kind, match=told_connector) as caught:
                await (connecting if face == "await" else asyncio.to_thread(connecting.open))
            assert caught.type is kind
            await logged(told_listener, caplog)

    asyncio.run(main())


async def logged(text, caplog):
    """Wait for what a listener logs in its own time."""
    async with asyncio.timeout(100):
        while text not in caplog.text:
            await asyncio.sleep(0.001)


async def never(peer):
    pytest.fail("a handler was called")


@pytest.mark.parametrize("face", ["blocking", "await"])
@pytest.mark.parametrize(
    ("stays", "timeout", "kind", "text"),
    [
        (False, 5, weft.HandshakeError, "in the middle of the (TLS )?handshake"),
        (True, 0.1, weft.TimedOutError, r"no answer within 0\.1 s"),
    ],
)
def test_a_listener_that_leaves_and_one_that_says_nothing(face, stays, timeout, kind, text):
    async def main():
        done = asyncio.Event()

        async def serve(_, writer):
            if stays:
                await done.wait()
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            connecting = weft.connect(f"127.0.0.1:{port}", timeout=timeout, ssl=authority().connector())
            with pytest.raises(kind, match=text):
                await (connecting if face == "await" else asyncio.to_thread(connecting.open))
            done.set()

    asyncio.run(main())


def test_a_certificate_for_another_host_is_refused():
    async def main():
        elsewhere = Authority("elsewhere.example")
        async with weft.listen(LOOPBACK, never, ssl=elsewhere.listener()) as listener:
            with pytest.raises(weft.CertificateError, match="made out to this host"):
                await weft.connect(listener.address, ssl=elsewhere.connector())

    asyncio.run(main())


def test_contexts_that_do_not_suit():
    with pytest.raises(weft.InvalidParamError, match="one of refuse, tls, clear"):
        weft.listen(LOOPBACK, ssl=authority().listener(), payload="none")
    with pytest.raises(weft.InvalidParamError, match="needs TLS"):
        weft.connect("127.0.0.1:1", payload="tls")
    with pytest.raises(weft.InvalidParamError, match="does not suit a listener"):
        weft.listen(LOOPBACK, ssl=authority().connector()).__enter__()
    with (
        weft.listen(LOOPBACK, ssl=authority().listener()) as listener,
        pytest.raises(weft.InvalidParamError, match="does not suit a connector"),
    ):
        weft.connect(listener.address, ssl=authority().listener()).open()


# ---- the payload ----------------------------------------------------------------------------------------------


@pytest.fixture
def two_hosts(monkeypatch):
    """Nobody proves to be on the other's host."""
    monkeypatch.setattr(handshake, "_prove_same_host", lambda hello, what: None)


def test_connections_that_a_cycle_drops_close_their_sockets_without_a_warning(two_hosts):
    """The collector takes older objects first: a socket before the connection that would close it."""
    with weft.listen(LOOPBACK, ssl=authority().listener(), payload="tls") as listener, ThreadPoolExecutor(1) as pool:
        calling = pool.submit(weft.connect(listener.address, ssl=authority().connector(), payload="tls").open)
        held = [listener.accept(100), calling.result(100)]
    held.append(held)
    assert [peer.transports for peer in held[:2]] == [["tls/lo"]] * 2
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        del held
        gc.collect()
    assert not warned


def connected(listens, connects, settings=None):
    """Return how a connector sees its connection, or raise its error."""

    async def main():
        async def wait(peer):
            with contextlib.suppress(weft.PeerClosedError):
                await peer.recv()

        options = {"ssl": authority().listener(), "payload": listens}
        async with weft.listen(LOOPBACK, wait, **options) as listener:
            address = listener.address
            async with weft.connect(address, ssl=authority().connector(), payload=connects, settings=settings) as peer:
                return peer.transports

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("listens", "connects"),
    [("refuse", "refuse"), ("refuse", "tls"), ("refuse", "clear"), ("tls", "refuse"), ("clear", "refuse")],
)
def test_the_stricter_side_decides_and_both_name_it(two_hosts, listens, connects, caplog):
    whose = {"refuse": "this", "tls": "the other", "clear": "the other"}

    async def main():
        async with weft.listen(LOOPBACK, never, ssl=authority().listener(), payload=listens) as listener:
            with pytest.raises(weft.EncryptionError, match=f"{whose[connects]} side refuses that"):
                await weft.connect(listener.address, ssl=authority().connector(), payload=connects)
            await logged(f"unencrypted, and {whose[listens]} side refuses that", caplog)

    asyncio.run(main())


def test_on_one_host_nothing_leaves_it():
    assert connected("refuse", "refuse") == ["ring/memory"]


def test_both_sockets_send_at_once():
    """Or a small message may wait for the acknowledgement of the one before, which is delayed by 40 ms."""

    async def main():
        delayed = []

        async def handler(peer):
            delayed.append(not peer._channel._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            await peer.send(b"seen")

        both = {"payload": "tls", "settings": {"TLS": "tcp,self"}}
        async with (
            weft.listen(LOOPBACK, handler, ssl=authority().listener(), **both) as listener,
            weft.connect(listener.address, ssl=authority().connector(), **both) as peer,
        ):
            await peer.recv()
            delayed.append(not peer._channel._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        assert delayed == [False, False]

    asyncio.run(main())


def test_a_network_transport_asked_for_on_one_host_is_one():
    with pytest.raises(weft.EncryptionError):
        connected("refuse", "refuse", settings={"TLS": "tcp,posix,self"})
    assert connected("tls", "tls", settings={"TLS": "tcp,posix,self"}) == ["tls/lo"]


async def echo(peer):
    with contextlib.suppress(weft.PeerClosedError):
        while True:
            await peer.send_frames(await peer.recv_frames())


def test_both_faces_over_tls(two_hosts, fds):
    before = fds()

    async def main():
        options = {"ssl": authority().connector(), "payload": "tls"}
        async with weft.listen("127.0.0.1:0", echo, ssl=authority().listener(), payload="clear") as listener:
            address = listener.address
            buffers = [os.urandom(1 << 20), b"small"]

            def blocking():
                with weft.connect(address, **options) as peer:
                    peer.send_frames(buffers).wait(100)
                    assert list(map(bytes, peer.recv_frames().wait(100))) == buffers
                    return peer.transports

            assert await asyncio.to_thread(blocking) == ["tls/lo"]
            async with weft.connect(address, **options) as peer:
                assert not peer.same_host
                await asyncio.gather(*(peer.send_frames([b"%d" % i]) for i in range(100)))
                assert [bytes((await peer.recv_frames())[0]) for _ in range(100)] == [b"%d" % i for i in range(100)]

    asyncio.run(main())
    assert fds() <= before + 5  # the workers of this thread, and its epoll


def test_the_end_of_the_loop_ends_its_connections(two_hosts):
    left = []

    async def main():
        async with weft.listen("127.0.0.1:0", echo, ssl=authority().listener(), payload="tls") as listener:
            left.append(await weft.connect(listener.address, ssl=authority().connector(), payload="tls"))

    asyncio.run(main())
    assert left[0].closed


@pytest.mark.parametrize(
    ("tls", "stays"),
    [
        ("posix,self", True),
        ("shm", True),
        ("cuda_copy,cuda_ipc,sm", True),
        ("tcp,self", False),
        ("all", False),
        ("^ib", False),
        ("rc,posix", False),
        ("", False),
    ],
)
def test_transports_that_stay_on_the_host(monkeypatch, tls, stays):
    assert encryption.memory_only(tls) is stays
    monkeypatch.setenv("UCX_TLS", tls)
    assert Route("127.0.0.1").memory_only is stays
    assert Route("127.0.0.1", (("TLS", "posix,self"),)).memory_only
    assert not Route("127.0.0.1", (("TLS", "tcp"),)).memory_only


@pytest.mark.parametrize("told", [None, False, "yes"])
def test_whose_ucx_tls_has_a_network_is_on_the_network(told):
    hello = {"payload": "clear", "memory_only": told}
    with pytest.raises(weft.EncryptionError):
        encryption.over_tls("refuse", hello, True, "connect")
    assert not encryption.over_tls("refuse", hello | {"memory_only": True}, True, "connect")
    assert not encryption.over_tls(None, hello, True, "connect")


@pytest.mark.parametrize("told", [None, 1, [], "none"])
def test_a_payload_that_is_none_does_not_soften_this_sides(told):
    assert encryption.over_tls("tls", {"payload": told}, False, "connect")
    assert not encryption.over_tls("clear", {"payload": told}, False, "connect")
