# SPDX-License-Identifier: BSD-3-Clause
"""What must hold of the package as a whole, and the map of it: run this file to write the map into docs/design.md."""

import ast
import graphlib
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import weft

ROOT = Path(weft.__file__).parent
DESIGN = Path(__file__).parent.parent / "docs/design.md"

#: Imports go one way: a line may import what stands in the lines before it, wherever in a file. A name is a module of
#: weft's, or a package with all that is in it; ``weft`` is the package's own ``__init__``.
ORDER = """
errors typing _units _open_files _distribution _reachable
_native
_signatures _options
_frames _load _claim_scheme _request
config
_connect.encryption _connect.channel_protocol _connect.sockets _connect.address
_connect.route _connect.admission _connect.ring
_connect.links
_connect.message
_connect.handshake
_connect.local
_connect.handshake_io
_tls
explain
peer
connect listen memory
weft
explain.round_trip
topo
doctor links
explain.learned dask deploy lab
explain.command worker
compat
bench
simulate
_cli
_dask_cli __main__
"""
FLOORS = [line.split() for line in ORDER.split("\n") if line]

#: The same for the folders of src/native and what they include; ``module.cpp`` stands above all.
NATIVE_FOLDERS = ["ring", "ucp", "shared", "buffer", "progress", "operations", "connection"]


def place(module):
    """Find a module in the map: the number of its line, and the name there, its own or that of a package around it."""
    name = module.removeprefix("weft.")
    while True:
        for number, names in enumerate(FLOORS):
            if name in names:
                return number, name
        assert "." in name, f"{module} is not in the map"
        name = name.rpartition(".")[0]


def modules():
    """Return the path of each module by its name."""
    paths = [*ROOT.rglob("*.py"), ROOT / "_native.pyi"]
    return {".".join(("weft", *p.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): p for p in paths}


def imports_of(path):
    """Give what a file imports, wherever in it: the module's name, and of ``from m import n`` the names, too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: import absolutely"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def graph():
    """Return which modules of weft's each imports."""
    paths = modules()
    edges = {}
    for module, path in paths.items():
        named = [name for name in imports_of(path) if name.split(".")[0] == "weft"]
        # of `from m import n`, n may be a module, or a name in m
        edges[module] = {name if name in paths else name.rpartition(".")[0] for name in named} - {module}
        assert edges[module] <= paths.keys(), f"{module} imports what is not there: {edges[module] - paths.keys()}"
    return edges


def maps():
    """Draw the two orders, as docs/design.md shows them."""
    floors = ["weft itself" if names == ["weft"] else ", ".join(names) for names in FLOORS]
    orders = {"src/weft": floors, "src/native": [*NATIVE_FOLDERS, "module.cpp"]}
    return {
        name: "\n".join(textwrap.wrap("  <-  ".join(order), 116, subsequent_indent="  ", break_on_hyphens=False))
        for name, order in orders.items()
    }


def block(name, text):
    """Return the text between the marks of the map called `name`: what is before, in, and after it."""
    mark = f"<!-- map of {name}: tests/test_architecture.py draws it -->\n```\n"
    before, found, rest = text.partition(mark)
    assert found, f"{DESIGN} has no map of {name}"
    drawn, end, after = rest.partition("\n```\n")
    return before + found, drawn, end + after


def test_the_design_shows_the_maps():
    for name, drawn in maps().items():
        assert block(name, DESIGN.read_text())[1] == drawn, f"run: python {__file__}"


def test_imports_go_one_way():
    for module, imported in graph().items():
        for other in imported:
            floor, room = place(module)
            below, its_room = place(other)
            assert below < floor or its_room == room, f"{module} imports {other}"


def test_there_are_no_circles():
    """In a room neither."""
    graphlib.TopologicalSorter(graph()).prepare()


def test_the_map_names_what_is_there():
    names = {module.removeprefix("weft.") for module in modules()}
    assert {name for floor in FLOORS for name in floor} <= names


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
    """Beside asyncio only json, which every connection needs; each more would make every import of weft slower."""
    code = """
import asyncio, importlib.util, sys
before = set(sys.modules)
import weft
print(*sorted({name.split(".")[0] for name in set(sys.modules) - before}))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=100, capture_output=True, text=True)
    # Of these asyncio brings some itself: the first up to 3.11, typing up to 3.13.
    brought = set(done.stdout.split()) - {"__future__", "_typing", "typing"}
    assert brought == {"_json", "gc", "json", "weft"}  # gc is built in


def test_public_names_exist_and_are_documented():
    for name in weft.__all__:
        assert getattr(weft, name).__doc__, name


def test_every_file_has_its_licence_and_is_short():
    for path in [*ROOT.rglob("*.py"), *Path(__file__).parent.rglob("*.py")]:
        lines = path.read_text().splitlines()
        assert not lines or "SPDX-License-Identifier: BSD-3-Clause" in lines[0], path
        assert len(lines) <= 700 or ROOT not in path.parents, path


NATIVE = Path(__file__).parent.parent / "src" / "native"

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


if __name__ == "__main__":
    for name, drawn in maps().items():
        first, _, last = block(name, DESIGN.read_text())
        DESIGN.write_text(f"{first}{drawn}{last}")
