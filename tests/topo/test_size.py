# SPDX-License-Identifier: BSD-3-Clause
import pytest

import weft
from weft.topo.size import memory_limit

HAVE = 64 * 2**30


@pytest.mark.parametrize(
    ("asked", "nbytes"),
    [
        ("auto", None),
        (None, 0),
        (0, 0),
        ("0", 0),
        (0.5, HAVE // 2),
        ("0.5", HAVE // 2),
        (".25", HAVE // 4),
        (1, HAVE),
        (1.0, HAVE),
        ("1", HAVE),
        (2**30, 2**30),
        (2e9, 2_000_000_000),
        ("2e9", 2_000_000_000),
        ("4GiB", 4 * 2**30),
        ("4 gib", 4 * 2**30),
        ("4Gi", 4 * 2**30),
        ("4GB", 4_000_000_000),
        ("4g", 4_000_000_000),
        ("1.5 MiB", 3 * 2**19),
        (" 64 MiB ", 2**26),
        ("1048576B", 2**20),
        ("2 TiB", 2**41),
    ],
)
def test_limits_as_dask_users_write_them(asked, nbytes):
    assert memory_limit(asked, HAVE) == nbytes


@pytest.mark.parametrize(
    "asked", ["much", "", "-1", -1, "4", 4, "1 kB", "GiB", "1e999", float("nan"), float("inf"), "4XB", "\u00b2", "4 iB"]
)
def test_what_is_no_limit_is_refused(asked):
    with pytest.raises(weft.InvalidParamError, match="a size from 1 MiB up such as 4GiB"):
        memory_limit(asked, HAVE)


def test_a_fraction_of_what_is_not_known():
    with pytest.raises(weft.InvalidParamError, match="a fraction of the machine's memory, which is not known here"):
        memory_limit(0.5, None)


def test_the_same_as_dasks():
    """But for what Dask takes as a handful of bytes."""
    worker_memory = pytest.importorskip("distributed.worker_memory")
    have = worker_memory.system.MEMORY_LIMIT
    for asked in (0.5, "0.5", 1, "64 MiB", "1GB", 2**28, "2e8", 0, None, "0"):
        theirs = worker_memory.parse_memory_limit(asked, 1, 1, logger=None)
        assert (memory_limit(asked, have) or None) == theirs, asked
