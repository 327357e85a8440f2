# SPDX-License-Identifier: BSD-3-Clause
"""Run ucx-py's own tests against the drop-in ``weft.compat.ucp``.

    python scripts/ucx_py_tests.py --source DIR [--rev REV] [--only EXPRESSION] [--json FILE]

DIR is a checkout of ucx-py (``git clone --branch branch-0.45 https://github.com/rapidsai/ucx-py``), or a bare git
directory, of which REV is taken. Only its tests and the benchmarks that one of them runs come from there. The tests
need a pytest-asyncio that still has the ``event_loop`` fixture, beside which the project's own tests do not run:

    uv venv .ucx-py && uv pip install --python .ucx-py/bin/python . numpy "pytest==7.*" "pytest-asyncio==0.21.*" \\
        pytest-timeout && .ucx-py/bin/python scripts/ucx_py_tests.py --source DIR

It prints how many passed, failed and were skipped, and why. The status is 1 if a test fails, 2 if nothing could be run.

The tests are ucx-py's (BSD-3-Clause) and none of their text is here. ``tests/compat`` is the project's own.
"""

from __future__ import annotations

import sys
from pathlib import Path

import drop_in

from weft.compat import PATH

#: What the tests need of the checkout: themselves, and the package that test_benchmark_cluster runs.
NEEDED = ("tests", "ucp/benchmarks", "ucp/_libs/tests/test_arr.py")

#: Files that are not run, and why.
LEFT_OUT = {
    "ucp/_libs/tests, but test_arr": "they test ucp._libs.ucx_api, UCX's C functions, which the drop-in lacks",
}


def prepare(folder: Path) -> Path:
    """Write what answers ``import ucp`` in the tests and in the processes that they start; return its folder."""
    path = folder / "path"
    path.mkdir()
    text = (PATH / "ucp.py").read_text()
    # The benchmarks are ucx-py's; everything else under this name is weft's.
    text += f"\nimport weft.compat.ucp\n\nweft.compat.ucp.__path__.append({str(folder / 'ucp')!r})\n"
    (path / "ucp.py").write_text(text)
    return path


def main() -> int:
    told = drop_in.arguments((__doc__ or "").splitlines()[0], "ucx-py", "branch-0.45")
    drop_in.greet(told)
    results = drop_in.Results()
    with drop_in.checkout(told.source, told.rev, NEEDED) as folder:
        tests = [folder / "tests", folder / "ucp/_libs/tests/test_arr.py"]
        results.run(tests, told, path=[prepare(folder), folder / "tests"], options=["--rootdir", str(folder)])
    return results.tell(told, LEFT_OUT)


if __name__ == "__main__":
    sys.exit(main())
