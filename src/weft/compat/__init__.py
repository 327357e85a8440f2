# SPDX-License-Identifier: BSD-3-Clause
"""Drop-ins: other libraries' interfaces over weft, so that programs written for them run unchanged.

- ``ucp``: ucx-py 0.45. ``ucxx``: UCXX 0.52. ``import weft.compat.ucxx as ucxx``, or :func:`install_ucxx`, or for a
  program and all its child processes, untouched: ``PYTHONPATH=$(python -m weft.compat) python program.py``.
- ``distributed_ucxx``: its names over weft's ``ucx://``.
- ``_core``: what ``ucp`` and ``ucxx`` share.
"""

import importlib
import pkgutil
import sys
from pathlib import Path

#: A folder for PYTHONPATH: what lies in it answers ``import ucp`` and ``import ucxx``.
PATH = Path(__file__).parent / "path"


def install_ucp() -> None:
    """Have ``import ucp`` give :mod:`weft.compat.ucp` in this process from here on.

    Raises
    ------
    ImportError
        Another ``ucp`` was imported already: programs that hold names of it would not see these.

    A child process that is started with spawn imports anew: call this there too, or use PYTHONPATH.
    """
    _install("ucp")


def install_ucxx() -> None:
    """Have ``import ucxx`` give :mod:`weft.compat.ucxx` in this process from here on; as :func:`install_ucp`."""
    _install("ucxx")


def install_distributed_ucxx() -> None:
    """Have ``import distributed_ucxx`` give :mod:`weft.compat.distributed_ucxx`; as :func:`install_ucp`."""
    _install("distributed_ucxx")


def _install(name: str) -> None:
    module = importlib.import_module(f"weft.compat.{name}")
    there = sys.modules.get(name)
    if there is not module and hasattr(there, "__version__"):  # not so the file that is calling, path/NAME.py
        raise ImportError(
            f"install_{name}: {getattr(there, '__file__', there)} was imported as {name} before; "
            f"call install_{name} first"
        )
    sys.modules[name] = module
    for found in pkgutil.walk_packages(module.__path__, f"weft.compat.{name}."):
        if ".benchmarks." not in found.name:  # programs of their own
            sys.modules[found.name.removeprefix("weft.compat.")] = importlib.import_module(found.name)
