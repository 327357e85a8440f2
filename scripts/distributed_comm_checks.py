# SPDX-License-Identifier: BSD-3-Clause
"""distributed's checks of a comm, with addresses of Dask's default scheme.

``distributed_tests.py`` puts this among the tests of a checkout and runs it there, once for each protocol. A check is a
``check_*`` function of distributed's ``test_comms.py``; the tests of that file call them with ``tcp://`` spelled out.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Awaitable, Callable

if __name__ == "__main__":
    print("distributed_comm_checks.py is no command: pytest loads it, started by distributed_tests.py", file=sys.stderr)
    sys.exit(2)

import dask.config
import pytest
from distributed.comm.tests import test_comms
from distributed.utils_test import gen_test, has_ipv6

#: Why the others are not called by themselves.
ELSEWHERE = {
    "check_tls_extra": "of TLS only",
    "check_inproc_specific": "of inproc only",
    "check_listener_deserialize": "called by check_deserialize",
    "check_connector_deserialize": "called by check_deserialize",
}
CHECKS = {name: check for name, check in vars(test_comms).items() if name.startswith("check_")}
LOOPBACK = "127.0.0.1"
EVERYWHERE = "0.0.0.0"  # noqa: S104
#: Where each check listens: one address after the other, of this host or of all.
HOSTS = {
    "check_comm_closed_implicit": (LOOPBACK,),
    "check_comm_closed_explicit": (LOOPBACK,),
    "check_connect_timeout": (f"{LOOPBACK}:{{port}}",),
    "check_many_listeners": (LOOPBACK, EVERYWHERE, ""),
    "check_deserialize": (LOOPBACK, ""),
    "check_deserialize_roundtrip": (LOOPBACK, ""),
    "check_deserialize_eoferror": (LOOPBACK, ""),
}
#: Checks that take the two ends of a connection.
PAIRS = ("check_repr", "check_addresses")


def free_port() -> int:
    """Find a port that nobody listens on."""
    with socket.socket() as sock:
        sock.bind((LOOPBACK, 0))
        return int(sock.getsockname()[1])


def address(host: str, port: int) -> str:
    return f"{dask.config.get('distributed.comm.default-scheme')}://{host.format(port=port)}"


@pytest.mark.parametrize(
    ("host", "listens", "contact"),
    [
        (LOOPBACK, LOOPBACK, LOOPBACK),
        (EVERYWHERE, EVERYWHERE, None),
        ("", EVERYWHERE, None),
        pytest.param("[::1]", "::1", "::1", marks=pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")),
    ],
)
@pytest.mark.parametrize("given", [False, True])
@gen_test()
async def test_client_server(host: str, listens: str, contact: str | None, given: bool) -> None:
    port = free_port() if given else None
    url = address(f"{host}:{{port}}" if given else host, port or 0)
    hosts = [test_comms.tcp_eq(h, port) for h in (listens, contact or test_comms.EXTERNAL_IP4)]
    await test_comms.check_client_server(url, *hosts)


@pytest.mark.parametrize(("name", "host"), [(name, host) for name, hosts in HOSTS.items() for host in hosts])
@gen_test()
async def test_check(name: str, host: str) -> None:
    check: Callable[[str], Awaitable[None]] = CHECKS[name]
    await check(address(host, free_port()))


@pytest.mark.parametrize("name", PAIRS)
@gen_test()
async def test_pair(name: str) -> None:
    await CHECKS[name](*await test_comms.get_comm_pair(address(LOOPBACK, 0)))


def test_no_other_checks() -> None:
    assert CHECKS.keys() == {"check_client_server", *HOSTS, *PAIRS, *ELSEWHERE}
