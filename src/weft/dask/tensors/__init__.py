# SPDX-License-Identifier: BSD-3-Clause
"""Tensors of PyTorch, JAX and TensorFlow: what they weigh, and how they travel in host memory or on a device.

In host memory nothing is copied on either side: the frame is the tensor's memory, and the tensor that comes out lies in
the frame that came in. What lies on a device and goes to a process that has none, or to disk, is copied to the host by
its own library, and back to the same device if the receiver has that one.

Each library has a module here, which registers its handlers when it is imported: with the first of its tensors.
"""

from __future__ import annotations

import functools
import importlib

from dask.sizeof import sizeof
from distributed.protocol.cuda import cuda_deserialize, cuda_serialize
from distributed.protocol.serialize import dask_deserialize, dask_serialize

from weft.dask import patches
from weft.dask.tensors.device import lazily


def register() -> None:
    """Have distributed and dask know these libraries' tensors, each from the first of them that they see."""
    dispatches = [cuda_serialize, cuda_deserialize, dask_serialize, dask_deserialize, sizeof]
    load = functools.partial(importlib.import_module, package=__name__)

    def load_torch() -> None:
        if patches.torch_handlers() is not None:
            load(".torch")

    lazily(dispatches, ["torch", "torchvision"], load_torch, known="distributed.protocol.torch")
    lazily(dispatches, ["jaxlib"], lambda: load(".jax"))
    lazily(dispatches, ["tensorflow"], lambda: load(".tensorflow"))
