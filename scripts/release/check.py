# SPDX-License-Identifier: BSD-3-Clause
"""What a built wheel must be: right for its platform, and enough in an environment that has nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import build

#: No dependency is missing, and two ends of a connection talk through weft's own rings, and through UCX.
USE = """
import asyncio, sys, weft
async def main():
    async def handler(peer):
        await peer.send(await peer.recv())
    async with weft.listen("127.0.0.1:0", handler) as listener, weft.connect(listener.address) as peer:
        await peer.send(b"hello")
        assert await peer.recv() == b"hello"
        print("connection:", *peer.transports)
asyncio.run(main())
worker = weft.Worker(weft.Context())
endpoint = worker.connect(worker.address)
got = worker.tag_recv(buffer := bytearray(5), tag=7)
endpoint.tag_send(b"hello", tag=7).wait()
assert got.wait() == (5, 7) and buffer == b"hello"
worker.close()
library = weft.ucx_library()
print("libucp:", library)
assert library.origin == "wheel"
"""
DASK = """
from dask.distributed import Client, LocalCluster
if __name__ == "__main__":
    with LocalCluster(protocol="ucx", n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        with Client(cluster) as client:
            assert client.submit(sum, [1, 2]).result(60) == 3
            print("Dask:", client.scheduler.address.split(":")[0])
"""
#: CPython ends threads that want the GIL while it exits; that must not take the process along.
EXIT = """
import threading, time, weft
def work():
    worker = weft.Worker(weft.Context({"TLS": "self"}))
    request = worker.tag_recv(bytearray(8), tag=1)
    while True:
        try:
            request.wait(0.0005)
        except weft.TimedOutError:
            pass
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.5)
"""
#: Tests, of which those of one process are run; what they need besides weft.
TESTS = ["tests/native", "tests/test_request.py", "tests/test_peer.py", "tests/test_lend_itself.py"]
PYTEST = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", "--one-process"]
TEST_PACKAGES = ["pytest", "pytest-timeout", "hypothesis", "trustme", "numpy", "jsonschema", "uvloop"]
#: auditwheel offers only the tags of the architecture that it believes to run on.
_AUDITWHEEL = """
import platform, sys
from auditwheel.main import main
name = sys.argv.pop(1)
platform.machine = lambda: name
sys.exit(main())
"""
_COMPILERS = ("c++", "cc", "clang", "cmake", "g++", "gcc", "ninja", "zig")


def repair(made: Path, architecture: str, out: Path) -> Path:
    """Have auditwheel put the tag on that the wheel earns; refuse one that earns less or would take a library in."""
    platform = build.platform(architecture)
    auditwheel = [sys.executable, "-c", _AUDITWHEEL, architecture]
    build.run([*auditwheel, "show", made])
    build.run([*auditwheel, "repair", "--plat", platform, "--only-plat", "--exclude", "libuc*", "-w", out, made])
    (fixed,) = out.glob(f"{'-'.join(made.name.split('-')[:4])}-*{architecture}.whl")
    assert fixed.name.endswith(f"-{platform}.whl"), fixed.name
    with zipfile.ZipFile(fixed) as archive:
        libraries = [name for name in archive.namelist() if re.search(r"\.so(\.|$)", name)]
    assert [Path(name).parent.as_posix() for name in libraries] == ["weft"], f"{fixed.name} holds {libraries}"
    return fixed


def abi(fixed: Path) -> None:
    """Look at the symbols of a wheel for the stable ABI: each must be part of it."""
    build.run([sys.executable, "-m", "abi3audit", "--strict", "--report", fixed])


def metadata(files: Sequence[Path]) -> None:
    """Have twine look at what PyPI would refuse."""
    build.run([sys.executable, "-m", "twine", "check", "--strict", *files])


def recipe(pythons: Sequence[str]) -> None:
    """Render the conda recipe for both architectures; what its format does not know is an error. It builds nothing."""
    import rattler_build as conda

    read = conda.Stage0Recipe.from_file(build.ROOT / "recipe/recipe.yaml")
    variants = conda.VariantConfig({"python": [f"{each}.*" for each in pythons], "c_stdlib": ["sysroot"]})
    for name in ("linux-64", "linux-aarch64"):
        platform = conda.PlatformConfig(target_platform=name)
        made = read.render(variants, conda.RenderConfig(platform=platform))
        assert len(made) == len(pythons), f"{name}: {len(made)} packages for {len(pythons)} Pythons"
        print(f"recipe: {name}, Python {', '.join(pythons)}")


def clean(fixed: Path, python: str, work: Path) -> None:
    """Use the wheel where there is nothing else: no package, no compiler; then with Dask; then run the tests."""
    folder = work / f"clean-{python}"
    shutil.rmtree(folder, ignore_errors=True)
    build.run(["uv", "venv", "--quiet", "--python", python, folder])
    tools = folder / "bin"
    environment = {"PATH": str(tools), "HOME": str(work)}
    found = [name for name in _COMPILERS if shutil.which(name, path=environment["PATH"])]
    assert not found, f"the environment has {found}"
    _install(folder, str(fixed))
    _use([tools / "python", "-c", USE], environment)
    _use([tools / "weft", "info"], environment)
    for _ in range(5):
        _use([tools / "python", "-c", EXIT], environment)
    _install(folder, f"weft-ucx[dask] @ {fixed.as_uri()}")
    program = folder / "program.py"
    program.write_text(DASK)
    _use([tools / "python", program], environment)
    _install(folder, *TEST_PACKAGES)
    build.run([tools / "python", *PYTEST, *TESTS])


def _install(folder: Path, *packages: str) -> None:
    build.run(
        ["uv", "pip", "install", "--quiet", "--only-binary", ":all:", "--python", folder / "bin/python", *packages]
    )


def _use(command: Sequence[str | os.PathLike[str]], environment: Mapping[str, str]) -> None:
    print("$", Path(command[0]).name, *(["..."] if "-c" in command else command[1:]), flush=True)
    subprocess.run(command, check=True, env=environment, cwd=environment["HOME"], timeout=300)
