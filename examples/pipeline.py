# SPDX-License-Identifier: BSD-3-Clause
"""A plain Python pipeline: one producer lends images to several workers, which map its pages and copy nothing."""

import multiprocessing

import numpy as np

import weft

WORKERS, IMAGES = 2, 8


def work(address: str) -> None:
    with weft.connect(address) as peer:
        while (image := np.frombuffer(peer.recv().wait(30))).size:
            peer.send_obj(float(image.mean())).wait(30)


def main() -> None:
    spawn = multiprocessing.get_context("spawn")  # a forked child could not use weft
    with weft.listen("127.0.0.1:0") as listener:
        processes = [spawn.Process(target=work, args=(listener.address,)) for _ in range(WORKERS)]
        for process in processes:
            process.start()
        peers = [listener.accept(30) for _ in processes]
        with weft.arrays_in_pool():  # arrays of 64 KiB and more are made where they can be lent
            images = [np.full((512, 512), float(i)) for i in range(IMAGES)]
        for i, image in enumerate(images):
            peers[i % WORKERS].lend(image).wait(30)
        means = [peers[i % WORKERS].recv_obj().wait(30) for i in range(IMAGES)]
        lent = sum(peer.lent_nbytes[0] for peer in peers)
        for peer in peers:
            peer.send(b"").wait(30)  # the end
            peer.close()
        for process in processes:
            process.join()
    print(f"means: {means}; {lent >> 20} MiB lent, none copied")


if __name__ == "__main__":
    main()
