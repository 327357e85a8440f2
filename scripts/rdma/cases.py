# SPDX-License-Identifier: BSD-3-Clause
"""What is run in the guest, and what its output must show."""

from __future__ import annotations

from typing import NamedTuple

_ITSELF = """
import os, weft
print(weft.config.ucx_library())
worker = weft.Worker(weft.Context({"TLS": "rc_v", "NET_DEVICES": "rxe0:1"}))
itself = worker.connect(worker.address)
print(*itself.transports)
data, arrived = os.urandom(1 << 20), bytearray(1 << 20)
received = worker.tag_recv(arrived, 7)
itself.tag_send(data, 7).wait(60)
print(received.wait(60))
assert arrived == data
print("same bytes", flush=True)
"""


#: rxe tells twice that a queue pair has ended, and UCX up to 1.22 aborts when it hears it again in the same turn.
RXE = {"UCX_IB_ASYNC_EVENTS": "n"}


class Case(NamedTuple):
    """A command in the guest; it is right if it exits with 0 in time and says all of `shows`."""

    name: str
    command: list[str]
    limit_s: float
    shows: tuple[str, ...] = ()
    environment: dict[str, str] = RXE


def _over(tls: str) -> dict[str, str]:
    return RXE | {"UCX_TLS": tls, "UCX_NET_DEVICES": "rxe0:1"}


_PYTEST = ["python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=120"]
_VERBS = [*_PYTEST, "guest/test_verbs.py"]
#: weft's own tests of what UCP does, with verbs in place of the transport that they ask for. Those that crank a counted
#: number of turns, or take 1 MiB for a rendezvous, are for shared memory and left out; so is what needs no transport.
_TESTS = {
    "tag": [
        "a_synchronous_send_ends_with_its_match",
        "many_messages_with_one_request",
        "cancelling_many_withdraws_what_has_not_matched",
    ],
    "active": [
        "eager_data_is_lent",
        "into_pooled_memory",
        "eager_data_of_several_fragments",
        "a_handler_answers",
        "a_reply_endpoint_is_the_senders",
    ],
    "endpoint": ["tags_and_masks", "active_messages_of_every_size", "scatter_gather_arrives_as_one_piece", "flush"],
    "stream": ["bytes_without_borders", "a_large_piece"],
    "rma": [
        "put_and_get",
        "mapped_memory_is_the_array_itself",
        "a_key_is_pickled",
        "compare_and_swap",
        "atomic_without_the_old_value",
    ],
}
_CORE = [*_PYTEST, "-p", "guest.over_verbs", "-k", "not tcp"]
_CORE += [f"tests/native/test_{file}.py::test_{name}" for file, names in _TESTS.items() for name in names]
#: Peers that share no shared memory, by the IPv6 address that the device has anyway.
_APART = RXE | {"WEFT_ADDRESS": "[fe80::1%d0]:0"}


def _weft(command: str, shows: tuple[str, ...], environment: dict[str, str] = RXE) -> Case:
    name = command.replace(" ", "-").replace("--", "")
    return Case(name, ["python3", "-m", "weft", *command.split()], 120, shows, environment)


CASES = [
    Case("device", ["ibv_devinfo", "-v"], 20, ("PORT_ACTIVE", "rxe0")),
    Case("itself", ["python3", "-c", _ITSELF], 60, ("rc_verbs/rxe0:1", "same bytes")),
    Case("verbs-rc", _VERBS, 240, environment=_over("rc_v")),
    Case("verbs-ud", _VERBS, 240, environment=_over("ud_v")),
    Case("core-rc", _CORE, 300, environment=_over("rc_v")),
    Case("core-ud", _CORE, 300, environment=_over("ud_v")),
    _weft("info", ("1.18.1",)),
    _weft("topo", ("rxe0", "RoCE")),
    _weft("doctor", ("rxe0",)),
    _weft("explain", ("rc_verbs/rxe0:1",), _over("rc_v")),
    Case("apart", _VERBS, 120, environment=_APART),
]
