# SPDX-License-Identifier: BSD-3-Clause
"""Makes ``ucx://`` mean weft in every Dask process, without a line in the user's program.

distributed finds comms by their entry points, except this one. Without distributed-ucxx, distributed registers a
placeholder for ``ucx`` that only raises (``distributed/comm/__init__.py``), and never looks at entry points. With
distributed-ucxx installed, both claim the scheme, and the one that the file system lists first wins.

dask calls the ``dask.sizeof`` entry points in every process before distributed loads its comms. At that moment this
module prevents the placeholder, or, with distributed-ucxx installed, arranges who gets the scheme once distributed's
registry is loaded: weft, unless ``DASK_WEFT__CLAIM_UCX=false`` (or ``weft.claim-ucx`` in Dask's configuration) leaves
it to distributed-ucxx. A preload would be the public way, but a nanny of ``dask worker`` has none, and options replace
them.

Nothing of Dask is imported at the top level: weft works without it.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import types
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from typing import Any

from weft.errors import InvalidParamError

_REGISTRY = "distributed.comm.registry"
#: Dask converts values of variables to Python's, so that ``false`` is False; it leaves these words as strings.
_WORDS = {**dict.fromkeys(("yes", "y", "on", "true"), True), **dict.fromkeys(("no", "n", "off", "false", ""), False)}

log = logging.getLogger("weft")


def claim(_sizeof: object = None) -> None:
    """Decide who owns ``ucx``. The argument is what dask passes to its ``sizeof`` entry points."""
    import dask.config

    config: Any = dask.config
    if importlib.util.find_spec("distributed") is None:
        return
    other = importlib.util.find_spec("distributed_ucxx")
    # distributed-ucxx's comm is a package. A single-file module is weft's alias; distributed would try to import it
    # while weft.dask cannot be imported yet.
    if other is None or not other.submodule_search_locations:
        sys.modules.setdefault("distributed.comm.ucx", types.ModuleType("distributed.comm.ucx"))
        return
    backend = _Deferred(config.get("weft.claim-ucx", True))
    registry = sys.modules.get(_REGISTRY)
    if registry is not None:
        registry.backends["ucx"] = backend
    else:
        sys.meta_path.insert(0, _OnceRegistryIsLoaded(backend))


def flag(key: str, value: Any) -> bool:
    """Read the `value` of ``weft.<key>`` as a boolean."""
    if value is None or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    if not isinstance(value, str) or value.lower() not in _WORDS:
        raise InvalidParamError(f"weft.{key}: {value!r} is neither true nor false")
    return _WORDS[value.lower()]


class _Deferred:
    """Loads a backend on first use: when the registry loads, no comm can be imported yet.

    An invalid setting also raises only then: dask logs errors in `claim` and goes on.
    """

    def __init__(self, claimed: Any) -> None:
        self._claimed = claimed
        self._backend: Any = None

    def __getattr__(self, name: str) -> Any:
        if self._backend is None:
            self._backend = self._load()()
        return getattr(self._backend, name)

    def _load(self) -> Any:
        ours = flag("claim-ucx", self._claimed)
        if ours:
            log.info("weft provides ucx://; for distributed-ucxx, also installed, set DASK_WEFT__CLAIM_UCX=false")
        for entry_point in entry_points(group="distributed.comm.backends", name="ucx"):
            if entry_point.value.startswith("weft.") == ours:
                return entry_point.load()
        raise ValueError("distributed-ucxx is installed but registers no comm for ucx://")


class _OnceRegistryIsLoaded:
    """A meta path finder that finds nothing itself: it hooks the import of distributed's registry, once."""

    def __init__(self, backend: _Deferred) -> None:
        self._backend = backend

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _REGISTRY:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            execute(module)
            module.backends["ucx"] = self._backend

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
