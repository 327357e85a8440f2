# SPDX-License-Identifier: BSD-3-Clause
"""Run distributed's own checks of a comm against ``ucx://``, beside ``tcp://``.

    python scripts/distributed_comm_tests.py --source DIR [--rev REV] [--only NAME]

DIR is a checkout of distributed (``git clone --branch 2026.8.0 https://github.com/dask/distributed``), best at the
release that is installed, or a bare git directory, of which REV is taken. Only the tests come from there: its
``distributed/comm/tests/test_comms.py`` runs with the installed distributed. A check is one of that file's
``check_*`` functions with one address; each is run with both schemes, and one line says how it went. The status is
1 if ucx fails one that tcp passes, 2 if nothing could be run.

The checks are distributed's (BSD-3-Clause) and none of their text is here. ``tests/dask/test_comm_*.py`` is the
project's own and goes further.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import importlib.util
import logging
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import distributed
import distributed.utils_test

import weft.dask

TESTS = "distributed/comm/tests/test_comms.py"
NEEDED = (TESTS, "distributed/tests")  # and the certificates that it reads when it is imported
TIMEOUT_S = 60


class Check(NamedTuple):
    """One of distributed's checks, and how to call it with an address."""

    name: str
    address: str  # with {scheme}
    call: Callable[[ModuleType, str], Awaitable[object]]


def with_address(name: str, *addresses: str) -> list[Check]:
    """Checks that take an address and no more."""
    return [Check(name, address, lambda module, a: getattr(module, name)(a)) for address in addresses]


def with_hosts(address: str, listen: str, contact: str | None = None) -> Check:
    """The client and server check: where it must listen, and what to tell others."""

    async def call(module: ModuleType, a: str) -> None:
        port = int(a.rpartition(":")[2]) if a.rpartition(":")[2].isdigit() else None
        hosts = [module.tcp_eq(listen, port)]
        if contact is not None:
            hosts.append(module.tcp_eq(contact or module.EXTERNAL_IP4, port))
        await module.check_client_server(a, *hosts)

    return Check("check_client_server", address, call)


def with_pair(name: str) -> Check:
    """Checks that take the two ends of a connection."""

    async def call(module: ModuleType, a: str) -> None:
        await getattr(module, name)(*await module.get_comm_pair(a))

    return Check(name, "{scheme}://127.0.0.1", call)


CHECKS = [
    with_hosts("{scheme}://127.0.0.1", "127.0.0.1"),
    with_hosts("{scheme}://127.0.0.1:{port}", "127.0.0.1"),
    with_hosts("{scheme}://0.0.0.0", "0.0.0.0", ""),  # noqa: S104
    with_hosts("{scheme}://0.0.0.0:{port}", "0.0.0.0", ""),  # noqa: S104
    with_hosts("{scheme}://", "0.0.0.0", ""),  # noqa: S104
    with_hosts("{scheme}://:{port}", "0.0.0.0", ""),  # noqa: S104
    with_hosts("{scheme}://[::1]", "::1"),
    with_hosts("{scheme}://[::1]:{port}", "::1"),
    *with_address("check_comm_closed_implicit", "{scheme}://127.0.0.1"),
    *with_address("check_comm_closed_explicit", "{scheme}://127.0.0.1"),
    *with_address("check_connect_timeout", "{scheme}://127.0.0.1:{port}"),
    *with_address("check_many_listeners", "{scheme}://127.0.0.1", "{scheme}://0.0.0.0", "{scheme}://"),
    *with_address("check_deserialize", "{scheme}://127.0.0.1", "{scheme}://"),
    *with_address("check_deserialize_roundtrip", "{scheme}://127.0.0.1", "{scheme}://"),
    *with_address("check_deserialize_eoferror", "{scheme}://127.0.0.1", "{scheme}://"),
    with_pair("check_repr"),
    with_pair("check_addresses"),
]
#: Why the others are not called by themselves.
ELSEWHERE = {
    "check_tls_extra": "of TLS only",
    "check_inproc_specific": "of inproc only",
    "check_listener_deserialize": "called by check_deserialize",
    "check_connector_deserialize": "called by check_deserialize",
}


@contextlib.contextmanager
def checkout(source: Path, rev: str) -> Iterator[Path]:
    """Give the folder with the tests: `source`, or what its commit `rev` has of them."""
    if (source / TESTS).is_file():
        yield source
        return
    with tempfile.TemporaryDirectory() as folder:
        git = ["git", f"--git-dir={source / '.git' if (source / '.git').is_dir() else source}"]
        archive = subprocess.run([*git, "archive", rev, *NEEDED], capture_output=True)
        if archive.returncode:
            print(f"{source} is no checkout of distributed, nor a git directory with {rev}: {archive.stderr.decode()}")
            sys.exit(2)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        yield Path(folder)


def load(folder: Path) -> ModuleType:
    """Import the tests, and nothing else, from `folder`."""
    distributed.utils_test.certs_dir = str(folder / "distributed/tests")
    spec = importlib.util.spec_from_file_location("distributed_test_comms", folder / TESTS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # what it pickles is looked up there
    spec.loader.exec_module(module)
    return module


def free_port() -> int:
    """Find a port that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def attempt(check: Check, module: ModuleType, scheme: str, *, verbose: bool) -> str:
    """Run one check with one scheme; return ``pass``, ``fail: why`` or ``skip: why``."""
    if not hasattr(module, check.name):
        return "skip: this release has no such check"
    if "[::" in check.address and not distributed.utils_test.has_ipv6():
        return "skip: no IPv6 here"
    address = check.address.format(scheme=scheme, port=free_port())

    async def run() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await check.call(module, address)

    faulthandler.dump_traceback_later(TIMEOUT_S + 10, exit=True)
    try:
        asyncio.run(run())
    except Exception as e:  # noqa: BLE001  (a check may fail in any way, and is to be told)
        if verbose:
            traceback.print_exc()
        return f"fail: {type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"[:200]
    finally:
        faulthandler.cancel_dump_traceback_later()
    return "pass"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--source", type=Path, required=True, help="a checkout or git directory of distributed")
    parser.add_argument(
        "--rev", default=distributed.__version__, help="what to take of a git directory (default: %(default)s)"
    )
    parser.add_argument("--only", default="", metavar="NAME", help="only checks whose name contains this")
    parser.add_argument("--verbose", action="store_true", help="show tracebacks, and what distributed logs")
    arguments = parser.parse_args()
    if not arguments.verbose:
        logging.disable(logging.CRITICAL)

    worse = ran = 0
    with checkout(arguments.source, arguments.rev) as folder:
        module = load(folder)
        print(f"distributed {distributed.__version__}, weft {weft.__version__}, tests from {arguments.source}")
        print(f"{'check':<30} {'address':<30} {'tcp':<6} ucx")
        for check in CHECKS:
            if arguments.only not in check.name:
                continue
            tcp, ucx = (attempt(check, module, scheme, verbose=arguments.verbose) for scheme in ("tcp", "ucx"))
            ran += not ucx.startswith("skip")
            worse += tcp == "pass" and ucx.startswith("fail")
            address = check.address.format(scheme="*", port="PORT")
            both = f"{tcp.partition(':')[0]:<6} {ucx}" if tcp == "pass" or tcp == ucx else f"{tcp}; {ucx}"
            print(f"{check.name:<30} {address:<30} {both}")
        known = {check.name for check in CHECKS}
        for name in sorted(
            n for n in vars(module) if n.startswith("check_") and n not in known and arguments.only in n
        ):
            print(f"{name:<30} {'':<30} {'skip':<6} skip: {ELSEWHERE.get(name, 'not known to this script')}")
    print(f"{worse} of {ran} that ucx fails and tcp passes" if worse else f"ucx fails none of {ran} that tcp passes")
    return 1 if worse else 0 if ran else 2


if __name__ == "__main__":
    sys.exit(main())
