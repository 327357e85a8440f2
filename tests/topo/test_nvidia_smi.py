# SPDX-License-Identifier: BSD-3-Clause
import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.machines import matrices

import weft
from weft.topo import cpulist, nvidia_smi
from weft.topo.interconnect import Interconnect, InterconnectClass
from weft.topo.nvidia_smi import Matrix


@pytest.fixture(params=matrices.ALL)
def text(request):
    return matrices.ALL[request.param]


def test_each_cell_is_where_it_stands(text):
    matrix = nvidia_smi.parse(text)
    rows = [line.split() for line in text.splitlines()[1 : len(matrix.names) + 1]]
    assert [row[0] for row in rows] == list(matrix.names)
    assert [row[1 : len(rows) + 1] for row in rows] == [[*map(str, row)] for row in matrix.cells]


def test_round_trip(text):
    matrix = nvidia_smi.parse(text)
    assert nvidia_smi.parse(matrix.text()) == matrix


def test_text_around_the_table_is_skipped(text):
    around = "# How to\n\n| GPU  Name |\n```\n$ nvidia-smi topo -m\n" + text + "\n```\nGPU0 is the first.\n"
    assert nvidia_smi.parse(around) == nvidia_smi.parse(text)


def test_the_table_of_affinity_below():
    matrix = nvidia_smi.parse(matrices.DGX_1)
    assert matrix.columns == (("CPU Affinity", ("0-19,40-59",) * 4 + ("20-39,60-79",) * 4),)
    assert len(matrix.names) == 12


def test_columns_and_legend():
    matrix = nvidia_smi.parse(matrices.H100)
    assert matrix.gpus == ("GPU0", "GPU1", "GPU2", "GPU3")
    assert matrix.column("NUMA Affinity") == ("0", "0", "1", "1")
    assert matrix.column("GPU NUMA ID") == ("N/A",) * 4
    assert matrix.legend == (("NIC0", "mlx5_0"), ("NIC1", "mlx5_bond_0"))


def test_blank_columns():
    matrix = nvidia_smi.parse(matrices.WSL)
    assert [texts for _, texts in matrix.columns] == [(None,), (None,), ("N/A",)]
    assert nvidia_smi.topology(matrix).gpus[0].cpus == ()


def test_topology_names_nics_by_the_legend():
    made = nvidia_smi.topology(nvidia_smi.parse(matrices.H100))
    assert [nic.name for nic in made.nics] == ["mlx5_0", "mlx5_bond_0"]
    assert str(made.between("mlx5_bond_0", "GPU2")) == "PXB"
    assert made.gpus[3].node == 1
    assert made.gpus[3].cpus == cpulist.parse("56-111,168-223")
    assert len(made.interconnects) == 15


HEAD = "     GPU0 GPU1 CPU Affinity NUMA Affinity\n"


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("", 1, "no table"),
        ("hello\nworld\n", 1, "no table"),
        ("GPU0 GPU0\n", 1, "twice"),
        ("ib0 GPU0\nGPU0 ib0 GPU1\n", 2, "GPU after another device"),
        ("GPU0 GPU1 CPU Affinity Colour\n", 1, "'Colour'"),
        ("GPU0 GPU1 CPU Affin\n", 1, "the row of GPU0 should be here, not nothing"),
        (HEAD + "GPU0 X SYS 0-1 0\nGPU2 X\n", 3, "the row of GPU1 should be here, not 'GPU2'"),
        (HEAD + "GPU0 X SYS 0-1 0\n\n", 3, "the row of GPU1 should be here, not nothing"),
        (HEAD + "GPU0 X\n", 2, "1 cells for 2 devices"),
        (HEAD + "GPU0 X SYSSYS 0-1 0\n", 2, "'SYSSYS' is not an interconnect"),
        (HEAD + "GPU0 X NV2 0-10\n", 2, "1 entries after its cells for 2 columns"),
        (HEAD + "GPU0 X NV2 0-1 0 1\n", 2, "3 entries"),
        (HEAD + "GPU0 X NV2 0-x 0\n", 2, "'0-x'"),
        (HEAD + "GPU0 SYS X 0-1 0\n", 2, "needs its X in column 1"),
        (HEAD + "GPU0 X X 0-1 0\n", 2, "only there"),
        (HEAD + "GPU0 X NV2 0-1 0\nGPU1 NV1 X 0-1 0\n", 3, "GPU1 to GPU0 is NV1, but NV2 on line 2"),
        ("   GPU0\nGPU0 X\n\nCPU Affinity\n", 4, "the CPU affinity of GPU0"),
        ("   GPU0\nGPU0 X\n\nCPU Affinity\nGPU0 1-0\n", 5, "'1-0'"),
        (matrices.ROCM, 1, "AMD's table"),
        ("x\n   GPU0 GPU1\nGPU0 0 XGMI\n", 3, "AMD's table"),
    ],
)
def test_malformed_text_is_refused_with_its_line(text, line, why):
    with pytest.raises(weft.TopologyError, match=f"^FILE, line {line}: ") as caught:
        nvidia_smi.parse(text, name="FILE")
    assert why in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_cut_off_at_every_character(text):
    """A result or the named error, and never a result with other links."""
    whole = nvidia_smi.parse(text)
    results = 0
    for end in range(len(text)):
        try:
            part = nvidia_smi.parse(text[:end])
        except weft.TopologyError:
            continue
        results += 1
        assert part.names == whole.names
        assert part.cells == whole.cells
    assert 0 < results < len(text)


_FAR = [
    Interconnect(kind)
    for kind in (
        InterconnectClass.PIX,
        InterconnectClass.PXB,
        InterconnectClass.PHB,
        InterconnectClass.NODE,
        InterconnectClass.SYS,
    )
]
_LINKS = st.one_of(st.sampled_from(_FAR), st.integers(1, 36).map(lambda n: Interconnect(InterconnectClass.NVLINK, n)))
_CPUS = st.sets(st.integers(0, 255), min_size=1, max_size=20).map(cpulist.join)


@st.composite
def _matrices(draw):
    gpus, nics = draw(st.integers(1, 6)), draw(st.integers(0, 4))
    numbered = draw(st.booleans())
    names = [f"GPU{i}" for i in range(gpus)] + [f"NIC{i}" if numbered else f"mlx5_{i}" for i in range(nics)]
    cells = [[Interconnect(InterconnectClass.SELF)] * len(names) for _ in names]
    for i in range(len(names)):
        for j in range(i):
            cells[i][j] = cells[j][i] = draw(_LINKS)
    columns = []
    for title in nvidia_smi.COLUMNS[: draw(st.integers(0, 3))]:
        columns.append((title, tuple(draw(st.one_of(_CPUS, st.just("N/A"))) for _ in range(gpus))))
    legend = tuple((f"NIC{i}", f"mlx5_{i}") for i in range(nics)) if numbered else ()
    return Matrix(tuple(names), tuple(map(tuple, cells)), tuple(columns), legend)


@given(_matrices())
@settings(max_examples=40, deadline=None)
def test_round_trip_of_any_matrix(matrix):
    text = matrix.text()
    assert nvidia_smi.parse(text) == matrix
    assert nvidia_smi.parse(text.expandtabs()) == matrix


@given(st.text(alphabet="GPUNIC012X SYSNV\t\n-,:/Affinity\x1b[4m", max_size=200))
@settings(max_examples=100, deadline=None)
def test_any_text_gives_a_matrix_or_the_named_error(text):
    try:
        matrix = nvidia_smi.parse(text)
    except weft.TopologyError:
        return
    assert len(matrix.cells) == len(matrix.names)


@given(_matrices(), st.data())
@settings(max_examples=40, deadline=None)
def test_one_changed_character_gives_a_matrix_or_the_named_error(matrix, data):
    text = matrix.text()
    at = data.draw(st.integers(0, len(text) - 1))
    changed = text[:at] + data.draw(st.characters()) + text[at + 1 :]
    with contextlib.suppress(weft.TopologyError):
        nvidia_smi.topology(nvidia_smi.parse(changed))


def test_links_know_their_cells():
    assert Interconnect.parse("NV18") == Interconnect(InterconnectClass.NVLINK, 18)
