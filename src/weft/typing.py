# SPDX-License-Identifier: BSD-3-Clause
"""What memory is, for type checkers: annotations name these, nothing is checked by them at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from typing_extensions import Buffer


class SupportsDLPack(Protocol):
    """Tensors of PyTorch, JAX, CuPy and others."""

    def __dlpack__(self) -> Any: ...

    def __dlpack_device__(self) -> tuple[Any, Any]: ...


class SupportsCudaArrayInterface(Protocol):
    """Arrays of Numba and others."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


#: What can be sent, and, where it may be written, received into.
BufferLike: TypeAlias = "Buffer | SupportsDLPack | SupportsCudaArrayInterface"
