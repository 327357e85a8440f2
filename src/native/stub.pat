# What stubgen cannot see of the slots: Request is its own awaitable iterator.
weft\._native\.Request\.__(await|iter)__:
    \from collections.abc import Generator
    \from typing import Any
    def __\1__(self) -> Generator[Any, None, Any]: ...

weft._native.Request.__next__:
    \from typing import Any
    def __next__(self) -> Any: ...

# Nor of the methods with a quicker door (fast.hpp).
weft\._native\.Request\.wait:
    \from typing import Any
    def wait(self, timeout: float | None = None) -> Any:
        \doc

weft\._native\.Worker\.tag_recv$:
    def tag_recv(self, buffer: weft.typing.BufferLike, tag: int, mask: int = 0xffffffffffffffff) -> weft.typing.Request[tuple[int, int]]:
        \doc

weft\._native\.Endpoint\.tag_send$:
    def tag_send(self, buffer: weft.typing.BufferLike, tag: int) -> weft.typing.Request[None]:
        \doc

# What these give depends on their arguments.
weft\._native\.Endpoint\.atomic_op$:
    \from typing import Literal, overload
    @overload
    def atomic_op(self, op: str, value: int, rkey: Rkey, offset: int = 0, *, compare: int | None = None, nbytes: int = 8, fetch: Literal[True] = True) -> weft.typing.Request[int]:
        \doc
    @overload
    def atomic_op(self, op: str, value: int, rkey: Rkey, offset: int = 0, *, compare: int | None = None, nbytes: int = 8, fetch: bool) -> weft.typing.Request[int | None]: ...

weft\._native\.ActiveMessage\.recv$:
    \from typing import overload
    @overload
    def recv(self, buffer: None = None) -> weft.typing.Request[memoryview]:
        \doc
    @overload
    def recv(self, buffer: weft.typing.BufferLike) -> weft.typing.Request[int]: ...

# CPython has these for every exporter from 3.12 on, but not 3.11.
weft\._native\..*\.__(release_)?buffer__:
