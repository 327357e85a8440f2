# SPDX-License-Identifier: BSD-3-Clause
"""Arrays of CuPy, PyTorch, JAX, TensorFlow and others: their sizes, and how they are serialized.

In host memory neither side copies: the frame is the tensor's memory, and the received tensor uses the received frame.
An array on a device that goes to a process without one, or to disk, is copied to the host by its own library, and back
to the same device if the receiver has it.

``device`` has what all device arrays share. Each library that needs more has its own module here, which registers its
handlers when it is imported: when the first of its arrays is seen.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from typing import Any

from dask.sizeof import sizeof
from distributed.protocol.cuda import cuda_deserialize, cuda_serialize
from distributed.protocol.serialize import dask_deserialize, dask_serialize

from weft.dask import patches
from weft.dask.tensors import device


def register() -> None:
    """Register the handlers for device arrays, and each library's own for when its first array is seen."""
    cuda_serialize.register(object)(device.serialize)
    cuda_deserialize.register(object)(device.deserialize)
    on_device = [cuda_serialize, cuda_deserialize]
    dispatches = [*on_device, dask_serialize, dask_deserialize, sizeof]
    lazily(
        on_device, ["cupy", "cupyx"], lambda: _load("cupy", patches.cupy_handlers), known="distributed.protocol.cupy"
    )
    lazily(
        dispatches,
        ["torch", "torchvision"],
        lambda: _load("torch", patches.torch_handlers),
        known="distributed.protocol.torch",
    )
    lazily(dispatches, ["jaxlib"], lambda: _load("jax"))
    lazily(dispatches, ["tensorflow"], lambda: _load("tensorflow"))


def _load(library: str, needs: Callable[[], object] = object) -> None:
    if needs() is not None:
        importlib.import_module(f".{library}", __name__)


def lazily(
    dispatches: Iterable[Any], packages: Iterable[str], function: Callable[[], object], *, known: str = ""
) -> None:
    """Call `function` when the first object of one of `packages` is seen; now if distributed has already seen one.

    In that case the module `known`, which has distributed's handlers, is loaded; the last registration wins.
    """
    done = False

    def once() -> None:
        nonlocal done
        if not done:
            done = True
            function()

    if known in sys.modules:
        return once()
    for dispatch in dispatches:
        for package in packages:
            dispatch.register_lazy(package, once)
    return None
