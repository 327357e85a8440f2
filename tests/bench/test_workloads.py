# SPDX-License-Identifier: BSD-3-Clause
"""What each workload must come to: references against NumPy and pandas on the whole, and differences that are seen."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("distributed")
pytest.importorskip("dask.dataframe")

import dask.dataframe as dd
import numpy as np
import pandas as pd

from weft.bench.dask import arrays, moves, tables, workloads


def test_dot_is_told_by_what_it_makes_of_a_vector():
    work = arrays.Dot(size=12, chunk_size=4)
    x, y = (np.block([[arrays.matrix_block(i, j, 4, seed, 10) for j in range(3)] for i in range(3)]) for seed in (1, 2))
    expected = work.reference()
    assert work.difference(x @ y @ work.vector, expected) == ""
    product = x @ y
    product[3, 5] += 1
    assert work.difference(product @ work.vector, expected) == "1 of 12 rows of the product are not NumPy's"


def test_svd_is_told_by_its_definition():
    work = arrays.SingularValues(size=40, second_size=5, chunk_size=10)
    x = np.concatenate([arrays.tall_block(i, 10, 5) for i in range(4)])
    u, s, v = np.linalg.svd(x, full_matrices=False)

    def difference(u, s, v):
        errors = [arrays.decomposition_errors(u[10 * i : 10 * i + 10], s, v, i, 10) for i in range(4)]
        return work.difference((4, s, v, max(e for e, _ in errors), sum(gram for _, gram in errors)), None)

    assert difference(u, s, v) == ""
    assert "u s v differs from x" in difference(u, s * 1.001, v)
    assert "u s v differs from x" in difference(np.roll(u, 10, axis=0), s, v)
    assert "u is not orthonormal" in difference(u * 2, s / 2, v)
    assert "v is not orthonormal" in difference(u, s / 2, v * 2)
    assert "do not fall" in difference(u[:, ::-1], s[::-1], v[::-1])
    assert "values, not 4 and 5" in work.difference((3, s, v, 0.0, np.eye(5)), None)


def test_the_first_table_of_a_merge_has_each_key_once():
    keys = np.concatenate([tables.base_chunk(i, 3, 100)["key"] for i in range(3)])
    assert sorted(keys) == list(range(300))


def test_large_merges_are_told_by_the_rule_of_their_inputs(monkeypatch):
    work = tables.Merge(chunk_size=100, base_chunks=3, other_chunks=2)
    with_pandas = work.reference()
    assert "pandas" in work.checked
    monkeypatch.setattr(tables, "_PANDAS_ROWS", 0)
    by_rule = tables.Merge(chunk_size=100, base_chunks=3, other_chunks=2)
    assert by_rule.reference() == with_pandas == (60, with_pandas[1])
    assert "rule" in by_rule.checked


def test_shuffle_notices_a_key_in_two_partitions():
    work = tables.Shuffle(in_parts=2, partition_size=16 * 50, ignore_index=False)
    whole = pd.concat([tables.group_chunk(i, 50, 10) for i in range(2)])
    expected = work.reference()

    def taken(*parts):
        each = [tables.keys_and_fingerprint(part) for part in parts]
        return (sum(keys for keys, *_ in each), *tables.add_fingerprints([rest for _, *rest in each]))

    even = whole["key"] % 2 == 0
    assert work.difference(taken(whole[even], whole[~even]), expected) == ""
    assert "some lie in two" in work.difference(taken(whole[:60], whole[60:]), expected)
    assert "before the shuffle" in work.difference(taken(whole[even]), expected)


def test_groupby_of_chunks_is_that_of_the_whole():
    work = tables.GroupBy(in_parts=3, chunk_size=100, unique_ratio=0.1, split_out=1)
    whole = pd.concat([tables.group_chunk(i, 100, work.groups) for i in range(3)])
    grouped = whole.groupby("key").agg({"payload": ["sum", "count", "max"]})
    expected = work.reference()
    assert work.difference(tables.group_fingerprint(grouped), expected) == ""
    grouped.iloc[2, 0] += 1
    assert "pandas'" in work.difference(tables.group_fingerprint(grouped), expected)


def test_broadcast_is_checked_on_every_receiver():
    work = moves.Broadcast(nbytes=10, count=2)
    expected = work.reference()
    received = [value for value in expected for _ in range(3)]
    assert work.difference(received, expected) == ""
    received[4] ^= 1
    assert work.difference(received, expected) == "1 of 6 arrays are not what was made"


def test_tasks_are_counted():
    work = moves.Tasks(count=10)
    assert work.reference() == sum(map(moves.add_one, range(10)))
    assert work.difference(54, 55) == "54 came out, not 55"


# --- GPUs, as fakes -----------------------------------------------------------------------------------------


class Device:
    """What CuPy's arrays and cuDF's tables are to these workloads: a value that has to be copied back."""

    def __init__(self, value, way_back):
        self.value = value
        setattr(self, way_back, lambda: value)


@pytest.fixture
def gpu(monkeypatch):
    def array(value):
        made = Device(value, "get")
        made.__cuda_array_interface__ = {}
        return made

    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(asarray=array))
    monkeypatch.setitem(sys.modules, "cudf", SimpleNamespace(from_pandas=lambda table: Device(table, "to_pandas")))


def test_gpu_data_are_the_same_on_a_device(gpu):
    for on_gpu, on_cpu in (
        (arrays.matrix_block(0, 1, 3, 0, 9, "gpu"), arrays.matrix_block(0, 1, 3, 0, 9)),
        (arrays.tall_block(1, 4, 2, "gpu"), arrays.tall_block(1, 4, 2)),
        (moves.payload(0, 5, "gpu"), moves.payload(0, 5)),
        (tables.base_chunk(0, 1, 5, "gpu"), tables.base_chunk(0, 1, 5)),
        (tables.other_chunk(0, 1, 5, 0.3, "gpu"), tables.other_chunk(0, 1, 5, 0.3)),
        (tables.group_chunk(0, 5, 2, "gpu"), tables.group_chunk(0, 5, 2)),
    ):
        assert isinstance(on_gpu, Device)
        assert np.array_equal(workloads.on_host(on_gpu), on_cpu)
        assert workloads.on_host(on_cpu) is on_cpu


def test_gpu_results_are_copied_to_the_host_for_their_check(gpu):
    table = tables.base_chunk(0, 1, 5)
    assert tables.fingerprint(tables.base_chunk(0, 1, 5, "gpu")) == tables.fingerprint(table)
    assert moves.checksum(moves.payload(0, 5, "gpu")) == moves.checksum(moves.payload(0, 5))
    s, v = np.ones(2), np.eye(2)
    on_cpu = arrays.decomposition_errors(np.ones((4, 2)), s, v, 0, 4)
    on_gpu = arrays.decomposition_errors(workloads.on_device(np.ones((4, 2)), "gpu"), s, v, 0, 4)
    assert on_gpu[0] == on_cpu[0]
    assert np.array_equal(on_gpu[1], on_cpu[1])


def test_dask_is_told_what_its_chunks_are(gpu, monkeypatch):
    seen = {}
    monkeypatch.setattr(dd, "from_delayed", lambda parts, meta, verify_meta: seen.update(meta=meta))
    client = SimpleNamespace(submit=lambda *_, **__: None, persist=lambda table: table)
    tables.deal(client, ["w"], ["key"], 1, tables.group_chunk, 1, 1, "gpu")
    assert isinstance(seen["meta"], Device)
    tables.deal(client, ["w"], ["key"], 1, tables.group_chunk, 1, 1, "cpu")
    assert list(seen["meta"].columns) == ["key"]
