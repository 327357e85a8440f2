# SPDX-License-Identifier: BSD-3-Clause
"""What a worker spills: what makes room; and where it reads it back to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from distributed.spill import SpillBuffer

from weft import _native
from weft.dask import patches_spill
from weft.dask.memory import spill

KIB = 1 << 10
SIZE = 128 * KIB


class Loans:
    """Stands for what is borrowed, and counted by others."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.addresses: set[int] = set()
        self.nbytes = 0
        monkeypatch.setattr(_native, "is_flagged", lambda buffer: self.address(buffer) in self.addresses)
        monkeypatch.setattr(_native, "pool_statistics", lambda: {"borrowed_nbytes": self.nbytes})

    @staticmethod
    def address(buffer: Any) -> int:
        return int(np.frombuffer(buffer, "u1").ctypes.data)

    def borrow(self, value: Any) -> Any:
        array = value if isinstance(value, np.ndarray) else value.to_numpy()
        self.addresses.add(self.address(array.data.cast("B") if array.flags.c_contiguous else array.T.data.cast("B")))
        self.nbytes += array.nbytes
        return value


@pytest.fixture
def loans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loans]:
    return Loans(monkeypatch)


@pytest.fixture
def buffer(tmp_path: Path, loans: Loans) -> SpillBuffer:
    """A buffer with room for a little more than four values."""
    buffer = SpillBuffer(str(tmp_path), target=4 * SIZE + 4 * KIB)
    spill.spill_own(buffer, lambda: loans.nbytes)
    return buffer


def value(shape: Any = SIZE) -> np.ndarray:
    return np.ones(shape, "u1")


def test_what_is_borrowed_takes_no_room(buffer: SpillBuffer, loans: Loans) -> None:
    for i in range(20):
        buffer[f"borrowed-{i}"] = loans.borrow(value())
    for i in range(4):
        buffer[f"own-{i}"] = value()
    assert not buffer.disk
    buffer["own-4"] = value()
    assert list(buffer.disk) == ["own-0"]


def test_what_is_borrowed_may_be_larger_than_the_room(buffer: SpillBuffer, loans: Loans) -> None:
    buffer["large"] = loans.borrow(value(16 * SIZE))
    assert not buffer.disk
    buffer["own"] = value(16 * SIZE + 5 * SIZE)
    assert list(buffer.disk) == ["own"]


def test_what_others_count_no_more_takes_room(buffer: SpillBuffer, loans: Loans) -> None:
    for i in range(6):
        buffer[i] = loans.borrow(value())
    loans.addresses.clear()
    loans.nbytes = 0
    buffer["next"] = value()
    assert list(buffer.disk) == [0, 1, 2]


def test_own_keys_go_first_the_oldest_of_them(buffer: SpillBuffer, loans: Loans) -> None:
    buffer["borrowed"] = loans.borrow(value())
    buffer["first"], buffer["second"] = value(), value()
    assert buffer.evict() >= SIZE
    assert list(buffer.disk) == ["first"]
    assert buffer.evict() >= SIZE
    assert buffer.evict() == -1  # nothing more to gain
    assert set(buffer.disk) == {"first", "second"}
    assert list(buffer.fast) == ["borrowed"]


def test_without_loans_it_is_dask_s(buffer: SpillBuffer) -> None:
    for i in range(5):
        buffer[i] = value()
    assert list(buffer.disk) == [0]
    assert buffer.evict() >= SIZE
    assert list(buffer.disk) == [0, 1]
    buffer.fast.evict(4)
    assert list(buffer.disk) == [0, 1, 4]
    assert (buffer[0] == value()).all()


@pytest.mark.parametrize(
    ("make", "borrowed"),
    [
        (lambda: value((SIZE // 256, 256)), True),
        (lambda: np.asfortranarray(value((SIZE // 256, 256))), True),
        (lambda: pd.DataFrame(np.ones((SIZE // 8, 2))), True),
        (lambda: pd.Series(np.ones(SIZE)), True),
        (lambda: np.array([lambda: 0] * 10, dtype=object), False),
    ],
    ids=["array", "Fortran", "frame", "series", "unpicklable"],
)
def test_whose_a_value_is(loans: Loans, make: Any, *, borrowed: bool) -> None:
    value = make()
    assert not spill._is_borrowed(value)
    loans.borrow(value)
    assert spill._is_borrowed(value) is borrowed


def test_other_objects_are_not_asked(loans: Loans) -> None:
    assert not spill._is_borrowed([loans.borrow(value())])


def block_of(value: Any) -> Any:
    while isinstance(value, np.ndarray):
        value = value.base
    return value


def random_in_pool(nbytes: int) -> np.ndarray:
    memory = _native.pool_allocate(nbytes)
    memory[:] = np.random.default_rng(0).bytes(nbytes)
    return np.frombuffer(memory, "u1")


@pytest.fixture
def lendable(tmp_path: Path) -> SpillBuffer:
    """A buffer that spills all, and reads into the pool."""
    buffer = SpillBuffer(str(tmp_path), target=1)
    patches_spill.read_spilled_into(buffer, _native.pool_allocate)
    return buffer


@pytest.mark.parametrize("size", [SIZE, SIZE + 1, 9 << 20], ids=str)  # the last: in two parts
def test_what_is_read_back_can_be_lent(lendable: SpillBuffer, size: int) -> None:
    numbers = np.random.default_rng(0).random(size)  # compressed, they would be copied once more
    lendable["key"] = numbers.copy()  # as long as it lives, it is not read
    assert list(lendable.disk) == ["key"]
    again = lendable["key"]
    assert (again == numbers).all()
    assert again.flags.writeable
    assert again.ctypes.data % 64 == 0
    assert block_of(again).pooled


def test_other_values_are_read_back_too(lendable: SpillBuffer) -> None:
    frame = pd.DataFrame({"number": np.arange(SIZE), "text": ["even", "odd"] * (SIZE // 2)})
    lendable["frame"], lendable["small"], lendable["text"], lendable["array"] = frame, 1, "text", np.ones(3)
    pd.testing.assert_frame_equal(lendable["frame"], frame)
    assert (lendable["small"], lendable["text"], lendable["array"].tolist()) == (1, "text", [1, 1, 1])


def test_what_spilling_freed_is_used_to_read_it_back(lendable: SpillBuffer) -> None:
    for _ in range(2):  # the first allocates
        lendable["key"] = random_in_pool(8 * SIZE)
        before = _native.pool_statistics()["fresh_total_nbytes"]
        assert lendable["key"].nbytes == 8 * SIZE
        del lendable["key"]
    assert _native.pool_statistics()["fresh_total_nbytes"] - before < SIZE
