# SPDX-License-Identifier: BSD-3-Clause
"""What must hold of the package as a whole."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import weft

ROOT = Path(weft.__file__).parent

#: Imports go one way: a room may import from the rooms before it.
FLOORS = [
    {"errors", "typing", "_native", "_units"},
    {"_claim", "_load"},
    {"config"},
    {"explain"},
    {"_connect", "_tls", "peer"},
    {"connect", "listen", "memory"},
    {"__init__"},
    {"topo"},
    {"doctor"},
    {"dask", "deploy", "lab"},
    {"worker"},
    {"compat"},
    {"bench"},
    {"_cli"},
    {"_dask_cli", "__main__"},
]


def floor_of(module):
    name = module.split(".")[1] if "." in module else "__init__"
    return next(i for i, rooms in enumerate(FLOORS) if name in rooms)


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: import absolutely"
            if node.module == "weft":
                for alias in node.names:
                    known = any(alias.name in rooms for rooms in FLOORS)
                    yield f"weft.{alias.name}" if known else "weft"
            else:
                yield node.module


def test_imports_go_one_way():
    for path in ROOT.rglob("*.py"):
        module = ".".join(("weft", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
        for imported in imports_of(path):
            if imported.split(".")[0] != "weft" or module == "weft":
                continue
            same_room = imported.split(".")[1:2] == module.split(".")[1:2]
            same_room |= {*imported.split(".")[1:2], module.split(".")[1]} <= {"_connect", "_tls", "peer", "explain"}
            assert same_room or floor_of(imported) < floor_of(module), f"{module} imports {imported}"


def test_core_needs_no_dask():
    for path in ROOT.glob("*.py"):
        top = {name.split(".")[0] for name in imports_of(path)}
        assert not top & {"distributed", "numpy", "pandas", "cupy", "rmm", "ucxx"}, path


def test_importing_starts_nothing():
    code = """
import os, threading
before = dict(os.environ)
import weft
assert dict(os.environ) == before
assert threading.active_count() == 1
maps = open("/proc/self/maps").read()
assert "libucp" not in maps and "libucs" not in maps, "UCX was loaded"
assert "numpy" not in __import__("sys").modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


def test_importing_brings_in_little():
    """Beside asyncio only json, which every connection needs; what it takes else to be imported is somebody's wait."""
    code = """
import asyncio, importlib.util, sys
before = set(sys.modules)
import weft
print(*sorted({name.split(".")[0] for name in set(sys.modules) - before}))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=100, capture_output=True, text=True)
    # Of these asyncio brings some itself: the first up to 3.11, typing up to 3.13.
    brought = set(done.stdout.split()) - {"__future__", "_typing", "typing"}
    assert brought == {"_json", "json", "weft"}


def test_public_names_exist_and_are_documented():
    for name in weft.__all__:
        assert getattr(weft, name).__doc__, name


def test_every_file_has_its_licence_and_is_short():
    for path in [*ROOT.rglob("*.py"), *Path(__file__).parent.rglob("*.py")]:
        lines = path.read_text().splitlines()
        assert not lines or "SPDX-License-Identifier: BSD-3-Clause" in lines[0], path
        assert len(lines) <= 400 or ROOT not in path.parents, path


NATIVE = Path(__file__).parent.parent / "src" / "native"

#: Includes go one way: a folder may include from the folders before it. `module.cpp` stands above all.
NATIVE_FOLDERS = ["ucp", "shared", "buffer", "progress", "operations", "connection"]

#: Pairs of files that may include each other: a worker, what it progresses, and what it has under way.
NATIVE_CIRCLES = [{"progress/engine", "progress/request", "progress/worker"}]


def native_includes():
    """What each class's pair of files, by its name without suffix, includes of the others."""
    included = {}
    for path in (*NATIVE.rglob("*.hpp"), *NATIVE.rglob("*.cpp")):
        name = path.relative_to(NATIVE).with_suffix("").as_posix()
        found = re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE)
        for header in found:
            assert (NATIVE / header).is_file(), f"{path} includes {header}, which is not there"
        included.setdefault(name, set()).update(header.removesuffix(".hpp") for header in found)
    return {name: headers - {name} for name, headers in included.items()}


def reached_from(name, included):
    reached, left = set(), [name]
    while left:
        new = included[left.pop()] - reached
        reached |= new
        left += new
    return reached


def test_native_folders_include_one_way():
    for name, headers in native_includes().items():
        if name == "module":
            continue
        floor = NATIVE_FOLDERS.index(name.split("/")[0])
        for header in headers:
            assert NATIVE_FOLDERS.index(header.split("/")[0]) <= floor, f"{name} includes {header}"


def test_native_files_include_in_no_circle():
    included = native_includes()
    reached = {name: reached_from(name, included) for name in included}
    for name in included:
        circle = {other for other in reached[name] if name in reached[other]}
        assert not circle or circle in NATIVE_CIRCLES, f"{name} stands in a circle: {sorted(circle)}"


def test_connections_know_no_ucx():
    """What carries a link's messages can be exchanged: one file posts them through UCX."""
    for path in (NATIVE / "connection").iterdir():
        if path.stem != "carrier_ucx":
            assert not re.search(r"(?<!``)\bucp(_|\.)(?!\w+\.hpp)", path.read_text()), path
