# SPDX-License-Identifier: BSD-3-Clause
"""Findings for people: a table in a terminal, lines elsewhere, a record for programs."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from weft.doctor.finding import Finding, Level

_STYLE = {
    Level.NOT_APPLICABLE: "dim",
    Level.OK: "green",
    Level.NOTE: "cyan",
    Level.WARNING: "yellow",
    Level.ERROR: "bold red",
}


def table(findings: Mapping[str, Finding], *, verbose: bool) -> Table:
    """Draw the findings; if `verbose`, also checks that do not apply, and the evidence of passed ones."""
    drawn = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, title=None, caption=counts(findings))
    drawn.caption_justify = "left"
    for name in ("level", "check"):
        drawn.add_column(name, no_wrap=True)
    drawn.add_column("finding", overflow="fold", max_width=max(40, shutil.get_terminal_size().columns - 32))
    for name, finding in _shown(findings, verbose=verbose).items():
        text = Text(finding.what)
        for label, said in _details(finding, verbose=verbose):
            text.append(f"\n{label}: ", style="dim")
            text.append(said, style="bold" if label == "remedy" else "dim")
        drawn.add_row(Text(str(finding.level), style=_STYLE[finding.level]), name, text)
    return drawn


def lines(findings: Mapping[str, Finding], *, verbose: bool) -> list[str]:
    """Write the findings, one line each, with details indented below."""
    shown = _shown(findings, verbose=verbose)
    width = max(map(len, shown), default=0)
    made: list[str] = []
    for name, finding in shown.items():
        made.append(f"{finding.level!s:<8} {name:<{width}}  {finding.what}")
        made += [f"{'':<8} {label}: {said}" for label, said in _details(finding, verbose=verbose)]
    return [*made, counts(findings)]


def _shown(findings: Mapping[str, Finding], *, verbose: bool) -> dict[str, Finding]:
    return {name: each for name, each in findings.items() if verbose or each.level is not Level.NOT_APPLICABLE}


def _details(finding: Finding, *, verbose: bool) -> list[tuple[str, str]]:
    if finding.level <= Level.OK and not verbose:
        return []
    made = [("evidence", said) for said in finding.evidence]
    made += [("remedy", finding.remedy)] if finding.remedy else []
    return made + ([("source", finding.source)] if finding.source else [])


def counts(findings: Mapping[str, Finding]) -> str:
    """Count the findings of each level, the worst first."""
    counted = Counter(finding.level for finding in findings.values())
    plural = {Level.NOTE: "notes", Level.WARNING: "warnings", Level.ERROR: "errors"}
    return ", ".join(
        f"{counted[level]} {level if counted[level] == 1 else plural.get(level, level)}"
        for level in sorted(counted, reverse=True)
    )


def record(findings: Mapping[str, Finding]) -> list[dict[str, Any]]:
    """Return the findings for JSON."""
    return [
        {
            "check": name,
            "level": str(finding.level),
            "what": finding.what,
            "evidence": list(finding.evidence),
            "remedy": finding.remedy or None,
            "source": finding.source or None,
        }
        for name, finding in findings.items()
    ]
