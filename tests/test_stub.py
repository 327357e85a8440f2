# SPDX-License-Identifier: BSD-3-Clause
"""The committed stub is what stubgen makes of the built module."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_stub_is_current(tmp_path):
    made = tmp_path / "_native.pyi"
    pattern = ROOT / "src/native/stub.pat"
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "weft._native", "-p", pattern, "-o", made]
    subprocess.run(command, check=True, timeout=60)
    golden = ROOT / "src/weft/_native.pyi"
    assert made.read_text() == golden.read_text(), f"run: {' '.join(map(str, command[:-1]))} {golden}"
