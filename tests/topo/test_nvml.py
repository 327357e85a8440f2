# SPDX-License-Identifier: BSD-3-Clause
"""NVML is faked: these tests run where there is no GPU."""

import pytest
from tests.machines import trees
from tests.machines.drivers import Driver, FakeError

from weft.topo import discovery, nvml

ADDRESSES = ["0000:3b:00.0", "0000:5e:00.0", "0000:af:00.0"]


def driver_of(links=None, mig=()):
    return Driver(ADDRESSES, links, mig, mute=(2,))


@pytest.fixture
def tree(tmp_path):
    for i, short in enumerate(ADDRESSES):
        trees.gpu(tmp_path, f"pci{short[:7]}/{short}", node=i // 2, cpus=f"{4 * (i // 2)}-{4 * (i // 2) + 3}")
    return tmp_path


def test_direct_nvlinks_are_counted(tree):
    driver = driver_of(links=((1, 1, None, 2), (0, 0), (0,)))
    made = discovery.read(tree, driver=driver)
    assert [str(made.between(*pair)) for pair in (("GPU0", "GPU1"), ("GPU0", "GPU2"), ("GPU1", "GPU2"))] == [
        "NV2",
        "NV1",
        "SYS",
    ]
    assert driver.running == 0


def test_nvlinks_are_known_where_sysfs_hides_the_bus(tmp_path):
    made = discovery.read(tmp_path, driver=driver_of(links=((1,), (0,), ())))
    assert [str(link) for _, _, link in made.interconnects] == ["NV1", "same host", "same host"]


def test_a_switch_joins_each_to_all(tree):
    made = discovery.read(tree, driver=driver_of(links=(("switch",) * 4, ("switch",) * 4, ("switch",) * 3)))
    assert [str(link) for _, _, link in made.interconnects] == ["NV4", "NV3", "NV3"]


def test_what_the_driver_tells_and_what_it_does_not(tree):
    made = discovery.read(tree, driver=driver_of(mig=("MIG-a", "MIG-b")))
    first, _, last = made.gpus
    assert (first.model, first.uuid, first.memory_nbytes) == ("Tesla V100", "GPU-0", 32 * trees.GIB)
    assert (first.node, first.cpus) == (0, (0, 1, 2, 3))
    assert first.mig == ("MIG-a", "MIG-b")
    assert (last.memory_nbytes, last.mig) == (None, ())


def test_without_a_driver_the_bus_is_asked(tree):
    driver = driver_of()
    driver.nvmlInit = lambda: (_ for _ in ()).throw(FakeError("Driver Not Loaded"))
    made = discovery.read(tree, driver=driver)
    assert [gpu.name for gpu in made.gpus] == ["GPU0", "GPU1", "GPU2"]
    assert made.source[1] == "GPUs from the PCI bus only: NVML says Driver Not Loaded"


def test_without_the_package_there_is_none(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    assert nvml.load() is None
