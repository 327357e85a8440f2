# SPDX-License-Identifier: BSD-3-Clause
"""Device memory that is the host's, and who allocates it; children of tests import it too, so it imports nothing."""


class Placed(bytearray):
    """Memory that says it is CUDA's, and has the buffer protocol, which goes first: UCX sees host memory."""

    index = 0

    def __dlpack_device__(self):
        return (2, self.index)

    @property
    def nbytes(self):
        return len(self)


def on(index, memory):
    placed = Placed(memory)
    placed.index = index
    return placed


class Allocator:
    def __init__(self):
        self.calls = []

    def __call__(self, nbytes, device, library):
        self.calls.append((nbytes, device, library))
        return Placed(nbytes)


NOISE = bytes(range(1, 255)) * 40_000
