# SPDX-License-Identifier: BSD-3-Clause
"""What the documentation says about the tests is true."""

import ast
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def functions_of(path):
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_fault_names_tests_that_exist_or_says_that_there_is_none():
    rows = [line for line in (ROOT / "docs/faults.md").read_text().splitlines() if line.startswith("|")]
    rows = [row for row in rows if not re.match(r"\|(---| fault )", row)]
    assert len(rows) > 40
    for row in rows:
        proof = row.strip("| ").rpartition("|")[2]
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", proof)
        assert named or "**no**" in proof, row
        for path, name in named:
            assert name in functions_of(path), f"{path}::{name}"


def blocks_of(page):
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    ("page", "at_least"),
    [("README.md", 3), ("docs/tutorial.md", 8), ("docs/dask-observability.md", 1), ("docs/security.md", 2)],
)
def test_every_block_of_python_runs(page, at_least, tmp_path):
    blocks = blocks_of(page)
    assert len(blocks) >= at_least
    # The guard is for the cluster's workers, which import the program that they are started from.
    program = tmp_path / "blocks.py"
    program.write_text('if __name__ == "__main__":\n' + textwrap.indent("\n".join(blocks), "    "))
    subprocess.run([sys.executable, program], check=True, timeout=120)


def test_every_check_of_distributed_names_tests_that_exist():
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", (ROOT / "docs/dask-conformance.md").read_text())
    assert len(named) >= 10
    for path, name in named:
        assert name in functions_of(path), f"{path}::{name}"
