# SPDX-License-Identifier: BSD-3-Clause
"""What ``weft topo``, ``weft worker --plan`` and ``weft doctor`` print on a machine, as one text."""

import io
import tempfile
from pathlib import Path

from rich.console import Console
from tests.machines import hosts

from weft.doctor import draw as findings
from weft.doctor.checks import examine
from weft.topo import discovery, draw
from weft.topo.options import of
from weft.topo.plan import plan


def text(recorded, topology):
    console = Console(width=160, file=io.StringIO(), highlight=False, markup=False)
    for command, drawn in (
        ("weft topo", draw.topology(topology)),
        ("weft worker --plan", draw.plan(plan(topology, of(topology)))),
        ("weft doctor", "\n".join(findings.lines(examine(recorded), verbose=False))),
    ):
        console.print(f"$ {command}")
        console.print(drawn, soft_wrap=isinstance(drawn, str))
        console.print()
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    return "\n".join(lines).replace(str(recorded.root), "").rstrip() + "\n"


def file(name):
    return Path(__file__).parent / "expected" / f"{name}.txt"


if __name__ == "__main__":
    for name, make in hosts.ALL.items():
        with tempfile.TemporaryDirectory() as folder:
            made = make(Path(folder))
            file(name).parent.mkdir(exist_ok=True)
            file(name).write_text(text(made, discovery.read(made.root, driver=hosts.nvml_of(name))))
