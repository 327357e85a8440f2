# SPDX-License-Identifier: BSD-3-Clause
"""Values that a worker sends for a request: small ones are not acknowledged.

Dask's receiver answers values with an "OK", and the sender counts the transfer as under way until then (worker.py:1693,
2734). For large values that bounds what leaves a worker at once. For small ones it only costs: a third message, and the
waking of two processes. So both ends of a comm of weft take it as given there: the receiver does not send it, and the
sender does not wait for it.
"""

from __future__ import annotations

from typing import Any

from distributed.comm.core import Comm
from distributed.worker import Worker

from weft.dask import patches

#: The name in Dask's handshake: this side takes the acknowledgment of small values as given.
GIVEN = "weft-values-given"
#: Values of at least this many bytes, headers included, are acknowledged.
LARGE_NBYTES = 1 << 20
_OK = "OK"


def gives(server: object) -> bool:
    """Tell whether a server waits for an "OK" after values, as Dask's workers do."""
    if not isinstance(server, Worker):
        return False
    serve = getattr(Worker.get_data, "__wrapped__", Worker.get_data)
    known = _OK in serve.__code__.co_consts and patches.takes(serve, "self", "comm", "keys", "who", "serializers")
    return type(server).get_data is Worker.get_data and patches.as_known(
        known, "Worker.get_data", "small values are acknowledged"
    )


class Given:
    """What the two ends of a comm, which see the same messages, know of the values between them.

    `heard` says that values were sent, and their acknowledgment is taken as received.
    """

    __slots__ = ("_asked", "_received", "heard")

    def __init__(self) -> None:
        self._asked = self._received = self.heard = False

    def passed(self, msg: Any, nbytes: int, comm: Comm, *, sent: bool) -> None:
        """Note a message of a comm."""
        self._received = self.heard = False
        if msg.__class__ is not dict:
            return
        if "op" in msg:
            self._asked = msg["op"] == "get_data" and _both_give(comm)
        elif self._asked:
            self._asked = False
            given = nbytes < LARGE_NBYTES and msg.get("status") == _OK and "data" in msg
            self._received, self.heard = given and not sent, given and sent

    def acknowledges(self, msg: Any) -> bool:
        """Tell whether a message to send is the acknowledgment, which is then taken as sent."""
        if not self._received or msg.__class__ is not str or msg != _OK:
            return False
        self._received = False
        return True

    def hear(self) -> str:
        """Return the acknowledgment, as if it had come."""
        self.heard = False
        return _OK


def _both_give(comm: Comm) -> bool:
    return bool(comm.local_info.get(GIVEN) and comm.remote_info.get(GIVEN))
