# SPDX-License-Identifier: BSD-3-Clause
"""Run xoscar's own communication and pool tests over the drop-in ``weft.compat.ucxx``.

    python scripts/xoscar_tests.py --source DIR [--rev REV] [--only EXPRESSION] [--json FILE]

DIR is a checkout of xoscar (``git clone https://github.com/xorbitsai/xoscar``) at the release that is installed, or a
bare git directory, of which REV is taken. Only its tests come from there: xoscar itself is the installed package.

    uv venv .xoscar && uv pip install --python .xoscar/bin/python . xoscar==0.9.1 pandas mock "pytest<9" \\
        pytest-asyncio pytest-timeout && .xoscar/bin/python scripts/xoscar_tests.py --source DIR

Its tests try UCX where ``ucp`` can be imported, which the drop-in's folder provides, as it does ``ucxx``, which xoscar
imports itself. They run twice, the second time without that folder: what fails then too is not the drop-in's.

It prints how many passed, failed and were skipped, and why. The status is 1 if a test fails only with the drop-in, 2
if nothing could be run. The tests are xoscar's (Apache-2.0) and none of their text is here.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import drop_in

from weft.compat import PATH

PACKAGE = "python/xoscar"
NEEDED = (
    f"{PACKAGE}/backends/communication/tests",
    f"{PACKAGE}/backends/indigen/tests",
    f"{PACKAGE}/backends/test/tests",
    f"{PACKAGE}/tests",
)
TESTS = (
    "backends/communication/tests/test_comm.py",
    "backends/indigen/tests/test_pool.py",
    "backends/test/tests/test_transfer.py",
)


#: A test that does not pass, and why.
REFUSED = {
    "test_comm::test_multiprocess_comm[UCXServer": "forks a process that has used UCX: its child may not use weft",
}


def overlay(folder: Path) -> Path:
    """Lay the tests into a copy of the installed package; return the copy's folder."""
    spec = importlib.util.find_spec("xoscar")
    if spec is None or spec.origin is None:
        print("xoscar is not installed here: see the first lines of this script")
        sys.exit(2)
    target = folder / "copy"
    shutil.copytree(Path(spec.origin).parent, target / "xoscar")
    for part in NEEDED:
        shutil.copytree(folder / part, target / "xoscar" / Path(part).relative_to(PACKAGE), dirs_exist_ok=True)
    return target


def main() -> int:
    told = drop_in.arguments((__doc__ or "").splitlines()[0], "xoscar", "v0.9.1")
    drop_in.greet(told)
    with_weft, without = drop_in.Results(), drop_in.Results()
    with drop_in.checkout(told.source, told.rev, NEEDED) as folder:
        copy = overlay(folder)
        options = ["--rootdir", str(copy), "-o", "asyncio_mode=auto"]
        tests = [copy / "xoscar" / test for test in TESTS]
        without.run(tests, told, path=[copy], options=options)
        refused = dict.fromkeys(without.failed, "fails without the drop-in, too") | REFUSED
        with_weft.run(tests, told, path=[copy, PATH], options=options, refused=refused)
    passed = sum(counts["passed"] for counts in without.files.values())
    print(f"without the drop-in: {passed} passed, {len(without.failed)} failed, {without.skipped.total()} skipped")
    return with_weft.tell(told, {})


if __name__ == "__main__":
    sys.exit(main())
