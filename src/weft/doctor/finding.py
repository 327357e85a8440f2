# SPDX-License-Identifier: BSD-3-Clause
"""The result of a check: no finding without evidence, and no remedy that is already applied."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Level(IntEnum):
    """The severity of a finding.

    ``NOT_APPLICABLE``: this machine has nothing to check. ``NOTE``: something could be better, or could not be read.
    ``WARNING``: it costs speed, or will fail under load. ``ERROR``: a part of the machine cannot be used at all.
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
    """The result of one check.

    Attributes
    ----------
    level : Level
    what : str
        The finding, in one line.
    evidence : tuple of str
        What the check read, as ``file: text`` or ``command: text``.
    remedy : str
        What to do; empty if nothing needs to be done.
    source : str
        Where the rule comes from.
    """

    level: Level
    what: str
    evidence: tuple[str, ...]
    remedy: str = ""
    source: str = ""


def not_applicable(what: str, *evidence: str) -> Finding:
    """Return a finding: the check does not apply to this machine."""
    return Finding(Level.NOT_APPLICABLE, what, evidence)


def ok(what: str, *evidence: str) -> Finding:
    """Return a finding: no problem."""
    return Finding(Level.OK, what, evidence)


def note(what: str, *evidence: str, remedy: str = "", source: str = "") -> Finding:
    """Return a finding: it works, but could be better, or could not be read."""
    return Finding(Level.NOTE, what, evidence, remedy, source)


def warning(what: str, *evidence: str, remedy: str, source: str) -> Finding:
    """Return a finding: it costs speed, or fails under load."""
    return Finding(Level.WARNING, what, evidence, remedy, source)


def error(what: str, *evidence: str, remedy: str, source: str) -> Finding:
    """Return a finding: something does not work at all."""
    return Finding(Level.ERROR, what, evidence, remedy, source)


def exit_code(levels: list[Level]) -> int:
    """Return the exit code: 1 if there is a warning or an error, else 0."""
    return int(max(levels, default=Level.OK) > Level.NOTE)
