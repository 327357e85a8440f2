# SPDX-License-Identifier: BSD-3-Clause
import enum
from typing import Any

class Status(enum.Enum):
    dont_reply = ...

async def send_recv(
    comm: object, *, reply: bool = ..., serializers: Any = ..., deserializers: Any = ..., **what: Any
) -> Any: ...
