# SPDX-License-Identifier: BSD-3-Clause
"""What must stand beside a number for it to mean anything: machine, versions, settings, load."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

#: Distributions whose version changes what is measured, where they are installed.
PACKAGES = ("numpy", "dask", "distributed", "uvloop")


def collect() -> dict[str, object]:
    """Read the machine, the versions and the settings.

    Returns
    -------
    dict
        Ready for JSON. What cannot be read is None, never left out. Records are published, so there is no
        host name, user or path in it but for what the user's UCX_* variables hold; of UCX's library there
        is the version and the origin. ``commit`` is that of the checkout that weft runs from, with a ``+`` if
        its sources were changed; None for an installed weft.
    """
    return {
        "date_utc": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu_model": _cpu_model(),
        "cores_usable": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_average": list(os.getloadavg()),
        "kernel": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "tcp_congestion_control": _congestion_control(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "weft": _version("weft-ucx"),
        "commit": commit(Path(__file__).parents[2]),
        "command": _command(sys.argv),
        "ucx": _ucx(),
        "packages": {name: _version(name) for name in PACKAGES},
        "ucx_variables": {name: value for name, value in sorted(os.environ.items()) if name.startswith("UCX_")},
    }


def remarks(environment: Mapping[str, Any], processes: int) -> Iterator[str]:
    """Say of a record's environment what makes its figures doubtful: a busy machine, or fewer cores than processes."""
    load, cores = environment["load_average"][0], environment["cores_usable"]
    if load > cores / 2:
        yield f"the machine was busy before (load {load:.1f} on {cores} cores): measure again"
    if cores < processes:
        yield f"{processes} processes took turns on {cores} core{'s' if cores != 1 else ''}"


def commit(folder: Path) -> str | None:
    """Return the commit that the files in `folder` are of, with ``+`` if they differ from it; None if of none."""
    git = shutil.which("git")
    if git is None:
        return None

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([git, "-C", str(folder), *words], capture_output=True, text=True)

    if not run("ls-files", ".").stdout:  # nothing of it is tracked: the checkout around it is another project's
        return None
    named = run("rev-parse", "--short=10", "HEAD").stdout.strip()
    return f"{named}{'+' * (run('diff', '--quiet', 'HEAD', '--', '.').returncode != 0)}" if named else None


def _command(argv: list[str]) -> str:
    """Return the command line without what names a folder or a host: an option's value with a slash, ``--hosts``."""
    first = "weft" if Path(argv[0]).name in ("weft", "__main__.py") else Path(argv[0]).name
    words = [re.sub(r"^(--?[\w-]+=)?.*/.*$", r"\1...", word, flags=re.DOTALL) for word in argv[1:]]
    told = [
        "..." if before == "--hosts" else re.sub("^--hosts=.*", "--hosts=...", word)
        for before, word in zip(["", *words], words, strict=False)
    ]
    return shlex.join([first, *told])


def _cpu_model() -> str | None:
    """Name the processor as the kernel does; Arm's kernels give only numbers, which name it too."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    if "model name" in fields:
        return fields["model name"]
    if "CPU part" in fields:
        return f"implementer {fields.get('CPU implementer', '?')} part {fields['CPU part']}"
    return None


def _congestion_control() -> str | None:
    try:
        return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _ucx() -> dict[str, object] | None:
    """Say which UCX weft uses; None where there is none, or where weft's native half is not built."""
    try:
        from weft import ucx_library

        library = ucx_library()
    except ImportError:
        return None
    return {"version": ".".join(map(str, library.version)), "origin": library.origin}
