# SPDX-License-Identifier: BSD-3-Clause
"""Which libucp is found, loaded, shared or refused.

A process can load UCX once, so whatever loads runs in an interpreter of its own. The fakes are small
libraries that are linked to each other as UCX's are, and know their version.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from weft import _load

SOURCES = {
    # as in UCX: libucm needs libucs and does not say so
    "libucm": "void ucs_load_modules(void); void ucm_call(void) { ucs_load_modules(); }",
    "libucs": "void ucm_call(void); void ucs_load_modules(void) {} void ucs_call(void) { ucm_call(); }",
    "libuct": "void ucs_call(void); void uct_call(void) { ucs_call(); }",
    "libucp": "void uct_call(void); void ucp_call(void) { uct_call(); }"
    "void ucp_get_version(unsigned *a, unsigned *b, unsigned *c) { *a = MAJOR; *b = MINOR; *c = RELEASE; }",
}
NEEDED = {"libucm": [], "libucs": ["libucm"], "libuct": ["libucs"], "libucp": ["libuct", "libucs"]}

REPORT = """
import ctypes, json, os, sys
for path in sys.argv[1:]: ctypes.CDLL(path)
from weft import _load
try:
    library = _load.load()
    print(json.dumps([library.path, library.version, library.origin]))
except _load.LoadError as error:
    print(json.dumps(str(error)))
"""


def python(code: str, *args: str | Path, **env: str | Path) -> str:
    """Run `code` in a fresh interpreter that no setting of this one steers, and return what it prints."""
    whole = {name: value for name, value in os.environ.items() if name[:4] not in ("UCX_", "WEFT", "LD_L")}
    whole |= {name: str(value) for name, value in env.items()}
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.run(command, env=whole, check=True, capture_output=True, text=True, timeout=60).stdout


def load(*preloaded: str | Path, **env: str | Path) -> tuple[str, tuple[int, ...], str]:
    """Load `preloaded` with ctypes and then UCX; return path, version and origin."""
    answer = json.loads(python(REPORT, *preloaded, **env))
    assert isinstance(answer, list), answer
    return answer[0], tuple(answer[1]), answer[2]


def refusal(*preloaded: str | Path, **env: str | Path) -> str:
    """Like :func:`load`, but return the message of the LoadError."""
    answer = json.loads(python(REPORT, *preloaded, **env))
    assert isinstance(answer, str), answer
    return answer


@pytest.fixture(scope="session")
def wheel() -> Path:
    spec = importlib.util.find_spec("libucx")
    if spec is None or spec.origin is None:
        pytest.skip("no libucx wheel is installed")
    return Path(spec.origin).resolve().parent / "lib"


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    cc = shutil.which("cc")
    if cc is None:
        pytest.skip("no C compiler for the fake libraries")

    @functools.cache
    def build(version: str, *, rpath: bool = True) -> Path:
        folder = tmp_path_factory.mktemp("ucx")
        numbers = zip(("MAJOR", "MINOR", "RELEASE"), version.split("."), strict=True)
        flags = ["-shared", "-fPIC", *(f"-D{name}={number}" for name, number in numbers)]
        flags += ["-Wl,--disable-new-dtags,-rpath,$ORIGIN"] if rpath else []
        for kind, source in SOURCES.items():
            (folder / f"{kind}.c").write_text(source)
            file = f"{kind}.so.0"
            others = [f"{other}.so.0" for other in NEEDED[kind]]
            command = [cc, *flags, f"-Wl,-soname,{file}", "-o", file, f"{kind}.c", *others]
            subprocess.run(command, cwd=folder, check=True)
        return folder

    return build


@pytest.fixture
def fake(build: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    def fake(version: str = "1.18.1", name: str = "a", *, rpath: bool = True) -> Path:
        """Lay a set into a folder of this test; return the libucp."""
        folder = tmp_path / name / "lib"
        shutil.copytree(build(version, rpath=rpath), folder, ignore=shutil.ignore_patterns("*.c"))
        return folder / "libucp.so.0"

    return fake


# --- the memory map -----------------------------------------------------------------------------------------

WHEEL = """\
55d0c1f5e000-55d0c1f5f000 r--p 00000000 fe:00 1048651  /usr/bin/python3.11
7f8433245000-7f843324a000 r--p 00000000 fe:00 10051797  /env/libucx/lib/libucm.so.0
7f843324a000-7f843325a000 r-xp 00005000 fe:00 10051797  /env/libucx/lib/libucm.so.0
7f843327d000-7f84332bd000 r-xp 00015000 fe:00 10053912  /env/libucx/lib/libucs.so
7f84332bd000-7f84332d1000 r--p 00055000 fe:00 10053912  /env/libucx/lib/libucs.so
7f84332e1000-7f84332e4000 r-xp 00002000 fe:00 10053913  /env/libucx/lib/libucs_signal.so
7f8433307000-7f8433320000 r-xp 00013000 fe:00 10053922  /env/libucx/lib/libuct.so
7f8433331000-7f8433335000 r-xp 00003000 fe:00 10053950  /env/libucx/lib/ucx/libuct_cma.so.0
7f8433337000-7f8433339000 r-xp 00003000 fe:00 10053951  /env/libucx/lib/ucx/libucm_cuda.so.0
7f8433360000-7f8433416000 r-xp 00020000 fe:00 10053906  /env/libucx/lib/libucp.so
7f8433420000-7f8433422000 rw-p 00000000 00:00 0
7ffd5b1f2000-7ffd5b213000 rw-p 00000000 00:00 0  [stack]
"""
DEBIAN = "7f1c4f6a1000-7f1c4f73f000 r-xp 0001d000 fe:00 922  /usr/lib/x86_64-linux-gnu/libucp.so.0.0.0"
OPEN_MPI = "7f20f7c14000-7f20f7c9a000 r-xp 0001a000 fe:00 733  /env/lib/openmpi/libucp.so.0"
AUDITED = "7f20f7c14000-7f20f7c9a000 r-xp 0001a000 fe:00 734  /env/x.libs/libucs-2b1f9ca3.so.0.0.0"
SPACES = "7f20f7c14000-7f20f7c9a000 r-xp 0001a000 fe:00 735  /home/a user/my env/lib/libuct.so.0"
DELETED = "7f20f7c14000-7f20f7c9a000 r-xp 0001a000 fe:00 736  /env/lib/libucm.so.0.0.0 (deleted)"
READ_ONLY = "7f20f7c14000-7f20f7c9a000 r--p 00000000 fe:00 737  /env/lib/libucp.so.0"
OTHERS = "7f20f7c14000-7f20f7c9a000 r-xp 00000000 fe:00 738  /env/lib/libucp.so.0.debug"


@pytest.mark.parametrize(
    ("maps", "expected"),
    [
        ("", {}),
        (
            WHEEL,
            {
                "/env/libucx/lib/libucm.so.0": "libucm",
                "/env/libucx/lib/libucs.so": "libucs",
                "/env/libucx/lib/libuct.so": "libuct",
                "/env/libucx/lib/libucp.so": "libucp",
            },
        ),
        (DEBIAN, {"/usr/lib/x86_64-linux-gnu/libucp.so.0.0.0": "libucp"}),
        (OPEN_MPI, {"/env/lib/openmpi/libucp.so.0": "libucp"}),
        (AUDITED, {"/env/x.libs/libucs-2b1f9ca3.so.0.0.0": "libucs"}),
        (SPACES, {"/home/a user/my env/lib/libuct.so.0": "libuct"}),
        (DELETED, {"/env/lib/libucm.so.0.0.0 (deleted)": "libucm"}),
        (READ_ONLY, {}),
        (OTHERS, {}),
    ],
    ids=["empty", "wheel", "debian", "open-mpi", "audited", "spaces", "deleted", "read-only", "others"],
)
def test_mapped_finds_the_four_libraries_and_not_their_modules(maps: str, expected: dict[str, str]) -> None:
    assert _load.mapped(maps) == expected


# --- what is chosen -----------------------------------------------------------------------------------------


def test_import_loads_nothing_and_leaves_the_process_alone() -> None:
    code = """
import os
def state():
    # not SigQ, which counts what is queued for all processes of the user
    with open("/proc/self/status") as status: signals = [s for s in status if s[:6] in ("SigBlk", "SigIgn", "SigCgt")]
    return dict(os.environ), os.listdir("/proc/self/task"), os.listdir("/proc/self/fd"), signals
before = state()
from weft import _load
assert state() == before
with open("/proc/self/maps") as maps: print(_load.mapped(maps.read()))
"""
    assert python(code, WEFT_LIBUCX="/nowhere") == "{}\n"


def test_loading_leaves_the_environment_alone(fake: Callable[..., Path]) -> None:
    code = """
import os
environment = dict(os.environ)
from weft import _load
_load.load()
print(dict(os.environ) == environment)
"""
    assert python(code, WEFT_LIBUCX=fake()) == "True\n"


@pytest.mark.parametrize("choice", [None, "", "wheel"])
def test_the_wheel_is_the_default(wheel: Path, choice: str | None) -> None:
    path, version, origin = load() if choice is None else load(WEFT_LIBUCX=choice)
    assert Path(path).parent == wheel
    assert version >= _load.FLOOR
    assert origin == "wheel"


@pytest.mark.usefixtures("wheel")
def test_the_wheel_is_found_without_importing_it() -> None:
    code = "import sys\nfrom weft import _load\n_load.load()\nprint('libucx' in sys.modules)"
    assert python(code) == "False\n"


@pytest.mark.usefixtures("wheel")
@pytest.mark.parametrize("weft_first", [True, False])
def test_the_wheel_is_one_set_also_for_libucx_itself(weft_first: bool) -> None:
    code = f"""
import libucx
from weft import _load
if {weft_first}: _load.load()
libucx.load_library()
_load.load()
with open("/proc/self/maps") as maps: print(sorted(_load.mapped(maps.read()).values()))
"""
    assert python(code) == "['libucm', 'libucp', 'libucs', 'libuct']\n"


def test_the_system_is_asked_by_soname(fake: Callable[..., Path]) -> None:
    file = fake()
    target = file.rename(file.with_name("libucp.so.0.0.0"))
    file.symlink_to(target.name)
    answer = load(WEFT_LIBUCX="system", LD_LIBRARY_PATH=file.parent)
    assert answer == (str(target), (1, 18, 1), "system")


@pytest.mark.parametrize("up", [0, 1, 2], ids=["file", "folder", "prefix"])
def test_a_path_is_a_file_or_a_folder(fake: Callable[..., Path], up: int) -> None:
    file = fake()
    assert load(WEFT_LIBUCX=[file, *file.parents][up]) == (str(file), (1, 18, 1), "path")


def test_a_moved_set_keeps_to_itself(fake: Callable[..., Path]) -> None:
    file = fake(rpath=False)
    other = fake(name="b", rpath=False)
    assert load(WEFT_LIBUCX=file, LD_LIBRARY_PATH=other.parent) == (str(file), (1, 18, 1), "path")


def test_every_caller_gets_the_same_and_the_log_says_which(fake: Callable[..., Path]) -> None:
    code = """
import logging, sys
from concurrent.futures import ThreadPoolExecutor
logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s", stream=sys.stdout)
from weft import _load
with ThreadPoolExecutor(8) as pool: libraries = list(pool.map(lambda _: _load.load(), range(8)))
print(len({id(library) for library in libraries}))
"""
    file = fake()
    assert python(code, WEFT_LIBUCX=file) == f"weft loaded UCX 1.18.1 from {file} (path)\n1\n"


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["path", "system", "mapped"])
@pytest.mark.parametrize("version", ["1.13.1", "1.15.0", "0.99.0"])
def test_a_libucp_below_the_floor_is_refused(fake: Callable[..., Path], way: str, version: str) -> None:
    file = fake(version)
    if way == "path":
        text = refusal(WEFT_LIBUCX=file)
    elif way == "system":
        text = refusal(WEFT_LIBUCX="system", LD_LIBRARY_PATH=file.parent)
    else:
        text = refusal(file)
    here = ", which was already in this process," if way == "mapped" else ""
    assert f"{file}{here} is UCX {version}, and weft needs 1.16 or newer" in text
    assert ("use weft before" if way == "mapped" else "pip install libucx-cu12") in text


@pytest.mark.parametrize("version", ["1.16.0", "1.22.0", "2.0.0"])
def test_the_floor_and_all_above_are_taken(fake: Callable[..., Path], version: str) -> None:
    assert ".".join(map(str, load(WEFT_LIBUCX=fake(version))[1])) == version


def test_a_missing_path_names_every_place(tmp_path: Path) -> None:
    text = refusal(WEFT_LIBUCX=tmp_path)
    for place in ("libucp.so", "libucp.so.0", "lib/libucp.so.0", "lib64/libucp.so.0"):
        assert f"{tmp_path / place}: no such file" in text


def test_no_libucp_at_all_names_wheel_and_system() -> None:
    code = "import importlib.util\nimportlib.util.find_spec = lambda name: None\n"
    code += REPORT.replace("try:", "_load.SONAME = 'libucp.so.987'\ntry:")
    text = json.loads(python(code))
    assert "package libucx: not installed" in text
    assert "system: libucp.so.987: cannot open shared object file" in text
    assert "pip install libucx-cu12" in text


def test_a_file_that_is_no_library_is_refused_in_the_linkers_words(tmp_path: Path) -> None:
    file = tmp_path / "libucp.so.0"
    file.write_bytes(b"not a library" * 100)
    text = refusal(WEFT_LIBUCX=file)
    assert f"cannot load {file}" in text
    assert "invalid ELF header" in text


def test_a_library_of_another_kind_of_machine_is_refused(fake: Callable[..., Path]) -> None:
    file = fake()
    elf = bytearray(file.read_bytes())
    elf[4] = 3 - elf[4]  # ELFCLASS32 <-> ELFCLASS64
    file.write_bytes(elf)
    assert "wrong ELF class" in refusal(WEFT_LIBUCX=file)


def test_a_library_without_a_version_is_no_libucp(fake: Callable[..., Path]) -> None:
    file = fake()
    shutil.copy(file.with_name("libuct.so.0"), file)
    assert f"{file} is not a libucp" in refusal(WEFT_LIBUCX=file)


def test_a_libucp_without_the_functions_is_refused_by_path(fake: Callable[..., Path]) -> None:
    file = fake()
    code = """
import weft
try:
    weft.ucx_library()
except weft.LoadError as error:
    print(error)
"""
    text = python(code, WEFT_LIBUCX=file)
    assert f"cannot use {file}: libucp has no symbol ucp_" in text
    assert "Remedy: pip install libucx-cu12" in text


# --- what is mapped already ---------------------------------------------------------------------------------


def test_a_mapped_wheel_is_used(wheel: Path) -> None:
    for choice in ({}, {"WEFT_LIBUCX": "wheel"}, {"WEFT_LIBUCX": str(wheel)}):
        path, _, origin = load(wheel / "libucp.so.0", **choice)
        assert (path, origin) == (str(wheel / "libucp.so.0"), "mapped")


def test_a_mapped_set_goes_before_the_wheel(fake: Callable[..., Path]) -> None:
    file = fake()
    assert load(file) == (str(file), (1, 18, 1), "mapped")
    assert load(file, WEFT_LIBUCX=file.parent) == (str(file), (1, 18, 1), "mapped")


def test_a_mapped_set_that_the_linker_would_find_is_the_system(fake: Callable[..., Path]) -> None:
    file = fake()
    answer = load(file, WEFT_LIBUCX="system", LD_LIBRARY_PATH=file.parent)
    assert answer == (str(file), (1, 18, 1), "mapped")


def test_a_path_that_is_not_the_mapped_set_is_refused_by_both(fake: Callable[..., Path]) -> None:
    one, two = fake(), fake(name="b")
    text = refusal(one, WEFT_LIBUCX=two)
    assert f"WEFT_LIBUCX={two} asks for {two}, but {one} is already in this process" in text


def test_the_wheel_is_refused_beside_another_set(wheel: Path, fake: Callable[..., Path]) -> None:
    file = fake()
    text = refusal(file, WEFT_LIBUCX="wheel")
    assert f"WEFT_LIBUCX=wheel asks for {wheel / 'libucp.so'}, but {file} is already" in text


def test_the_system_is_refused_beside_another_set(fake: Callable[..., Path]) -> None:
    file, system = fake(), fake(name="b")
    text = refusal(file, WEFT_LIBUCX="system", LD_LIBRARY_PATH=system.parent)
    assert str(file) in text
    assert str(system) in text


@pytest.mark.parametrize("choice", ["", "system", "{one}"])
def test_two_mapped_sets_are_refused_by_path(fake: Callable[..., Path], choice: str) -> None:
    one, two = fake(), fake(name="b")
    text = refusal(one, two, WEFT_LIBUCX=choice.format(one=one))
    assert "mixed set" in text
    assert str(one) in text
    assert str(two) in text


def test_two_copies_in_one_folder_are_mixed(fake: Callable[..., Path]) -> None:
    file = fake()
    copy = shutil.copy(file, file.with_name("libucp.so"))
    assert "mixed set of UCX libraries: " in (text := refusal(file, copy))
    assert str(copy) in text


def test_a_set_that_the_linker_mixes_is_refused(fake: Callable[..., Path]) -> None:
    one, two = fake(rpath=False), fake(name="b", rpath=False)
    one.with_name("libucs.so.0").unlink()
    text = refusal(WEFT_LIBUCX="system", LD_LIBRARY_PATH=f"{one.parent}:{two.parent}")
    assert "mixed set" in text
    assert str(two.with_name("libucs.so.0")) in text


def test_a_part_is_completed_from_its_own_folder(fake: Callable[..., Path]) -> None:
    file = fake()
    assert load(file.with_name("libuct.so.0"), WEFT_LIBUCX=file) == (str(file), (1, 18, 1), "path")


def test_a_part_of_another_set_is_refused(wheel: Path, fake: Callable[..., Path]) -> None:
    part = fake().with_name("libucs.so.0")
    text = refusal(part)
    assert "part of a UCX" in text
    assert str(part) in text
    assert str(wheel / "libucp.so") in text
    assert f"set WEFT_LIBUCX={part.parent}" in text


def test_a_set_replaced_on_disk_is_refused(fake: Callable[..., Path]) -> None:
    file = fake()
    code = REPORT.replace("from weft", "os.unlink(sys.argv[1])\nfrom weft")
    text = json.loads(python(code, file))
    assert f"{file} (deleted)" in text
    assert "restart Python" in text


WITHOUT_PROC = """
import sys, threading, weft

def accept(listener):
    try:
        listener.accept(1)
    except weft.TimedOutError:
        pass

try:
    weft.Context()
except weft.LoadError as error:
    print(error)
from weft._connect import admission
try:
    admission.own_namespaces()
except weft.UnsupportedError as error:
    print(error)
settings = {"TLS": "tcp"}
with weft.listen("127.0.0.1:0", settings=settings) as listener:
    accepts = threading.Thread(target=accept, args=(listener,))
    accepts.start()
    try:
        weft.connect(listener.address, timeout=20, settings=settings).open()
    except weft.UnreachableError as error:  # the listener rejects it, and says why
        print(error)
    accepts.join()
"""


def test_without_proc_the_error_names_it() -> None:
    alone = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("namespaces cannot be made here")
    done = subprocess.run([*alone, sys.executable, "-c", WITHOUT_PROC], capture_output=True, text=True, timeout=100)
    remedy = "Remedy: mount it: mount -t proc proc /proc."
    load, namespaces, refused = done.stdout.splitlines()
    assert load == f"load UCX: /proc is not mounted. {remedy}", done.stderr
    assert namespaces.startswith("cannot read /proc/self/ns/ipc: /proc is not mounted (mount -t"), done.stderr
    assert "the other side refused: accept from 127.0.0.1:" in refused
    assert "/proc is not mounted" in refused
    assert "/proc is not mounted" in done.stderr
    assert "ulimit" not in done.stderr
    assert done.returncode == 0, done.stderr


SUBINTERPRETER = """
import _xxsubinterpreters as interpreters
import weft

with weft.Worker(weft.Context()) as before:
    child = interpreters.create()
    try:
        interpreters.run_string(child, "import weft")
    except interpreters.RunFailedError as error:
        print(error)
    interpreters.destroy(child)
    assert not before.closed
with weft.Worker(weft.Context()):
    print("the main interpreter works")
"""


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="_xxsubinterpreters is called _interpreters")
def test_a_subinterpreter_is_refused_and_harms_nobody():
    done = subprocess.run([sys.executable, "-c", SUBINTERPRETER], capture_output=True, text=True, timeout=60)
    refusal, *rest = done.stdout.splitlines()
    assert "weft works in a process's main interpreter only, not in a subinterpreter" in refusal, done.stderr
    assert rest == ["the main interpreter works"]
    assert done.returncode == 0, done.stderr
