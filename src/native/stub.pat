# What stubgen cannot see of the slots: Request is its own awaitable iterator.
weft\._native\.Request\.__(await|iter)__:
    \from collections.abc import Generator
    \from typing import Any
    def __\1__(self) -> Generator[Any, None, Any]: ...

weft._native.Request.__next__:
    \from typing import Any
    def __next__(self) -> Any: ...
