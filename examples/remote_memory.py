# SPDX-License-Identifier: BSD-3-Clause
"""Remote memory: two processes claim slots of a table by atomic addition, fill them by put, and one reads all by get.

UCP's own operations have no authentication: give a key only to processes that you trust.
"""

import multiprocessing
import pickle
from multiprocessing.connection import Connection

import weft

SLOTS, WIDTH = 8, 16
FEATURES = ["rma", "amo"]


def claim(owner: bytes, key: bytes, name: str, done: Connection) -> None:
    context = weft.Context(features=FEATURES)
    worker = weft.Worker(context)
    endpoint = worker.connect(owner)
    rkey = endpoint.rkey_unpack(pickle.loads(key))
    for _ in range(SLOTS // 2):
        slot = endpoint.atomic_op("add", 1, rkey).wait(30)  # returns what was there before
        endpoint.put(f"{slot} by {name}".encode().ljust(WIDTH), rkey, 8 + slot * WIDTH).wait(30)
    endpoint.flush().wait(30)  # now the owner has all of it
    table = bytearray(SLOTS * WIDTH)
    endpoint.get(table, rkey, 8).wait(30)
    done.send(bytes(table))
    worker.close()
    context.close()


def main() -> None:
    spawn = multiprocessing.get_context("spawn")
    context = weft.Context(features=FEATURES)
    worker = weft.Worker(context)
    memory = context.mem_alloc(8 + SLOTS * WIDTH)  # a counter, then the table
    memory_view = memoryview(memory).cast("B")
    memory_view[:] = bytes(len(memory_view))
    key = pickle.dumps(memory.rkey_pack())
    here, there = spawn.Pipe()
    callers = [spawn.Process(target=claim, args=(worker.address, key, name, there)) for name in ("ann", "bob")]
    for caller in callers:
        caller.start()
    tables = 0
    while tables < len(callers) and not any(caller.exitcode for caller in callers):
        worker.progress()  # the software path of put and atomics runs in the owner
        if here.poll(0):
            here.recv()
            tables += 1
    for caller in callers:
        caller.join()
    filled = [bytes(memory_view[8 + i * WIDTH : 8 + (i + 1) * WIDTH]).decode().strip() for i in range(SLOTS)]
    print("slots:", ", ".join(filled))
    memory_view.release()
    worker.close()
    memory.close()
    context.close()


if __name__ == "__main__":
    main()
