# SPDX-License-Identifier: BSD-3-Clause
"""Frames that are lent and then changed by their owner: who received them keeps what was sent."""

import os
import threading

import numpy as np
import pytest

import weft
from weft import _native

MIB = 1 << 20

#: Keeps what it receives, and tells what all of it looks like now.
READER = """
import sys
import numpy as np, weft
held = []
with weft.connect(sys.argv[1]) as peer:
    for command in sys.stdin:
        if command == "recv\\n":
            held += [np.frombuffer(f, "u1") for f in peer.recv_frames().wait(100) if len(f)]
        elif command == "drop\\n":
            held.clear()
        print(*(f"{int(f.min())}-{int(f.max())}" for f in held), peer.lent_nbytes[1] >> 20, flush=True)
"""


class Reader:
    """A child with a connection to this process."""

    def __init__(self, spawn):
        with weft.listen("127.0.0.1:0") as listener:
            self.child = spawn(READER, listener.address)
            self.peer = listener.accept(100)

    def ask(self, command):
        self.child.say(command)
        return self.child.line()

    def take(self, *frames):
        request = self.peer.send_frames([b"", *frames], lend=True)
        self.child.say("recv")
        request.wait(100)
        return self.child.line()


@pytest.fixture
def reader(spawn):
    reader = Reader(spawn)
    yield reader
    reader.child.kill()
    reader.peer.abort()


def pooled(nbytes, value):
    with weft.arrays_in_pool():
        return np.full(nbytes, value, "u1")


@pytest.mark.parametrize("nbytes", [65536, MIB, 48 * MIB])
def test_the_reader_keeps_what_was_sent(reader, nbytes):
    array = pooled(nbytes, 1)
    lent = nbytes >> 20
    assert reader.take(array) == f"1-1 {lent}"
    array += 1
    assert reader.ask("look") == f"1-1 {lent}"
    assert (array == 2).all()


def mappings():
    return _native.pool_statistics()["lending_mappings"]


@pytest.fixture
def limit_mappings():
    before = _native.pool_limit_mappings(1 << 30)
    yield _native.pool_limit_mappings
    _native.pool_limit_mappings(before)


def test_beyond_half_of_the_mappings_that_a_process_may_have_its_blocks_are_copied(reader, limit_mappings):
    limit_mappings(0)
    before = mappings()
    array = pooled(MIB, 1)
    assert reader.take(array) == "1-1 0"
    assert mappings() <= before  # of those before, some may have come back
    array += 1
    assert reader.ask("look") == "1-1 0"


def test_the_mappings_of_kept_blocks_are_counted(reader, limit_mappings):
    def address(array):
        return array.ctypes.data

    def of_kernel():
        with open("/proc/self/maps") as maps:
            ranges = [[int(end, 16) for end in line.split()[0].split("-")] for line in maps]
        return sum(begin < address(c) + 2 * MIB and end > address(a) - MIB for begin, end in ranges)

    blocks = sorted((pooled(MIB, 1) for _ in range(200)), key=address)
    five = next(
        run
        for run in zip(*(blocks[i:] for i in range(5)), strict=False)
        if address(run[4]) - address(run[0]) == 4 * MIB
    )
    _, a, b, c, _ = five
    before, of_kernel_before = mappings(), of_kernel()
    for array, expected in ((a, 2), (c, 4), (b, 2)):
        reader.take(array)
        assert (mappings() - before, of_kernel() - of_kernel_before) == (expected, expected)


def test_what_was_changed_is_copied_the_next_time(reader):
    array = pooled(4 * MIB, 1)
    reader.take(array)
    assert reader.take(array) == "1-1 1-1 8"  # unchanged, it is lent again
    array[MIB] = 5
    assert reader.take(array[: MIB // 2]) == "1-1 1-1 1-1 8"  # half a MiB
    assert reader.peer.lent_nbytes[0] == 8 * MIB + MIB // 2
    assert reader.take(array) == "1-1 1-1 1-1 1-5 8"
    with pytest.raises(weft.TimedOutError):  # nothing else has come back
        reader.peer.recv().wait(0)
    array[:] = 7
    assert reader.take(array) == "1-1 1-1 1-1 1-5 7-7 8"
    assert (array == 7).all()


def test_a_block_that_is_free_again_is_shared_again(reader):
    blocks = set()
    for value in range(1, 20):
        array = pooled(MIB, value)
        blocks.add(array.ctypes.data)
        assert reader.take(array) == f"{value}-{value} {value}"
        array += 100
        del array
        reader.ask("drop")
        with pytest.raises(weft.TimedOutError):  # leases come back in this side's own waits
            reader.peer.recv().wait(0.001)
    assert len(blocks) < 19
    assert _native.pool_statistics()["pinned_nbytes"] <= MIB


def test_zeros_are_zero_in_a_block_that_was_lent_and_changed(reader):
    for _ in range(5):
        array = pooled(MIB, 3)
        reader.take(array)
        array[:] = 9
        del array
        reader.ask("drop")
        with pytest.raises(weft.TimedOutError):
            reader.peer.recv().wait(0.001)
        with weft.arrays_in_pool():
            assert not np.zeros(MIB, "u1").any()


def test_a_forked_child_sees_what_its_parent_changed(reader):
    before, changed, after = pooled(MIB, 1), pooled(MIB, 1), pooled(MIB, 1)
    reader.take(changed)
    changed[:] = 2
    out, into = os.pipe()
    child = os.fork()
    if not child:
        changed[:10] = 3
        os.write(into, bytes([before[0], changed[0], changed[10], changed[-1], after[-1]]))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(out, 10) == bytes([1, 3, 2, 2, 1])
    os.close(out)
    os.close(into)
    assert (changed == 2).all()
    assert reader.ask("look") == "1-1 1"


def test_what_a_thread_writes_meanwhile_is_whole(reader):
    """Pages change from shared to kept under its hands, or it would lose what it writes."""
    array, counts, stop = pooled(2 * MIB, 0), np.zeros(2 * MIB >> 12, "u8"), threading.Event()
    cells = array.view("u8")[::512]

    def write():
        while not stop.is_set():
            np.add(cells, 1, out=cells)
            np.add(counts, 1, out=counts)

    thread = threading.Thread(target=write)
    thread.start()
    for _ in range(5):
        reader.take(array)
        reader.ask("drop")
    stop.set()
    thread.join()
    assert (cells == counts).all()
