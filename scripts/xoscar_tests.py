# SPDX-License-Identifier: BSD-3-Clause
"""Run xoscar's own communication and pool tests over the drop-in ``weft.compat.ucxx``.

    python scripts/xoscar_tests.py --source DIR [--rev REV] [--only EXPRESSION] [--json FILE]

DIR is a checkout of xoscar (``git clone https://github.com/xorbitsai/xoscar``) at the release that is installed, or a
bare git directory, of which REV is taken. Only its tests come from there: xoscar itself is the installed package.

    uv venv .xoscar && uv pip install --python .xoscar/bin/python . xoscar==0.9.1 pandas mock "pytest<9" \\
        pytest-asyncio pytest-timeout && .xoscar/bin/python scripts/xoscar_tests.py --source DIR

Its tests try UCX where ``ucp`` can be imported, which the drop-in's folder provides, as it does ``ucxx``, which xoscar
imports itself. They run twice, first without that folder: what fails then too is not the drop-in's. One test forks a
process that has used UCX; it runs by itself with ``forkserver``, as CPython 3.14 has it. One fails for a reason of
xoscar's own, and runs once more with the one line of xoscar mended.

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

#: A test whose child forks from a process that has used UCX; its beginning, as pytest takes it.
FORKS = f"xoscar/{TESTS[0]}::test_multiprocess_comm[UCXServer"
#: A plugin of pytest's for it.
PLUGIN = "as_cpython_3_14"

#: A test that fails for xoscar's own reason, why, and the line and the mended one, after which it passes.
OWN = "test_pool::test_ucx_elastic_ip"
CLIENT = "backends/communication/ucx.py"
LINE = "return UCXClient(local_address, dest_address, channel)"
MENDED = "return UCXClient(local_address, prefix + dest_address, channel)"
REFUSED = {
    OWN: "xoscar's own: its UCX client keeps its address without the scheme, is taken for a proxy's because of that, "
    "and the pool forwards the call to itself for ever; with that line mended it passes"
}
NOT_RUN = {
    "test_multiprocess_comm over UCX, by fork": "the child of a process that has used UCX may not use weft, and the "
    "test waits for ever; with `forkserver`, CPython 3.14's default, it is the first row",
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
        refused = REFUSED | dict.fromkeys(without.failed, "fails without the drop-in, too")
        path = [copy, PATH]
        with_weft.run(tests, told, path=path, options=[*options, f"--deselect={FORKS}"], refused=refused)
        (copy / f"{PLUGIN}.py").write_text("import multiprocessing\n\nmultiprocessing.set_start_method('forkserver')\n")
        test = copy / FORKS.partition("[")[0]
        with_weft.run([test], told, path=path, options=[*options, "-p", PLUGIN], prefix="forkserver/")
        client = copy / "xoscar" / CLIENT
        assert LINE in client.read_text(), f"xoscar's {CLIENT} has changed"
        client.write_text(client.read_text().replace(LINE, MENDED))
        test = f"{copy}/xoscar/{TESTS[1]}::{OWN.partition('::')[2]}"
        with_weft.run([test], told, path=path, options=options, prefix="mended/")
    return with_weft.tell(told, NOT_RUN, without=without)


if __name__ == "__main__":
    sys.exit(main())
