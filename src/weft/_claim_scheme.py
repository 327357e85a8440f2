# SPDX-License-Identifier: BSD-3-Clause
"""How ``ucx://`` comes to mean weft in every Dask process, without a line in the user's program.

distributed finds a comm by its entry point, but not this one: where distributed-ucxx is missing, distributed puts a
placeholder that only raises in the scheme's place (``distributed/comm/__init__.py``), and entry points are then
never asked; where it is installed, both claim the scheme, and whichever the file system lists first wins.

dask calls the ``dask.sizeof`` entry points in every process before distributed loads its comms. That is the moment
to keep the placeholder out, or, with distributed-ucxx installed, to settle who gets the scheme as soon as
distributed's registry is loaded: weft, unless ``DASK_WEFT__CLAIM_UCX=false`` (or ``weft.claim-ucx`` in Dask's
configuration) leaves it to the other. Preloads would be the public way, but a nanny of ``dask worker`` has none and
options replace them.

Nothing of Dask is imported at the top: weft works without it.
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
#: Dask makes values of variables Python's, so that ``false`` is False; of these words it makes strings.
_WORDS = {**dict.fromkeys(("yes", "y", "on", "true"), True), **dict.fromkeys(("no", "n", "off", "false", ""), False)}

log = logging.getLogger("weft")


def claim(_sizeof: object = None) -> None:
    """Settle whose ``ucx`` is. The argument is what dask passes to its ``sizeof`` entry points."""
    import dask.config

    config: Any = dask.config
    if importlib.util.find_spec("distributed") is None:
        return
    other = importlib.util.find_spec("distributed_ucxx")
    # UCXX's is a package. A module of one file is weft's alias, which distributed would try while weft.dask cannot be
    # imported yet.
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
    """Read the `value` of ``weft.<key>`` as yes or no."""
    if value is None or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    if not isinstance(value, str) or value.lower() not in _WORDS:
        raise InvalidParamError(f"weft.{key}: {value!r} is neither true nor false")
    return _WORDS[value.lower()]


class _Deferred:
    """Stands for a backend until it is used: when the registry loads, no comm can be imported yet.

    Then, too, a value that is neither yes nor no is an error: dask only logs what goes wrong in `claim`, and goes on.
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
            log.info("ucx:// is weft's; distributed-ucxx is installed too and gets it with DASK_WEFT__CLAIM_UCX=false")
        for entry_point in entry_points(group="distributed.comm.backends", name="ucx"):
            if entry_point.value.startswith("weft.") == ours:
                return entry_point.load()
        raise ValueError("distributed-ucxx is installed but registers no comm for ucx://")


class _OnceRegistryIsLoaded:
    """A finder that finds nothing itself: it sees the registry's import pass by, once."""

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
