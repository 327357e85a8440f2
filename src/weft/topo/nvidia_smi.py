# SPDX-License-Identifier: BSD-3-Clause
"""The text of ``nvidia-smi topo -m``, read and written.

The table has had several forms, all read here:

- NICs under their own names (``mlx5_0``, ``ib0``), or as ``NIC0`` with a legend below (since driver 510);
- CPU affinity in a table of its own below, or as a column, with ``NUMA Affinity`` and ``GPU NUMA ID`` beside it;
- tabs or spaces; the header underlined by escape sequences, which newer drivers write to files too.

Such tables are copied from web pages and mails, so text around the table is skipped. The table itself is read
strictly: one that was cut off, or whose columns merged when it was copied, must not be read as a different machine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from weft.errors import TopologyError
from weft.topo import cpulist
from weft.topo.interconnect import Interconnect, InterconnectClass
from weft.topo.model import Gpu, Nic, Topology

COLUMNS = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")

_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GPU = re.compile(r"GPU[0-9]{1,4}")
_NAME = re.compile(r"[A-Za-z][\w.:-]*")
_COLUMN = re.compile("|".join(name.replace(" ", r"\s+") for name in COLUMNS))
_LEGEND = re.compile(r"\s*(\w+):\s+(\S+)\s*")
_AMD = re.compile(r"ROCm|AMD-?SMI|between two GPUs|\bXGMI\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Matrix:
    """The contents of ``nvidia-smi topo -m``.

    Attributes
    ----------
    names : tuple of str
        Devices in the table's order, GPUs first.
    cells : tuple of tuple of Interconnect
        Square and symmetric, by `names`.
    columns : tuple of (str, tuple of (str or None))
        The columns after the cells: title, and a text for each GPU; None where the cell is blank.
    legend : tuple of (str, str)
        The names of NICs that the table numbers: ``("NIC0", "mlx5_0")``.
    """

    names: tuple[str, ...]
    cells: tuple[tuple[Interconnect, ...], ...]
    columns: tuple[tuple[str, tuple[str | None, ...]], ...] = ()
    legend: tuple[tuple[str, str], ...] = ()

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if _GPU.fullmatch(name))

    def column(self, title: str) -> tuple[str | None, ...]:
        """Return the texts of the column `title` by GPU; None for each where there is no such column."""
        return dict(self.columns).get(title, (None,) * len(self.gpus))

    def text(self) -> str:
        """Write the table as nvidia-smi does; `parse` reads it back."""
        rows = [["", *self.names, *(title for title, _ in self.columns)]]
        for i, name in enumerate(self.names):
            rest = [texts[i] or "" for _, texts in self.columns] if i < len(self.gpus) else []
            rows.append([name, *map(str, self.cells[i]), *rest])
        lines = ["\t".join(row) for row in rows]
        if self.legend:
            lines += ["", "NIC Legend:", "", *(f"  {short}: {name}" for short, name in self.legend)]
        return "\n".join(lines) + "\n"


def parse(text: str, *, name: str = "nvidia-smi topo -m") -> Matrix:
    """Read the first table in `text`.

    Parameters
    ----------
    text : str
        What ``nvidia-smi topo -m`` printed, with or without other text around it.
    name : str
        What to call the text in errors: a file, for example.

    Raises
    ------
    TopologyError
        There is no such table, or it is malformed or cut off; with the line's number, from 1.
    """
    lines = [_ESCAPE.sub("", line) for line in text.splitlines()]
    try:
        return _Table(lines, name).matrix()
    except TopologyError as error:
        for number, line in enumerate(lines, 1):
            if _AMD.search(line):
                raise TopologyError(
                    f"{name}, line {number}: this is AMD's table ({line.strip()[:40]}); only the output of "
                    "nvidia-smi topo -m is read"
                ) from error
        raise


class _Table:
    """The lines of a text; `at` is the index of the next line to read."""

    def __init__(self, lines: Sequence[str], name: str) -> None:
        self.lines = lines
        self.name = name
        self.at = 0

    def error(self, at: int, what: str) -> TopologyError:
        return TopologyError(f"{self.name}, line {max(1, min(at + 1, len(self.lines)))}: {what}")

    def matrix(self) -> Matrix:
        names, titles = self.header()
        first = self.at
        cells: list[tuple[Interconnect, ...]] = []
        affinities: list[list[str | None]] = []
        for i in range(len(names)):
            row, affinity = self.row(names, i, titles)
            cells.append(row)
            if i < sum(map(bool, map(_GPU.fullmatch, names))):
                affinities.append(affinity)
        for i, row in enumerate(cells):
            for j in range(i):
                if row[j] != cells[j][i]:
                    differ = f"{names[i]} to {names[j]} is {row[j]}, but {cells[j][i]} on line {first + j + 1}"
                    raise self.error(first + i, differ)
        columns = [(title, tuple(affinity[k] for affinity in affinities)) for k, title in enumerate(titles)]
        if not columns:
            columns = self.table_below(names)
        return Matrix(tuple(names), tuple(cells), tuple(columns), self.legend(names))

    def header(self) -> tuple[list[str], list[str]]:
        for at, line in enumerate(self.lines):
            words = line.split()
            if words and _GPU.fullmatch(words[0]) and "X" not in words:
                self.at = at + 1
                return self.titles(at, line)
        raise self.error(0, "no table of nvidia-smi topo -m found: no header line with GPU0, GPU1, ...")

    def titles(self, at: int, line: str) -> tuple[list[str], list[str]]:
        matches = list(_COLUMN.finditer(line))
        names = line[: matches[0].start() if matches else None].split()
        after = _COLUMN.sub(" ", line[matches[0].start() :]).split() if matches else []
        gpus = [name for name in names if _GPU.fullmatch(name)]
        titles = [" ".join(match[0].split()) for match in matches]
        strange = next((name for name in [*after, *names] if name in after or not _NAME.fullmatch(name)), None)
        if strange is not None:
            raise self.error(at, f"the head of the table has {strange!r}, which is neither a device nor a known column")
        if len({*names, *titles}) != len(names) + len(titles) or names[: len(gpus)] != gpus:
            raise self.error(at, "the head of the table names something twice, or a GPU after another device")
        return names, titles

    def row(self, names: list[str], i: int, titles: list[str]) -> tuple[tuple[Interconnect, ...], list[str | None]]:
        words = self.lines[self.at].split() if self.at < len(self.lines) else []
        if not words or words[0] != names[i]:
            got = repr(words[0]) if words else "nothing"
            raise self.error(self.at, f"the row of {names[i]} should be here, not {got}: the table is cut off")
        cells = words[1 : len(names) + 1]
        if len(cells) < len(names):
            why = "cut off, or columns ran together"
            raise self.error(self.at, f"{names[i]} has {len(cells)} cells for {len(names)} devices: {why}")
        try:
            row = tuple(Interconnect.parse(cell) for cell in cells)
        except ValueError as error:
            raise self.error(self.at, f"{names[i]}: {error}") from None
        if [k for k, cell in enumerate(row) if cell.kind is InterconnectClass.SELF] != [i]:
            raise self.error(self.at, f"{names[i]} needs its X in column {i + 1}, and only there")
        affinity = self.affinity(names[i], words[len(names) + 1 :], titles if _GPU.fullmatch(names[i]) else [])
        self.at += 1
        return row, affinity

    def affinity(self, name: str, words: list[str], titles: list[str]) -> list[str | None]:
        """Match the text after the cells to the columns; blank cells leave no text."""
        if not words:
            return [None] * len(titles)
        if words == ["N/A"] and titles:  # as on WSL: all blank but the last
            return [*[None] * (len(titles) - 1), "N/A"]
        if len(words) != len(titles):
            what = f"{name} has {len(words)} entries after its cells for {len(titles)} columns"
            raise self.error(self.at, f"{what}: cut off, or columns ran together")
        for word in words:
            self.numbers(name, word)
        return [*words]

    def numbers(self, name: str, word: str) -> None:
        try:
            cpulist.parse("" if word == "N/A" else word)
        except ValueError as error:
            raise self.error(self.at, f"{name}: {error}") from None

    def table_below(self, names: list[str]) -> list[tuple[str, tuple[str | None, ...]]]:
        """Read the table of CPU affinity that drivers before 2019 printed below the matrix."""
        at = self.at
        while at < len(self.lines) and not self.lines[at].strip():
            at += 1
        if at == len(self.lines) or self.lines[at].split() != ["CPU", "Affinity"]:
            return []
        texts: list[str | None] = []
        for name in filter(_GPU.fullmatch, names):
            at += 1
            words = self.lines[at].split() if at < len(self.lines) else []
            self.at = at
            if len(words) not in (1, 2) or words[0] != name:
                raise self.error(at, f"the CPU affinity of {name} should be here: the table is cut off")
            self.numbers(name, words[-1] if len(words) == 2 else "")
            texts.append(words[1] if len(words) == 2 else None)
        return [("CPU Affinity", tuple(texts))]

    def legend(self, names: list[str]) -> tuple[tuple[str, str], ...]:
        found: dict[str, str] = {}
        for line in self.lines[self.at :]:
            match = _LEGEND.fullmatch(line)
            if match and match[1] in names:
                found.setdefault(match[1], match[2])
        return tuple(found.items())


def topology(matrix: Matrix, *, source: str = "nvidia-smi topo -m") -> Topology:
    """Make a topology from the table: GPUs, NICs by their own names, and their interconnects."""
    own = dict(matrix.legend)
    names = [own.get(name, name) for name in matrix.names]
    cpus, nodes = matrix.column("CPU Affinity"), matrix.column("NUMA Affinity")
    gpus = [
        Gpu(name, int(name.removeprefix("GPU")), cpus=_numbers(cpus[i]), node=next(iter(_numbers(nodes[i])), None))
        for i, name in enumerate(matrix.gpus)
    ]
    interconnects = [
        (names[i], names[j], matrix.cells[i][j]) for i in range(len(names)) for j in range(i + 1, len(names))
    ]
    unknown = "not in that text: memory, MIG, the state of NICs, what this process may use"
    nics = tuple(Nic(name, "unknown") for name in names[len(gpus) :])
    return Topology((source, unknown), gpus=tuple(gpus), nics=nics, interconnects=tuple(interconnects))


def _numbers(text: str | None) -> tuple[int, ...]:
    return () if text in (None, "N/A") else cpulist.parse(text or "")
