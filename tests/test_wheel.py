# SPDX-License-Identifier: BSD-3-Clause
"""The wheel is small, and works in an environment that has nothing else, on a machine without a compiler.

It builds weft once more, which takes minutes: ``nox -s everything`` runs it; ``nox -s release`` checks its own wheels.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

USE = """
import asyncio, sys, weft
async def main():
    async def handler(peer):
        await peer.send(await peer.recv())
    async with weft.listen("127.0.0.1:0", handler) as listener, weft.connect(listener.address) as peer:
        await peer.send(b"hello")
        assert await peer.recv() == b"hello"
        print(weft.ucx_library().origin, *peer.transports)
asyncio.run(main())
assert "numpy" not in sys.modules and "distributed" not in sys.modules
"""


@pytest.mark.skipif("WEFT_TEST_EVERYTHING" not in os.environ, reason="takes minutes: nox -s everything runs it")
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_wheel(tmp_path):
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not on the path")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("UV_", "VIRTUAL_ENV"))}
    run = {"check": True, "timeout": 1500, "cwd": tmp_path, "env": environment}
    subprocess.run([uv, "build", "-q", "--wheel", "--python", sys.executable, "--out-dir", tmp_path, ROOT], **run)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.stat().st_size <= 1_000_000
    subprocess.run([uv, "venv", "-q", "--python", sys.executable, "clean"], **run)
    python = tmp_path / "clean/bin/python"
    subprocess.run([uv, "pip", "install", "-q", "--python", python, wheel], **run)
    tools = tmp_path / "clean/bin"
    out = subprocess.run(
        [python, "-c", USE],
        cwd=tmp_path,
        env={"PATH": str(tools)},
        check=True,
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert out.stdout.split() == ["wheel", "ring/memory"]
    info = subprocess.run([tools / "weft", "info"], check=True, timeout=60, capture_output=True, text=True)
    assert "UCX" in info.stdout
