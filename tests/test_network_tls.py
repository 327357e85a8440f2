# SPDX-License-Identifier: BSD-3-Clause
"""TLS between two hosts, which are network namespaces: what is refused, what is carried, and what is left exposed."""

import os
import signal

import pytest
from tests.certificates import Authority
from tests.test_network import bound, cable, hosts, listening_at  # noqa: F401 - fixtures

#: Both parties: their context, what they want of their payload, and where.
PARTY = """
import ssl
role, folder, payload, address = sys.argv[1:5]
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if role == "listen" else ssl.PROTOCOL_TLS_CLIENT)
context.verify_mode = ssl.CERT_REQUIRED
context.load_verify_locations(folder + "/ca")
context.load_cert_chain(folder + "/shown")
def meet_over_tls():
    if role == "connect":
        return weft.connect(address, timeout=10, ssl=context, payload=payload).open()
    with weft.listen(address, ssl=context, payload=payload) as listener:
        say(listener.address)
        return listener.accept(100)
"""

ECHO = (
    PARTY
    + """
with meet_over_tls() as peer:
    say(peer.same_host, *peer.transports)
    try:
        while True:
            peer.send(peer.recv().wait(100)).wait(100)
    except weft.PeerLostError as e:
        say(type(e).__name__)
"""
)

CALLER = (
    PARTY
    + """
with meet_over_tls() as peer:
    say(peer.same_host, *peer.transports)
    for nbytes in map(int, sys.argv[5:]):
        data = os.urandom(nbytes)
        sent = peer.send(data)
        assert bytes(peer.recv().wait(100)) == data
        sent.wait(100)
        say(nbytes)
    sys.stdin.readline()
"""
)

#: Writes what is no TLS to the socket that tells of the process's end.
NOISY = CALLER.replace(
    "    sys.stdin.readline()",
    """
    import psutil, socket
    (own,) = [c for c in psutil.Process().net_connections() if c.raddr and "%s:%d" % c.raddr == address]
    with socket.socket(fileno=os.dup(own.fd)) as sock:
        sock.sendall(b"garbage" * 1000)
    peer.send(b"still here").wait(100)
    say(bytes(peer.recv().wait(100)).decode())
    sys.stdin.readline()
""",
)


@pytest.fixture
def folder(hosts, tmp_path):  # noqa: F811
    signed = Authority(*(host.ipv4 for host in hosts))
    signed.ca.cert_pem.write_to_path(tmp_path / "ca")
    signed.certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "shown")
    return tmp_path


def test_payload_that_would_leave_the_host_is_refused_on_both(hosts, folder):  # noqa: F811
    a, b = hosts
    code = (
        PARTY
        + """
import logging
logging.basicConfig(stream=sys.stdout, format="%(message)s")
try:
    meet_over_tls()
except weft.Error as e:
    say(type(e).__name__)
"""
    )
    listening = a.python(code, "listen", folder, "tls", bound(a, "IPv4"))
    address = listening.line()
    calling = b.python(code, "connect", folder, "refuse", address)
    assert calling.line() == "EncryptionError"
    assert "unencrypted, and the other side refuses that" in listening.line()
    assert {address for address, _ in listening_at(listening.pid)} == {a.ipv4}


def test_messages_over_tls_and_no_port_but_the_listeners(hosts, folder):  # noqa: F811
    a, b = hosts
    listening = a.python(ECHO, "listen", folder, "tls", bound(a, "IPv4"))
    address = listening.line()
    sizes = [8, 0, 8 << 20]
    calling = b.python(CALLER, "connect", folder, "clear", address, *sizes)
    assert (listening.line(), calling.line()) == (f"False tls/{a.device}", f"False tls/{b.device}")
    assert [int(calling.line()) for _ in sizes] == sizes
    assert listening_at(listening.pid) == listening_at(calling.pid) == set()  # the one caller was accepted
    calling.say()
    assert listening.line() == "PeerClosedError"
    assert (calling.wait(), listening.wait()) == (0, 0)


def test_sigkill_is_noticed_over_tls(hosts, folder):  # noqa: F811
    a, b = hosts
    listening = a.python(ECHO, "listen", folder, "tls", bound(a, "IPv4"))
    calling = b.python(CALLER, "connect", folder, "tls", listening.line(), 8)
    assert [listening.line(), calling.line()] == [f"False tls/{a.device}", f"False tls/{b.device}"]
    assert calling.line() == "8"
    os.kill(calling.pid, signal.SIGKILL)
    assert listening.line() == "PeerLostError"


def test_garbage_on_the_socket_that_tells_of_the_end_is_not_one(hosts, folder):  # noqa: F811
    a, b = hosts
    listening = a.python(ECHO, "listen", folder, "clear", bound(a, "IPv4"))
    calling = b.python(NOISY, "connect", folder, "clear", listening.line())
    assert [listening.line(), calling.line()] == [f"False tcp/{a.device}", f"False tcp/{b.device}"]
    assert calling.line() == "still here"
    os.kill(calling.pid, signal.SIGKILL)
    assert listening.line() == "PeerLostError"
