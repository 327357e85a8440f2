# SPDX-License-Identifier: BSD-3-Clause
"""Drop-in replacements: other libraries' interfaces over weft, so that their programs run unchanged.

- :mod:`weft.compat.ucp` has the interface of ucx-py 0.45, :mod:`weft.compat.ucxx` that of UCXX 0.52, and
  :mod:`weft.compat.distributed_ucxx` the names of distributed-ucxx, over weft's ``ucx://``.
- Use ``import weft.compat.ucxx as ucxx``, or call :func:`install_ucxx`. To change neither a program nor its child
  processes, run ``PYTHONPATH=$(python -m weft.compat) python program.py``.
- ``_core`` has the code that ``ucp`` and ``ucxx`` share.
"""

import importlib
import pkgutil
import sys
from pathlib import Path

__all__ = ["install_distributed_ucxx", "install_ucp", "install_ucxx"]

#: A folder for PYTHONPATH, with the modules ``ucp``, ``ucxx`` and ``distributed_ucxx``.
PATH = Path(__file__).parent / "path"


def install_ucp() -> None:
    """Make ``import ucp`` import :mod:`weft.compat.ucp` in this process from now on.

    Raises
    ------
    ImportError
        Another ``ucp`` has already been imported; code that holds names from it would keep using it.

    Child processes started with spawn import again: call this there, too, or set PYTHONPATH.
    """
    _install("ucp")


def install_ucxx() -> None:
    """Make ``import ucxx`` import :mod:`weft.compat.ucxx` in this process from now on; see :func:`install_ucp`."""
    _install("ucxx")


def install_distributed_ucxx() -> None:
    """Make ``import distributed_ucxx`` import :mod:`weft.compat.distributed_ucxx`; see :func:`install_ucp`."""
    _install("distributed_ucxx")


def _install(name: str) -> None:
    module = importlib.import_module(f"weft.compat.{name}")
    there = sys.modules.get(name)
    if there is not module and hasattr(there, "__version__"):  # the calling file, path/NAME.py, has none
        raise ImportError(
            f"install_{name}: {getattr(there, '__file__', there)} has already been imported as {name}; "
            f"call install_{name} before that"
        )
    sys.modules[name] = module
    for found in pkgutil.walk_packages(module.__path__, f"weft.compat.{name}."):
        if ".benchmarks." not in found.name:  # these are programs
            sys.modules[found.name.removeprefix("weft.compat.")] = importlib.import_module(found.name)
