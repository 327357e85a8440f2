# SPDX-License-Identifier: BSD-3-Clause
"""Two emulated hosts with a cable of 100 Mb/s between them: what a transfer takes, and which wire carries it.

The hosts are network namespaces of this machine, so this needs root. On real hosts, run ``two_hosts.py listen`` on one
and ``two_hosts.py ADDRESS`` on the other.
"""

import sys
import time

import weft
from weft import lab

PORT = 13337
NETWORK = {
    "hosts": {"a": {}, "b": {}},
    "links": [{"between": ["a", "b"], "rate": "100mbit"}],
}


def listen() -> None:
    with weft.listen(f"0.0.0.0:{PORT}") as listener, listener.accept(30) as peer:
        while (message := peer.recv().wait(30)).nbytes:
            peer.send(message[:1]).wait(30)


def call(address: str) -> None:
    with connected(f"{address}:{PORT}") as peer:
        for nbytes in (8, 1 << 20):
            began = time.perf_counter()
            peer.send(bytes(nbytes)).wait(30)
            peer.recv().wait(30)
            print(f"{nbytes:>8} B in {1e3 * (time.perf_counter() - began):.1f} ms over {', '.join(peer.transports)}")
        peer.send(b"").wait(30)


def connected(address: str) -> weft.Peer:
    """Connect as soon as the other host listens."""
    until = time.monotonic() + 20
    while True:
        try:
            return weft.connect(address).open()
        except weft.UnreachableError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def main() -> int:
    with lab.Lab(lab.parse(NETWORK)) as hosts:
        hosts.start("a", [sys.executable, __file__, "listen"])
        return hosts.start("b", [sys.executable, __file__, hosts.address("a")]).wait()


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            sys.exit(main())
        case ["listen"]:
            listen()
        case [address]:
            call(address)
