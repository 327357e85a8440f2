# SPDX-License-Identifier: BSD-3-Clause
"""Arrow's memory in a worker: pandas' strings and pyarrow's tables are allocated in the pool, so that they can be lent.

pyarrow takes a second and 24 MiB to import, and many workers never need it. So nothing is imported here; an import hook
waits until a task imports it.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from weft import _native
from weft.errors import UnsupportedError

logger = logging.getLogger("weft")

_MODULE = "pyarrow.lib"


def arrow_in_pool() -> None:
    """Let pyarrow allocate in the pool, in the whole process: now, or as soon as it is imported."""
    module = sys.modules.get(_MODULE)
    if module is not None:
        _turn_on(module)
    elif not any(isinstance(finder, _Watch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watch())


def _turn_on(module: ModuleType) -> None:
    try:
        _native.arrow_in_pool(True, str(module.__file__))
    except UnsupportedError as e:  # an unknown build of Arrow: its buffers are copied when they are sent
        logger.info("Arrow's memory is not lent: %s", e)


class _Watch(MetaPathFinder):
    """An import hook that lets pyarrow allocate in the pool when it is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _turn_on(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
