# SPDX-License-Identifier: BSD-3-Clause
"""When a worker's process begins to make Arrow's memory in the pool, and that nothing is imported for it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyarrow")

WHERE = """
    import sys
    from weft import _native
    from weft.dask.memory.arrow import arrow_in_pool

    def where():
        import pyarrow
        before = _native.pool_statistics()["live_nbytes"]
        buffer = pyarrow.allocate_buffer(1 << 20)
        print("in the pool" if _native.pool_statistics()["live_nbytes"] > before else "elsewhere", flush=True)
"""


def test_pyarrow_is_not_imported_but_waited_for(spawn: Any) -> None:
    child = spawn(
        WHERE
        + """
    arrow_in_pool()
    arrow_in_pool()
    print("pyarrow" in sys.modules, len(sys.meta_path), flush=True)
    where()
    print(len(sys.meta_path), flush=True)
    """
    )
    loaded, finders = child.line().split()
    assert loaded == "False"
    assert child.line() == "in the pool"
    assert int(child.line()) == int(finders) - 1


def test_a_pyarrow_that_is_there_is_told_at_once(spawn: Any) -> None:
    child = spawn(
        WHERE
        + """
    where()
    arrow_in_pool()
    where()
    """
    )
    assert [child.line(), child.line()] == ["elsewhere", "in the pool"]


def test_another_build_of_arrow_stays_as_it_is(spawn: Any) -> None:
    child = spawn(
        WHERE
        + """
    import logging
    logging.basicConfig(stream=sys.stdout, level="INFO", format="%(name)s: %(message)s")
    import _ctypes, pyarrow.lib
    file, pyarrow.lib.__file__ = pyarrow.lib.__file__, _ctypes.__file__
    arrow_in_pool()
    where()
    """
    )
    assert child.line().startswith("weft: Arrow's memory is not lent: arrow_in_pool: this build of Arrow has no ")
    assert child.line() == "elsewhere"


def test_it_is_switched_off_with_arrays_in_the_pool(spawn: Any) -> None:
    child = spawn(
        WHERE
        + """
    import dask
    from weft.dask import comm
    with dask.config.set({"weft.arrays-in-pool": False}):
        comm._arrays_of_tasks_in_pool()
    where()
    """
    )
    assert child.line() == "elsewhere"
