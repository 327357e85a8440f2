# SPDX-License-Identifier: BSD-3-Clause
"""NVML is faked: these tests run where there is no GPU. The fake's names and shapes are nvidia-ml-py's."""

from types import SimpleNamespace

import pytest
from tests.topo import trees

from weft.topo import machine, nvml

ADDRESSES = ["00000000:3B:00.0", "00000000:5E:00.0", "00000000:AF:00.0"]


class FakeError(Exception):
    pass


class Driver:
    """Three GPUs. `links` has, by GPU, what each NVLink leads to: a GPU's number, "switch", or None for off."""

    NVMLError = FakeError
    NVML_NVLINK_MAX_LINKS = 4

    def __init__(self, links=((), (), ()), mig=()):
        self.links, self.mig, self.running = links, mig, 0

    def nvmlInit(self):  # noqa: N802
        self.running += 1

    def nvmlShutdown(self):  # noqa: N802
        self.running -= 1

    def nvmlDeviceGetCount(self):  # noqa: N802
        return 3

    def nvmlDeviceGetHandleByIndex(self, i):  # noqa: N802
        return i

    def nvmlDeviceGetPciInfo(self, handle):  # noqa: N802
        return SimpleNamespace(busId=ADDRESSES[handle])

    def nvmlDeviceGetName(self, handle):  # noqa: N802
        return b"Tesla V100"  # bytes before nvidia-ml-py 12

    def nvmlDeviceGetUUID(self, handle):  # noqa: N802
        return handle if isinstance(handle, str) else f"GPU-{handle}"

    def nvmlDeviceGetMemoryInfo(self, handle):  # noqa: N802
        if handle == 2:
            raise FakeError("not supported")
        return SimpleNamespace(total=32 * trees.GIB)

    def nvmlDeviceGetMigMode(self, handle):  # noqa: N802
        return [1, 1] if handle == 0 and self.mig else [0, 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, i):  # noqa: N802
        if i >= len(self.mig):
            raise FakeError("not found")
        return self.mig[i]

    def nvmlDeviceGetNvLinkState(self, handle, i):  # noqa: N802
        if i >= len(self.links[handle]):
            raise FakeError("invalid argument")
        return int(self.links[handle][i] is not None)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle, i):  # noqa: N802
        return 2 if self.links[handle][i] == "switch" else 0

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle, i):  # noqa: N802
        return SimpleNamespace(busId=ADDRESSES[self.links[handle][i]])


@pytest.fixture
def tree(tmp_path):
    for i, address in enumerate(ADDRESSES):
        short = address.lower()[4:]
        trees.gpu(tmp_path, f"pci{short[:7]}/{short}", node=i // 2, cpus=f"{4 * (i // 2)}-{4 * (i // 2) + 3}")
    return tmp_path


def test_direct_nvlinks_are_counted(tree):
    driver = Driver(links=((1, 1, None, 2), (0, 0), (0,)))
    made = machine.read(tree, driver=driver)
    assert [str(made.link(*pair)) for pair in (("GPU0", "GPU1"), ("GPU0", "GPU2"), ("GPU1", "GPU2"))] == [
        "NV2",
        "NV1",
        "SYS",
    ]
    assert driver.running == 0


def test_nvlinks_are_known_where_sysfs_hides_the_bus(tmp_path):
    made = machine.read(tmp_path, driver=Driver(links=((1,), (0,), ())))
    assert [str(link) for _, _, link in made.links] == ["NV1", "same host", "same host"]


def test_a_switch_joins_each_to_all(tree):
    made = machine.read(tree, driver=Driver(links=(("switch",) * 4, ("switch",) * 4, ("switch",) * 3)))
    assert [str(link) for _, _, link in made.links] == ["NV4", "NV3", "NV3"]


def test_what_the_driver_tells_and_what_it_does_not(tree):
    made = machine.read(tree, driver=Driver(mig=("MIG-a", "MIG-b")))
    first, _, last = made.gpus
    assert (first.model, first.uuid, first.memory_nbytes) == ("Tesla V100", "GPU-0", 32 * trees.GIB)
    assert (first.node, first.cpus) == (0, (0, 1, 2, 3))
    assert first.mig == ("MIG-a", "MIG-b")
    assert (last.memory_nbytes, last.mig) == (None, ())


def test_without_a_driver_the_bus_is_asked(tree):
    driver = Driver()
    driver.nvmlInit = lambda: (_ for _ in ()).throw(FakeError("Driver Not Loaded"))
    made = machine.read(tree, driver=driver)
    assert [gpu.name for gpu in made.gpus] == ["GPU0", "GPU1", "GPU2"]
    assert made.source[1] == "GPUs from the PCI bus only: NVML says Driver Not Loaded"


def test_without_the_package_there_is_none(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    assert nvml.load() is None
