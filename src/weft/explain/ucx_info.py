# SPDX-License-Identifier: BSD-3-Clause
"""The transports that UCX finds on this machine, from its tool ``ucx_info``: UCP has no call that lists them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from weft._load import Library

_LIMIT_S = 20.0
_TRANSPORT = re.compile(r"^#\s+Transport:\s+(\S+)", re.MULTILINE)
_DEVICE = re.compile(r"^#\s+Device:\s+(\S+)", re.MULTILINE)
_ERRORS = re.compile(r"^#\s+error handling:\s+(.+?)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Found:
    """One transport that UCX reports.

    Attributes
    ----------
    devices : tuple of str
    error_handling : frozenset of str
        Its abilities when a peer is lost: ``peer failure``, ``keepalive``, ...; empty if UCX lists none.
    """

    devices: tuple[str, ...]
    error_handling: frozenset[str]


def ask(library: Library, settings: Mapping[str, str] | None = None) -> str | None:
    """Run ``ucx_info -d`` and return what it prints; None if there is no such tool or it fails.

    Parameters
    ----------
    library : Library
        The UCX in use; the tool beside it is preferred to one on the path.
    settings : mapping of str to str, optional
        UCX settings without prefix, which affect the transports' abilities. All transports and devices are listed.
    """
    beside = Path(library.path).parent
    tool = beside.parent / "bin" / "ucx_info"
    command = str(tool) if tool.is_file() else shutil.which("ucx_info")
    if command is None:
        return None
    # the wheel's tools do not find the wheel's libraries without it
    paths = [str(beside), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    environment = {**os.environ, **{f"UCX_{name}": value for name, value in (settings or {}).items()}}
    for limit in ("UCX_TLS", "UCX_NET_DEVICES"):
        environment.pop(limit, None)
    try:
        asked = subprocess.run(
            [command, "-d"],
            capture_output=True,
            check=True,
            env=environment | {"LD_LIBRARY_PATH": ":".join(paths)},
            text=True,
            timeout=_LIMIT_S,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return asked.stdout


def transports(text: str) -> dict[str, Found]:
    """Read the transports in what ``ucx_info -d`` prints, in its order: each once, with all of its devices."""
    found: dict[str, Found] = {}
    starts = [*_TRANSPORT.finditer(text)]
    for i, start in enumerate(starts):
        part = text[start.end() : starts[i + 1].start() if i + 1 < len(starts) else len(text)]
        before = found.get(start[1], Found((), frozenset()))
        errors = {each.strip() for told in _ERRORS.findall(part) for each in told.split(",")} - {"none"}
        found[start[1]] = Found((*before.devices, *_DEVICE.findall(part)), before.error_handling | errors)
    return found
