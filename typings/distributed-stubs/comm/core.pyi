# SPDX-License-Identifier: BSD-3-Clause
from typing import Any

class CommClosedError(IOError): ...
class FatalCommClosedError(CommClosedError): ...

class Comm:
    deserialize: bool
    allow_offload: bool
    local_info: dict[str, Any]
    remote_info: dict[str, Any]
    handshake_options: dict[str, Any]
    def __init__(self, deserialize: bool = True) -> None: ...
    def handshake_info(self) -> dict[str, Any]: ...

class Connector: ...

class BaseListener:
    def __init__(self) -> None: ...
    async def on_connection(self, comm: Comm, handshake_overrides: dict[str, Any] | None = None) -> None: ...

async def connect(
    addr: str,
    timeout: float | None = ...,
    deserialize: bool = ...,
    handshake_overrides: dict[str, Any] | None = ...,
    **connection_args: Any,
) -> Any: ...
