# SPDX-License-Identifier: BSD-3-Clause
"""What a worker's spill buffer evicts and where it reads files to: Dask's parts that this depends on, and others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed.protocol.utils import pack_frames_prelude
from distributed.spill import AnyKeyFile, Slow, SpillBuffer
from tests.dask.test_patches import one, parameters, source
from zict import LRU, File

from weft import _native
from weft.dask import patches_spill


def test_spill_buffer_evicts_by_evict_and_fast_evict() -> None:
    assert parameters(SpillBuffer.evict) == ["self"]
    assert "self.fast.evict()" in source(SpillBuffer.evict)
    assert parameters(LRU.evict) == ["self", "key"]
    assert "key = next(iter(self.heavy or self.order))" in source(LRU.evict)
    assert "self.evict()" in source(LRU.evict_until_below_target)


def test_spill_buffer_weighs_before_it_looks_for_room() -> None:
    insert = source(LRU.set_noevict)
    assert insert.index("self.weight(key, value)") < insert.index("> self.n")
    assert "self.weight(key, value)" in source(SpillBuffer.__mro__[1].slow_to_fast)  # type: ignore[attr-defined]


def test_spill_buffer_reads_each_file_into_one_buffer() -> None:
    assert "AnyKeyFile(spill_directory)" in source(Slow.__init__)
    assert "pickled = self.d[key]" in source(Slow.__getitem__)
    assert "self.load(pickled)" in source(Slow.__getitem__)
    assert "__getitem__" not in vars(AnyKeyFile)
    read = source(File.__getitem__)
    assert "os.path.join(self.directory, self.filenames[key])" in read
    assert read.index("open(fn") < read.index("with self.unlock()") < read.index("fh.readinto(buf)")


def test_lengths_come_first() -> None:
    assert pack_frames_prelude([b"header", b"data"]) == b"".join(n.to_bytes(8, "little") for n in (2, 6, 4))


# ---- others stay ----------------------------------------------------------------------------------------------------


def test_another_spill_buffer_stays(warnings: pytest.LogCaptureFixture, tmp_path: Any) -> None:
    class Other(SpillBuffer):
        def evict(self, how_many: int = 1) -> int:
            return how_many

    buffer = Other(str(tmp_path), target=1000)
    before = buffer.weight, buffer.fast.weight
    patches_spill.steer_spilling(buffer, lambda value: False, lambda: 0)
    assert (buffer.weight, buffer.fast.weight) == before
    assert buffer.evict() == 1
    assert one(warnings, "SpillBuffer")
    patches_spill.steer_spilling({}, lambda value: False, lambda: 0)  # none that spills


def test_other_files_stay(warnings: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    class Other(AnyKeyFile):
        """Of another version."""

    buffer = SpillBuffer(str(tmp_path), target=1000)
    buffer._slow_uncached.d = Other(str(tmp_path))  # type: ignore[assignment]
    patches_spill.read_spilled_into(buffer, _native.pool_allocate)
    assert type(buffer._slow_uncached.d) is Other
    buffer["x"] = np.ones(2000)
    assert buffer["x"].sum() == 2000
    assert one(warnings, "SpillBuffer")
    patches_spill.read_spilled_into({}, _native.pool_allocate)  # none that spills
