# SPDX-License-Identifier: BSD-3-Clause
"""The name under which weft is installed, and what to say to a user who has to install something of it.

The package that is imported is ``weft``; the distribution is ``weft-ucx``, because ``weft`` is another project's. Both
put their files into the same folder, so that the later one overwrites files of the earlier one.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution

NAME = "weft-ucx"
#: The distribution of another project, which has the same folder.
OTHER = "weft"
#: An entry point that tells weft's own distribution from the other, under whichever name.
CLAIM = "weft._claim_scheme:claim"
#: After this only weft is left; either uninstallation by itself takes files of both along.
SEPARATE = f"pip uninstall {OTHER} {NAME}, then install {NAME} again"


def install(extra: str = "") -> str:
    """Return the command that installs weft with `extra`, and a warning where the other project is installed."""
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
