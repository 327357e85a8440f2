# SPDX-License-Identifier: BSD-3-Clause
"""NVIDIA's driver as nvidia-ml-py shows it, faked: names and shapes are that package's."""

from types import SimpleNamespace

from tests.machines.trees import GIB


class FakeError(Exception):
    pass


class Driver:
    """GPUs at `addresses`. `links` has, by GPU, what each NVLink leads to: a GPU's number, "switch", or None for off.

    `mig` are the instances of the first GPU; GPUs of number `mute` say nothing of their memory.
    """

    NVMLError = FakeError
    NVML_NVLINK_MAX_LINKS = 18

    def __init__(self, addresses, links=None, mig=(), *, name="Tesla V100", gib=32, mute=()):
        self.addresses = [f"0000{address.upper()}" for address in addresses]
        self.links = links or [()] * len(addresses)
        self.mig, self.name, self.gib, self.mute, self.running = mig, name, gib, mute, 0

    def nvmlInit(self):  # noqa: N802
        self.running += 1

    def nvmlShutdown(self):  # noqa: N802
        self.running -= 1

    def nvmlDeviceGetCount(self):  # noqa: N802
        return len(self.addresses)

    def nvmlDeviceGetHandleByIndex(self, i):  # noqa: N802
        return i

    def nvmlDeviceGetPciInfo(self, handle):  # noqa: N802
        return SimpleNamespace(busId=self.addresses[handle])

    def nvmlDeviceGetName(self, handle):  # noqa: N802
        return self.name.encode()  # bytes before nvidia-ml-py 12

    def nvmlDeviceGetUUID(self, handle):  # noqa: N802
        return handle if isinstance(handle, str) else f"GPU-{handle}"

    def nvmlDeviceGetMemoryInfo(self, handle):  # noqa: N802
        if handle in self.mute:
            raise FakeError("not supported")
        return SimpleNamespace(total=self.gib * GIB)

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
        return SimpleNamespace(busId=self.addresses[self.links[handle][i]])


def nvlinks(matrix):
    """Return the `links` of the GPUs in what ``nvidia_smi.parse`` returned."""
    count = len(matrix.gpus)
    return [[j for j in range(count) for _ in range(row[j].count)] for row in matrix.cells[:count]]
