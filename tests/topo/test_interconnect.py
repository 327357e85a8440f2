# SPDX-License-Identifier: BSD-3-Clause
import itertools

import pytest

from weft.topo.interconnect import PRIORS, Interconnect, InterconnectClass


@pytest.mark.parametrize("cell", ["X", "NV1", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS"])
def test_cells_are_read_and_written(cell):
    assert str(Interconnect.parse(cell)) == cell


@pytest.mark.parametrize(
    "cell", ["", "NV", "NV0", "NV-1", "NV1000", "pix", "SELF", "NETWORK", "NODENODE", "XGMI", "N/A"]
)
def test_other_cells_are_refused(cell):
    with pytest.raises(ValueError, match="is not an interconnect"):
        Interconnect.parse(cell)


def test_nearest_comes_first():
    cells = ["X", "NV2", "NV1", "PIX", "PXB", "PHB", "NODE", "SYS"]
    assert [str(link) for link in sorted(map(Interconnect.parse, reversed(cells)))] == cells


def test_no_prior_is_above_that_of_a_nearer_link():
    priors = [Interconnect(kind, 1).prior() for kind in InterconnectClass if kind is not InterconnectClass.SELF]
    for nearer, farther in itertools.pairwise(priors):
        assert nearer.bandwidth_Bps >= farther.bandwidth_Bps


def test_every_prior_names_its_source():
    assert set(PRIORS) == set(InterconnectClass) - {InterconnectClass.SELF}
    for known in PRIORS.values():
        assert known.source.startswith(("NCCL, src/graph/topo.h: ", "weft's C loop", "assumed: "))


def test_priors_count_nvlinks_and_take_the_rate_of_a_port():
    assert (
        Interconnect(InterconnectClass.NVLINK, 4).prior().bandwidth_Bps
        == 4 * Interconnect(InterconnectClass.NVLINK, 1).prior().bandwidth_Bps
    )
    assert Interconnect(InterconnectClass.NETWORK).prior(rate_bps=200e9).bandwidth_Bps == 25e9
    assert Interconnect(InterconnectClass.NETWORK).prior().bandwidth_Bps == 1.25e9
    assert Interconnect(InterconnectClass.SELF).prior() is None
