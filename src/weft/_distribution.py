# SPDX-License-Identifier: BSD-3-Clause
"""The name under which weft is installed, and the hints for users who have to install a part of it.

The package that is imported is ``weft``; the distribution is ``weft-ucx``, because ``weft`` is another project's name.
Both install into the same folder, so the later one overwrites files of the earlier one.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution

NAME = "weft-ucx"
#: The other project's distribution, which installs into the same folder.
OTHER = "weft"
#: The entry point that identifies weft's own distribution, whatever its name.
CLAIM = "weft._claim_scheme:claim"
#: Leaves only weft; uninstalling either one alone also removes files of the other.
SEPARATE = f"pip uninstall {OTHER} {NAME}, then install {NAME} again"


def install(extra: str = "") -> str:
    """Return the command that installs weft with `extra`, with a warning if the other project is installed."""
    name = f'"{NAME}[{extra}]"' if extra else NAME
    version = other()
    if version is None:
        return f"pip install {name}"
    return f"pip install {name} ({OTHER} {version}, which is installed here, is another project: {SEPARATE})"


def other() -> str | None:
    """Return the version of the other project named weft, or None if it is not installed."""
    try:
        found = distribution(OTHER)
    except PackageNotFoundError:
        return None
    return None if any(point.value == CLAIM for point in found.entry_points) else found.version
