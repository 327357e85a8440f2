# SPDX-License-Identifier: BSD-3-Clause
"""Each example runs, and prints what it is to show."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import weft
from weft import lab

EXAMPLES = Path(__file__).parents[1] / "examples"
#: What each prints; those of Dask and of a lab take more than a second.
PRINTS = {
    "dask_laptop": r"sum: 7999998000000\n(.|\n)*\blent\b",
    "two_hosts": r"       8 B in [\d.]+ ms over tcp/lab0\n 1048576 B in [\d.]+ ms over tcp/lab0\n",
    "pipeline": r"means: \[0\.0, 1\.0, 2\.0, 3\.0, 4\.0, 5\.0, 6\.0, 7\.0\]; 16 MiB lent, none copied\n",
    "remote_memory": r"slots: 0 by (ann|bob), 1 by (ann|bob), .*, 7 by (ann|bob)\n",
    "torch_loader": r"means: \[0\.0, 1\.0, 2\.0, 3\.0\]; 12 MiB borrowed\n",
    "service": r"without TLS: .*\n3 clients served, largest mean [\de.-]+\n",
}
SLOW = ("dask_laptop", "two_hosts", "torch_loader")


def test_each_example_is_run_here():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*PRINTS, "notebook"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in PRINTS])
def test_an_example_prints_what_it_is_to_show(name):
    if name == "torch_loader" and importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    if name == "two_hosts":
        try:
            lab.Lab(lab.parse({"hosts": {"a": {}, "b": {}}, "links": [{"between": ["a", "b"]}]})).__enter__().close()
        except weft.UnsupportedError as error:
            pytest.skip(str(error))
    done = subprocess.run([sys.executable, EXAMPLES / f"{name}.py"], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert re.match(PRINTS[name], done.stdout), done.stdout


def test_the_notebook_is_the_script():
    sys.path.insert(0, str(EXAMPLES))
    try:
        import notebook
    finally:
        sys.path.remove(str(EXAMPLES))
    made = notebook.notebook(notebook.SCRIPT.read_text())
    assert made == notebook.SCRIPT.with_suffix(".ipynb").read_text()
    code = ["".join(cell["source"]) for cell in json.loads(made)["cells"] if cell["cell_type"] == "code"]
    assert code[-1] == "main()"
    compile("\n".join(code), "notebook", "exec")
