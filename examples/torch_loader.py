# SPDX-License-Identifier: BSD-3-Clause
"""A PyTorch data loader in a process of its own, which lends batches: the training process maps them, uncopied."""

# needs: pip install weft-ucx numpy torch
import multiprocessing
import sys

import numpy as np

import weft

try:
    import torch
except ImportError:
    sys.exit("this example needs PyTorch: pip install torch")

BATCHES, SHAPE = 4, (64, 3, 64, 64)


def load(address: str) -> None:
    """Make batches; each is a tensor over an array that can be lent."""
    with weft.connect(address) as peer:
        for i in range(BATCHES):
            with weft.arrays_in_pool():
                batch = torch.from_numpy(np.empty(SHAPE, np.float32))
            batch.fill_(i)
            peer.lend(batch.numpy()).wait(60)
        peer.send(b"").wait(60)  # the end


def batches(peer: weft.Peer):
    """Yield the tensors as they come; each keeps its pages mapped for as long as it is used."""
    while (data := peer.recv().wait(60)).nbytes:
        yield torch.frombuffer(data, dtype=torch.float32).reshape(SHAPE)


def main() -> None:
    loader = multiprocessing.get_context("spawn")
    with weft.listen("127.0.0.1:0") as listener:
        process = loader.Process(target=load, args=(listener.address,))
        process.start()
        with listener.accept(60) as peer:
            means = [float(batch.mean()) for batch in batches(peer)]
            print(f"means: {means}; {peer.lent_nbytes[1] >> 20} MiB borrowed")
        process.join()


if __name__ == "__main__":
    main()
