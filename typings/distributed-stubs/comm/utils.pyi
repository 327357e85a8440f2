# SPDX-License-Identifier: BSD-3-Clause
from typing import Any

OFFLOAD_THRESHOLD: int

async def to_frames(msg: Any, allow_offload: bool = True, **kwargs: Any) -> list[Any]: ...
async def from_frames(
    frames: list[Any], deserialize: bool = True, deserializers: Any = None, allow_offload: bool = True
) -> Any: ...
def ensure_concrete_host(host: str, default_host: str | None = None) -> str: ...
