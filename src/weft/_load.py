# SPDX-License-Identifier: BSD-3-Clause
"""Finds libucp at run time, loads it once, and identifies it; the native module binds its functions.

Importing this module loads nothing, because loading UCX has side effects. The constructors of its libraries

- read ``UCX_*`` from the environment for their global options; later changes have no effect on those;
- install a SIGHUP handler: an earlier handler is lost, and a hangup no longer ends the process
  (``UCX_DEBUG_SIGNO``, 0 for none);
- patch the first instructions of ``mmap``, ``munmap``, ``shmat`` and related functions in this process
  (``UCX_MEM_EVENTS``), and spin for 50 ms after each of the eight, in case another thread is executing
  them (5 ms in 1.18): 0.40 s of CPU with 1.22.0, 2 ms without. Only memory registered with devices needs
  this, so weft disables it on machines without such a device, if the UCX version permits.

A process can hold only one UCX. Two copies patch the same functions, and a transport module (``libuct_cma.so``)
binds to the copy that was loaded first, not to the one that loads it. So weft checks the mapped libraries
before it loads anything, and again afterwards.

Three facts determine how the files are opened:

- The ``libucx`` wheels contain copies where packages have links: ``libucs.so`` and ``libucs.so.0`` are two
  files, and opening both loads a second set. ``libucx.load_library`` opens ``libucs.so``, so the bare name
  goes first here, too.
- A libucp that was moved after it was built (unpacked packages, a relocated prefix) finds its siblings through
  LD_LIBRARY_PATH or not at all, and may find another UCX. If they are opened first, they are found by
  soname.
- libucm and libucs depend on each other, but only libucs declares it: libucm can only be opened alone with
  lazy binding.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import sys
import threading
from collections.abc import Generator
from typing import TYPE_CHECKING, NamedTuple

from weft.errors import LoadError

if TYPE_CHECKING:
    import ctypes

#: The oldest UCX with everything that weft needs; Ubuntu 24.04 ships it.
FLOOR = (1, 16)
SONAME = "libucp.so.0"

_REMEDY = "pip install libucx-cu12 (no GPU needed), or set WEFT_LIBUCX to wheel, system or a libucp's path"
# auditwheel renames to libucp-1f2e3d4c.so.0; modules like libuct_cma.so belong to a set but do not make one
_NAME = re.compile(r"(libuc[mstp])(?:-[^/]+)?\.so(?:\.\d+)*")
_DELETED = " (deleted)"

_lock = threading.Lock()
_log = logging.getLogger("weft")


class Library(NamedTuple):
    """The libucp that this process uses. It stays loaded until the process ends.

    Attributes
    ----------
    path : str
        The file that is mapped, links resolved.
    version : tuple of (int, int, int)
        What ``ucp_get_version`` says.
    origin : {"wheel", "system", "path", "mapped"}
        Who chose it: the installed ``libucx`` wheel, the dynamic linker, ``WEFT_LIBUCX`` with a path,
        or whoever loaded it into this process before weft did.
    """

    path: str
    version: tuple[int, int, int]
    origin: str

    def __str__(self) -> str:
        return f"UCX {_dotted(self.version)} from {self.path} ({self.origin})"


def load() -> Library:
    """Find, check and load libucp; later calls return the same.

    A set that is mapped already is used. Otherwise ``WEFT_LIBUCX`` decides (``wheel``, ``system``, or the
    path of a libucp or of a folder that holds one), and without it the wheel if installed, else the system.

    Returns
    -------
    Library

    Raises
    ------
    LoadError
        No libucp was found, the one found is too old or cannot be loaded, or another or a mixed set is
        mapped. What was loaded for the check stays loaded: try again in a new process.

    Source: ``dlopen``, ``ucp_get_version``, ``/proc/self/maps``.
    """
    with _lock:
        return _load()


def unusable(path: str, cause: object) -> LoadError:
    """Return the error for the libucp at `path`, which was loaded but lacks what weft needs."""
    return _error(f"cannot use {path}: {cause}", _REMEDY)


def mapped(maps: str) -> dict[str, str]:
    """List the UCX libraries in a process's memory map.

    Parameters
    ----------
    maps : str
        The text of ``/proc/<pid>/maps``.

    Returns
    -------
    dict of str to str
        File -> ``"libucm"``, ``"libucs"``, ``"libuct"`` or ``"libucp"``, in the order of the map. A file that
        is gone from its folder ends in ``" (deleted)"``, as the kernel writes it.
    """
    found: dict[str, str] = {}
    for line in maps.split("\n"):
        fields = line.split(None, 5)
        # a file that is only read through mmap is not loaded: a loaded library has an executable part
        if len(fields) < 6 or "x" not in fields[1]:
            continue
        match = _NAME.fullmatch(os.path.basename(fields[5].removesuffix(_DELETED)))
        if match:
            found[fields[5]] = match[1]
    return found


@functools.cache
def _load() -> Library:
    wanted = os.environ.get("WEFT_LIBUCX", "")
    before = _mapped_now()
    _refuse_mixed(before)
    places: list[str] = []
    origin, path = "mapped", _libucp(before)
    # without WEFT_LIBUCX, a complete set that is already mapped wins; otherwise the mapped files must match the choice
    if wanted or len(before) < 4:
        chosen, candidate = _choose(wanted, places)
        if before:
            _refuse_conflict(before, wanted, chosen, candidate)
        if not path:
            origin, path = chosen, candidate

    with _memory_events(path):
        handle = _dlopen(path, before, places)
    after = _mapped_now()
    new = {file: kind for file, kind in after.items() if file not in before}
    path = _libucp(new) or _libucp(after) or path
    version = _version(handle, path)
    if version < FLOOR:
        here, remedy = "", _REMEDY
        if origin == "mapped":
            here = ", which was already in this process,"
            remedy = "use weft before the package that loaded it, or have that package use a newer one"
        found = f"{path}{here} is UCX {_dotted(version)}"
        raise _error(f"{found}, and weft needs {_dotted(FLOOR)} or newer", remedy)
    _refuse_mixed(after)
    library = Library(path, version, origin)
    _log.info("loaded %s", library)
    return library


#: Driver files of devices that register memory: NVIDIA GPUs (also Jetson's, and under WSL), AMD GPUs, other
#: accelerators, RDMA devices.
_DEVICES = (
    *("/dev/nvidiactl", "/dev/nvmap", "/dev/dxg", "/dev/kfd", "/dev/accel"),
    *("/dev/infiniband", "/sys/class/infiniband"),
)


@contextlib.contextmanager
def _memory_events(path: str) -> Generator[None]:
    """Keep UCX from patching ``mmap`` while it loads, unless there are devices to register memory with, or it is set.

    UCX before 1.22 must not be told: without its registration cache, it crashes when a rendezvous is cancelled
    (``ucp_request_memh_invalidate``). Only a wheel reveals its version before it is loaded.

    UCX reads this from the environment while it loads. The C library's environment is changed and restored under the
    GIL; ``os.environ`` does not see the change.
    """
    if "UCX_MEM_EVENTS" in os.environ or any(map(_has_entries, _DEVICES)) or _wheel_version(path) < (1, 22):
        yield
        return
    os.putenv("UCX_MEM_EVENTS", "n")
    try:
        yield
    finally:
        os.unsetenv("UCX_MEM_EVENTS")


def _wheel_version(path: str) -> tuple[int, int]:
    """Return the version of the wheel that owns the libucp at `path`: the older of two in a folder, (0, 0) for none."""
    package = os.path.dirname(os.path.dirname(path))
    if os.path.basename(package) != "libucx":
        return 0, 0
    names = os.listdir(os.path.dirname(package))
    versions = filter(None, (re.fullmatch(r"libucx_cu\d+-(\d+)\.(\d+)\..*dist-info", name) for name in names))
    return min(((int(version[1]), int(version[2])) for version in versions), default=(0, 0))


def _has_entries(path: str) -> bool:
    return bool(os.listdir(path)) if os.path.isdir(path) else os.path.exists(path)


def _choose(wanted: str, places: list[str]) -> tuple[str, str]:
    """Choose origin and file according to `wanted`; places that were searched without success are added to `places`."""
    if wanted in ("", "wheel"):
        import importlib.util

        spec = importlib.util.find_spec("libucx")  # finds it without importing it
        if spec is None:
            places.append("package libucx: not installed")
        for folder in spec.submodule_search_locations or () if spec else ():
            path = _first_file([f"{folder}/lib"], places)
            if path:
                return "wheel", path
    if wanted in ("", "system"):
        return "system", SONAME
    if wanted != "wheel":
        if os.path.isfile(wanted):
            return "path", os.path.realpath(wanted)
        path = _first_file([wanted, f"{wanted}/lib", f"{wanted}/lib64"], places)
        if path:
            return "path", path
    raise _missing(places)


def _first_file(folders: list[str], places: list[str]) -> str:
    for path in [f"{folder}/{name}" for folder in folders for name in ("libucp.so", SONAME)]:
        if os.path.isfile(path):
            return os.path.realpath(path)
        places.append(f"{path}: no such file")
    return ""


def _system_files() -> list[str]:
    """List the places where the dynamic linker may find libucp by name.

    Good enough to recognize and name a mapped set. The linker itself decides what is loaded: it also knows RPATHs,
    hardware capabilities and the environment at process start.
    """
    folders = [f"{sys.base_prefix}/lib", *re.split("[:;]", os.environ.get("LD_LIBRARY_PATH", ""))]
    with contextlib.suppress(FileNotFoundError), open("/etc/ld.so.cache", "rb") as cache:
        folders += map(os.fsdecode, re.findall(rb"(/[^\0]*)/libucp\.so\.0(?=\0)", cache.read()))
    files = [f"{folder}/{SONAME}" for folder in folders if folder]
    return [os.path.realpath(file) for file in files if os.path.isfile(file)]


def _dlopen(path: str, before: dict[str, str], places: list[str]) -> ctypes.CDLL:
    """Load the libucp at `path` and the libraries next to it; `before` are the libraries that were already mapped."""
    import ctypes  # lazy: it would slow down weft's import

    mode = os.RTLD_NOW | os.RTLD_LOCAL
    folder, name = os.path.split(path)
    suffix = name.removeprefix("libucp")
    # libucm by the soname that libucs requests: in the wheels, the other suffix is another file
    siblings = {"libucm": "libucm.so.0", "libucs": f"libucs{suffix}", "libuct": f"libuct{suffix}"}
    try:
        for kind, file in siblings.items():
            sibling = f"{folder}/{file}"
            if not folder or {kind, "libucp"} & set(before.values()) or not os.path.isfile(sibling):
                continue
            if kind == "libucm":
                _dlopen_lazily(sibling)
            else:
                ctypes.CDLL(sibling, mode=mode)
        return ctypes.CDLL(path, mode=mode)
    except OSError as error:
        if folder:
            raise _error(f"cannot load {path}: {error}", _REMEDY) from error
        places.append(f"system: {error}")
        raise _missing(places) from error


def _dlopen_lazily(path: str) -> None:
    import ctypes

    # ctypes.CDLL always adds RTLD_NOW. Ignore a failure: the library that needs this one reports it better.
    dlopen = ctypes.CDLL(None).dlopen
    dlopen.argtypes = [ctypes.c_char_p, ctypes.c_int]
    dlopen.restype = ctypes.c_void_p
    dlopen(os.fsencode(path), os.RTLD_LAZY | os.RTLD_LOCAL)


def _version(libucp: ctypes.CDLL, path: str) -> tuple[int, int, int]:
    import ctypes

    try:
        ask = libucp.ucp_get_version
    except AttributeError as error:
        raise _error(f"{path} is not a libucp: it has no ucp_get_version", _REMEDY) from error
    ask.argtypes = [ctypes.POINTER(ctypes.c_uint)] * 3
    ask.restype = None
    major, minor, release = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_uint()
    ask(major, minor, release)
    return major.value, minor.value, release.value


def _refuse_mixed(found: dict[str, str]) -> None:
    """Raise unless the files in `found` share a folder, are one of each kind, and still exist on disk."""
    gone = [file for file in found if file.endswith(_DELETED)]
    if gone:
        remedy = "restart Python: UCX would load modules of the new files into the old ones"
        raise _error(f"UCX was replaced or removed since this process loaded it: {', '.join(gone)}", remedy)
    folders = {os.path.dirname(file) for file in found}
    if len(folders) < 2 and len(set(found.values())) == len(found):
        return
    raise _error(
        f"this process has a mixed set of UCX libraries: {', '.join(found)}",
        "keep one: uninstall the other or take it out of LD_LIBRARY_PATH, or set WEFT_LIBUCX to the libucp "
        "that the other package uses",
    )


def _refuse_conflict(before: dict[str, str], wanted: str, chosen: str, candidate: str) -> None:
    """Raise unless the candidate is in the folder of the libraries that were mapped `before`."""
    files = [candidate] if chosen != "system" else _system_files()
    folder = os.path.dirname(next(iter(before)))
    if folder in [os.path.dirname(file) for file in files]:
        return
    other = files[0] if files else candidate
    present = _libucp(before) or ", ".join(before)
    if wanted:
        raise _error(
            f"WEFT_LIBUCX={wanted} asks for {other}, but {present} is already in this process",
            "unset WEFT_LIBUCX to use what is here, or use weft before the package that loads it",
        )
    raise _error(
        f"this process has part of a UCX, {present}, which {other} would not complete",
        f"set WEFT_LIBUCX={folder}, or use weft before the package that loads it",
    )


def _mapped_now() -> dict[str, str]:
    try:
        with open("/proc/self/maps", "rb") as maps:
            return mapped(os.fsdecode(maps.read()))
    except FileNotFoundError:
        raise _error("/proc is not mounted", "mount it: mount -t proc proc /proc") from None


def _libucp(found: dict[str, str]) -> str:
    return next((file for file, kind in found.items() if kind == "libucp"), "")


def _missing(places: list[str]) -> LoadError:
    return _error(f"no libucp found; looked at {'; '.join(places)}", _REMEDY)


def _error(cause: str, remedy: str) -> LoadError:
    return LoadError(f"load UCX: {cause}. Remedy: {remedy}.", op="load")


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
