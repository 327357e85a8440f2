# SPDX-License-Identifier: BSD-3-Clause
"""Drop-ins: other libraries' interfaces over weft, so that programs written for them run unchanged.

- ``ucp``: ucx-py 0.45. ``import weft.compat.ucp as ucp``, or :func:`install_ucp`, or for a program and all its
  child processes, untouched: ``PYTHONPATH=$(python -m weft.compat) python program.py``.
"""

import importlib
import sys
from pathlib import Path

#: A folder for PYTHONPATH: what lies in it answers ``import ucp``.
PATH = Path(__file__).parent / "path"

_SUBMODULES = ("core", "exceptions", "utils", "_libs", "_libs.arr", "_libs.exceptions", "_libs.utils")


def install_ucp() -> None:
    """Have ``import ucp`` give :mod:`weft.compat.ucp` in this process from here on.

    Raises
    ------
    ImportError
        Another ``ucp`` was imported already: programs that hold names of it would not see these.

    A child process that is started with spawn imports anew: call this there too, or use PYTHONPATH.
    """
    module = importlib.import_module("weft.compat.ucp")
    there = sys.modules.get("ucp")
    if there is not module and hasattr(there, "create_endpoint"):  # not so the file that is calling, path/ucp.py
        raise ImportError(
            f"install_ucp: {getattr(there, '__file__', there)} was imported as ucp before; call install_ucp first"
        )
    sys.modules["ucp"] = module
    for name in _SUBMODULES:
        sys.modules[f"ucp.{name}"] = importlib.import_module(f"weft.compat.ucp.{name}")
