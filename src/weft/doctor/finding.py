# SPDX-License-Identifier: BSD-3-Clause
"""What a check has to say. No finding without evidence, no remedy that is applied already."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Level(IntEnum):
    """How bad it is.

    Where a check does not apply, this machine has nothing to check. A note is what may be better, or could not be read;
    a warning costs speed or will fail under load; with an error, something that the machine has cannot be used at all.
    """

    NOT_APPLICABLE = -1
    OK = 0
    NOTE = 1
    WARNING = 2
    ERROR = 3

    def __str__(self) -> str:
        return "n/a" if self is Level.NOT_APPLICABLE else self.name.lower()


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found.

    Attributes
    ----------
    level : Level
    what : str
        One line.
    evidence : tuple of str
        What was read, as ``file: text`` or ``command: text``.
    remedy : str
        What to do; empty where there is nothing to do.
    source : str
        Where the rule is from.
    """

    level: Level
    what: str
    evidence: tuple[str, ...]
    remedy: str = ""
    source: str = ""


def not_applicable(what: str, *evidence: str) -> Finding:
    """There is nothing of the kind on this machine."""
    return Finding(Level.NOT_APPLICABLE, what, evidence)


def ok(what: str, *evidence: str) -> Finding:
    """All is well."""
    return Finding(Level.OK, what, evidence)


def note(what: str, *evidence: str, remedy: str = "", source: str = "") -> Finding:
    """It works; it may be better, or could not be read."""
    return Finding(Level.NOTE, what, evidence, remedy, source)


def warning(what: str, *evidence: str, remedy: str, source: str) -> Finding:
    """It costs speed, or fails under load."""
    return Finding(Level.WARNING, what, evidence, remedy, source)


def error(what: str, *evidence: str, remedy: str, source: str) -> Finding:
    """Something does not work at all."""
    return Finding(Level.ERROR, what, evidence, remedy, source)


def exit_code(levels: list[Level]) -> int:
    """Return 0, 1 with a warning or an error; 2 is a wrong command line's."""
    return int(max(levels, default=Level.OK) > Level.NOTE)
