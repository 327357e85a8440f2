# SPDX-License-Identifier: BSD-3-Clause
"""Run UCXX's own Python tests, and distributed-ucxx's, against the drop-in ``weft.compat.ucxx``.

    python scripts/ucxx_tests.py --source DIR [--rev REV] [--only EXPRESSION] [--json FILE]

DIR is a checkout of UCXX (``git clone https://github.com/rapidsai/ucxx``), or a bare git directory, of which REV is
taken. Only its tests, and the modules that are there for them, come from there. They need packages that the project's
own do not:

    uv venv .ucxx && uv pip install --python .ucxx/bin/python . cloudpickle pytest "pytest-asyncio>=1" \\
        pytest-rerunfailures pytest-timeout "dask-cuda[cu12]" && .ucxx/bin/python scripts/ucxx_tests.py --source DIR

With dask-cuda, whose package brings its tests, those of its tests run that need no GPU, with ``distributed_ucxx``.

It prints how many passed, failed and were skipped, and why. The status is 1 if a test fails that is not listed here
with its reason, 2 if nothing could be run.

The tests are UCXX's (BSD-3-Clause) and none of their text is here. ``tests/compat`` is the project's own.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import drop_in

from weft.compat import PATH

UCXX = "python/ucxx/ucxx"
DISTRIBUTED = "python/distributed-ucxx/distributed_ucxx"
NEEDED = (
    f"{UCXX}/_lib_async/tests",
    f"{UCXX}/_lib_async/utils_test.py",
    f"{UCXX}/_lib_async/pytest_stash_keys.py",
    f"{UCXX}/_lib/tests",
    f"{UCXX}/benchmarks/utils.py",
    f"{UCXX}/testing.py",
    f"{DISTRIBUTED}/tests",
    f"{DISTRIBUTED}/utils_test.py",
)

#: What is run by itself, each as UCXX's own CI does.
RUNS = {"async/": f"{UCXX}/_lib_async/tests", "core/": f"{UCXX}/_lib/tests", "dask/": f"{DISTRIBUTED}/tests"}

POINTER = "asks for the address of an object of C++, which is refused"
STREAM = "UCXX's streams are refused: connections of two processes share one endpoint of UCX's, and its stream"
LEGACY = "asks for ucxx://, which was UCXX's name for ucx:// beside ucx-py, and is not there"
THREAD = "a progress thread is refused: a worker of weft's belongs to the thread that made it"

NO_GPU = {"* NVMLError": "asks NVIDIA's driver"}

#: Tests that do not pass, and why.
REFUSED = {
    "async/test_ucx_accessors::test_get_ucxx_worker": POINTER,
    "async/test_ucx_accessors::test_ucxx_endpoint_property": POINTER,
    "async/test_listener::test_listener_handler_": "replaces private functions of UCXX's listener",
    "dask/test_ucxx_config": "the file imports a private function, which makes UCX_TLS of keys without effect here",
    **{f"dask/test_ucxx::test_ucxx_localcluster[{processes}-ucxx]": LEGACY for processes in (True, False)},
    **{f"dask/test_ucxx::test_ucxx_protocol[{port}-ucxx]": LEGACY for port in (0, 1234)},
    **{f"dask/test_worker::test_protocol_from_scheduler_address[{kind}-ucxx]": LEGACY for kind in ("Worker", "Nanny")},
    "core/test_config::test_config_property": "weft leaves sysv and cma out where UCX's default is all",
    "core/test_ucx_handles::test_ucxx_handles": POINTER,
}

#: Tests that are not run, as they would wait for a minute or for ever for what is refused: their beginnings, and why.
LEFT_OUT = {
    "core/test_server_client.py::test_server_client[thread-": THREAD,
    "core/test_server_client.py::test_server_client[blocking-0-stream]": STREAM,
    "core/test_server_client.py::test_server_client[blocking-10-stream]": STREAM,
    "core/test_server_client.py::test_server_client[blocking-16777216-stream]": STREAM,
    "core/test_ucx_handles.py::test_ucp_handles[thread]": THREAD,
    "core/test_ucx_handles.py::test_ucxx_handles[thread]": THREAD,
}

NOT_RUN = LEFT_OUT | {
    "dask-cuda, but test_utils and test_version": "they need a GPU",
    "_lib/tests_cython": "they are C++: a program that is compiled against libucxx",
}


def prepare(folder: Path) -> Path:
    """Write what answers ``import ucxx`` and ``import distributed_ucxx`` in the tests; return its folder."""
    path = folder / "path"
    path.mkdir()
    # What is there for the tests is UCXX's; everything else under these names is weft's.
    for package, names in ((UCXX, ("", "._lib_async", ".benchmarks")), (DISTRIBUTED, ("",))):
        root = Path(package).name
        text = (PATH / f"{root}.py").read_text() + "\nimport sys\n\n"
        for name in names:
            place = folder / package / name.removeprefix(".")
            text += f"sys.modules['{root}{name}'].__path__.append({str(place)!r})\n"
        (path / f"{root}.py").write_text(text)
    return path


def main() -> int:
    told = drop_in.arguments((__doc__ or "").splitlines()[0], "UCXX", "HEAD")
    drop_in.greet(told)
    results = drop_in.Results()
    with drop_in.checkout(told.source, told.rev, NEEDED) as folder:
        path = prepare(folder)
        for prefix, part in RUNS.items():
            tests = folder / part
            options = ["--rootdir", str(tests), "-o", "asyncio_mode=auto", "--continue-on-collection-errors"]
            options += [f"--deselect={name.removeprefix(prefix)}" for name in LEFT_OUT if name.startswith(prefix)]
            results.run([tests], told, path=[path], options=options, prefix=prefix, refused=REFUSED)
        if dask_cuda := importlib.util.find_spec("dask_cuda"):
            cuda = [Path(str(dask_cuda.origin)).parent / "tests" / f"test_{name}.py" for name in ("utils", "version")]
            options = ["--rootdir", str(cuda[0].parent), "--import-mode=importlib"]
            results.run(cuda, told, path=[path], options=options, prefix="dask-cuda/", refused=NO_GPU)
    return results.tell(told, NOT_RUN)


if __name__ == "__main__":
    sys.exit(main())
