# SPDX-License-Identifier: BSD-3-Clause
"""weft's native module for the guest's Python, and the folder that the guest sees."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import zlib
from pathlib import Path

from image import Image

SOURCE = Path(__file__).parents[2]


def stage(image: Image, cache: Path, folder: Path) -> None:
    """Put into `folder` what the guest runs: weft with its native module, its tests, and the cases."""
    module = _native(image, cache / "native")
    ignore = shutil.ignore_patterns("__pycache__", "native")
    shutil.copytree(SOURCE / "src/weft", folder / "weft")
    shutil.copy(module, folder / "weft")
    shutil.copytree(Path(__file__).with_name("guest"), folder / "guest", ignore=ignore)
    shutil.copytree(SOURCE / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    # There, 5 s are short: so slow is the guest. After 20 s UCX's keepalive would wake who has missed a message.
    for test in (folder / "tests/native").glob("test_*.py"):
        test.write_text(test.read_text().replace(".wait(5)", ".wait(15)"))
    shutil.copy(SOURCE / "pyproject.toml", folder)
    python, environment = image.python()
    compiling = ["-m", "compileall", "-q", "-s", folder, "-p", "/weft", "--invalidation-mode", "unchecked-hash", folder]
    subprocess.run([*python, *compiling], check=True, timeout=300, env={**os.environ, **environment})


def _native(image: Image, folder: Path) -> Path:
    """Build the native module with this machine's compiler and the guest's headers; return the file.

    CMake asks the Python that it builds for where things are, so that must run here. nanobind and the headers of UCX
    are pure Python to it, and come from the packages of the Python that runs this.
    """
    folder.mkdir(exist_ok=True)
    python, environment = image.python()
    environment["PYTHONPATH"] = sysconfig.get_path("purelib")
    wrapper = folder / "python3"
    exports = "".join(f"export {name}='{value}'\n" for name, value in environment.items())
    wrapper.write_text(f'#!/bin/sh\n{exports}exec {" ".join(python)} "$@"\n')
    wrapper.chmod(0o755)
    build = folder / f"build-{zlib.crc32(bytes(SOURCE)):08x}"  # this checkout's: CMake refuses another's
    # Not optimised as the wheel is: that takes minutes, and nothing is measured in the guest.
    configure = ["-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O1", "-G", "Ninja", f"-DPython_EXECUTABLE={wrapper}"]
    commands = (
        ["cmake", "-S", SOURCE, "-B", build, *configure],
        ["cmake", "--build", build, "--target", "_native"],
    )
    for command in commands:
        subprocess.run(command, check=True, timeout=1200, stdout=subprocess.DEVNULL)
    return next(build.glob("_native*.so"))
