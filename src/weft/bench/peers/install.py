# SPDX-License-Identifier: BSD-3-Clause
"""An environment of its own for each library that weft is measured beside, made by uv when it is first needed.

They cannot share one: ucx-py, UCXX and weft each pin a UCX of their own.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from weft.bench.common.child import end_with_parent
from weft.bench.common.errors import BenchError

LIMIT_S = 600.0


def folder() -> Path:
    """Return where the environments are kept from one run to the next.

    Raises
    ------
    BenchError
        The user has no home.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weft" / "peers"
    except RuntimeError:
        raise BenchError("this user has no home; set XDG_CACHE_HOME, or --environments") from None


def python_with(packages: Sequence[str], *, under: Path) -> Path:
    """Return the interpreter of an environment that has `packages`, making it if need be.

    Parameters
    ----------
    packages : sequence of str
        As for pip. Empty for this very interpreter.
    under : Path
        Where environments are kept.

    Raises
    ------
    BenchError
        uv is missing, or it could not install them; says what uv said last.
    """
    if not packages:
        return Path(sys.executable)
    key = hashlib.sha256(repr((sys.version, *packages)).encode()).hexdigest()[:12]
    home = under / f"{packages[0]}-{key}"
    python, whole = home / "bin" / "python", home / "whole"
    if whole.is_file():
        return python
    uv = shutil.which("uv")
    if uv is None:
        raise BenchError("needs uv to install it: pip install uv")
    _run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(home)])
    _run([uv, "pip", "install", "--quiet", "--python", str(python), *packages])
    whole.touch()
    return python


def version(python: Path, package: str) -> str:
    """Ask the environment which version of `package` it has."""
    code = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
    return _run([str(python), "-c", code, package]).strip()


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, check=True, text=True, timeout=LIMIT_S, preexec_fn=end_with_parent
        )
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip().splitlines() or [f"ended with status {error.returncode}"]
        # uv marks what went wrong with a cross, and ends with hints
        wrong = [line.strip(" \u00d7") for line in said if "\u00d7" in line or line.startswith("error")]
        reason = wrong[0] if wrong else said[-1]
        raise BenchError(f"{Path(command[0]).name}: {reason}") from error
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{Path(command[0]).name}: not done within {LIMIT_S:g} s") from error
    return done.stdout
