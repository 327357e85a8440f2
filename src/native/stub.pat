# What stubgen cannot see of the slots: Request is its own awaitable iterator.
weft\._native\.Request\.__(await|iter)__:
    \from collections.abc import Generator
    \from typing import Any
    def __\1__(self) -> Generator[Any, None, Any]: ...

weft._native.Request.__next__:
    \from typing import Any
    def __next__(self) -> Any: ...

# Nor of the methods with a quicker door (fast_method.hpp).
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

weft\._native\.Peer\.send$:
    def send(self, buffer: weft.typing.BufferLike) -> weft.typing.Request[None]:
        \doc

weft\._native\.Peer\.lend$:
    def lend(self, buffer: weft.typing.BufferLike) -> weft.typing.Request[None]:
        \doc

weft\._native\.Peer\.recv$:
    def recv(self) -> weft.typing.Request[memoryview]:
        \doc

weft\._native\.Peer\.recv_into$:
    def recv_into(self, buffer: Buffer) -> weft.typing.Request[int]:
        \doc

weft\._native\.Channel\.send$:
    def send(self, first: weft.typing.BufferLike, rest: list[Buffer] | None = None, lend: bool = False, stage: bool = False) -> weft.typing.Request[None]: ...

weft\._native\.Channel\.lend$:
    def lend(self, buffer: weft.typing.BufferLike) -> weft.typing.Request[None]: ...

weft\._native\.Channel\.recv$:
    \from typing import Any
    def recv(self) -> weft.typing.Request[Any]: ...

weft\._native\.Channel\.recv_into$:
    def recv_into(self, buffer: Buffer) -> weft.typing.Request[int]: ...

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
