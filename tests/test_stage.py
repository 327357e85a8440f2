# SPDX-License-Identifier: BSD-3-Clause
"""Large parts that lie elsewhere than in shared memory: copied there once, and lent from there."""

import contextlib
import gc
import os
import time
from pathlib import Path

import numpy as np
import pytest

import weft
from weft import _native

MIB = 1 << 20

READER = """
    import sys
    import numpy as np, weft
    with weft.connect(sys.argv[1]) as peer:
        print("ready", flush=True)
        held = []
        for line in sys.stdin:
            if line == "recv\\n":
                held.append([np.frombuffer(part, "u1") for part in peer.recv_frames().wait(100)])
                print(*[int(part.sum()) for part in held[-1]], peer.lent_nbytes[1], flush=True)
            elif line == "write\\n":
                held[-1][0][:] = 9
                print(int(held[-1][0].sum()), flush=True)
            elif line == "drop\\n":
                held.clear()
                print("dropped", flush=True)
"""


@pytest.fixture
def reader(spawn):
    with weft.listen("127.0.0.1:0") as listener:
        child = spawn(READER, listener.address)
        peer = listener.accept(100)
    assert child.line() == "ready"
    yield child, peer
    child.kill()
    with contextlib.suppress(weft.Error):
        while True:
            peer.recv().wait(100)
    peer.abort()


def asked(child, command):
    child.say(command)
    return child.line()


def sent(reader, *parts, **how):
    child, peer = reader
    child.say("recv")
    peer.send_frames(parts, **how).wait(100)
    return child.line()


def pinned():
    gc.collect()
    return _native.pool_statistics()["pinned_nbytes"]


def until(condition, peer):
    end = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < end
        with contextlib.suppress(weft.TimedOutError):
            peer.recv().wait(0.01)


def test_what_is_large_is_staged(reader):
    before, staged = pinned(), _native.pool_statistics()["staged_total_nbytes"]
    assert sent(reader, np.full(4 * MIB, 2, "u1"), b"\x01" * 1000, stage=True) == f"{8 * MIB} 1000 0"
    assert pinned() - before == 4 * MIB  # the copy, which the reader holds
    assert reader[1].lent_nbytes == (0, 0)  # it was copied, once
    assert _native.pool_statistics()["staged_total_nbytes"] - staged == 4 * MIB
    assert asked(reader[0], "drop") == "dropped"
    until(lambda: pinned() == before, reader[1])


def test_the_copy_is_not_in_the_senders_resident_memory(reader):
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    array = np.full(64 * MIB, 1, "u1")
    before = resident()
    for _ in range(3):
        assert sent(reader, array, stage=True) == f"{64 * MIB} 0"
    assert resident() - before < 32 * MIB


def test_what_is_not_large_or_not_to_be_staged_is_sent(reader):
    before = pinned()
    assert sent(reader, np.full(MIB - 1, 2, "u1"), stage=True) == f"{2 * (MIB - 1)} 0"
    assert sent(reader, np.full(2 * MIB, 2, "u1")) == f"{4 * MIB} 0"
    assert pinned() == before


def test_the_copy_is_the_readers_and_the_original_the_senders(reader):
    array = np.full(2 * MIB, 3, "u1")
    assert sent(reader, array, stage=True) == f"{6 * MIB} 0"
    array[:] = 7
    assert asked(reader[0], "write") == str(9 * 2 * MIB)
    assert array[0] == 7


def test_staged_beside_lent(reader):
    with weft.arrays_in_pool():
        born = np.full(2 * MIB, 1, "u1")
    made = sent(reader, born, np.full(2 * MIB, 2, "u1"), b"\x03" * 70_000, lend=True, stage=True)
    assert made == f"{2 * MIB} {4 * MIB} 210000 {2 * MIB}"


def test_what_lies_in_shared_memory_is_copied_too_unless_it_is_to_be_lent(reader):
    with weft.arrays_in_pool():
        born = np.full(2 * MIB, 1, "u1")
    assert sent(reader, born, stage=True) == f"{2 * MIB} 0"
    born[:] = 2  # unseen
    assert sent(reader, born, stage=True) == f"{4 * MIB} 0"


def test_a_reader_that_stops_bounds_what_is_staged(reader):
    _, peer = reader
    assert sent(reader, np.full(8 * MIB, 0, "u1"), stage=True) == "0 0"  # it has taken the segment
    before = pinned()
    requests = [peer.send_frames([np.full(8 * MIB, i, "u1")], stage=True) for i in range(20)]
    until(lambda: requests[0].done(), peer)
    assert 8 * MIB <= pinned() - before <= 40 * MIB  # the window, and one more
    assert not requests[-1].done()
    for i, request in enumerate(requests):
        reader[0].say("recv")
        request.wait(100)
        assert reader[0].line() == f"{8 * MIB * i} 0"


def test_what_is_too_large_is_sent(reader):
    mapped = _native.pool_statistics()["mapped_nbytes"]
    array = np.full(257 * MIB, 1, "u1")
    assert sent(reader, array, stage=True) == f"{257 * MIB} 0"
    assert pinned() < 257 * MIB
    assert _native.pool_statistics()["mapped_nbytes"] == mapped


def test_a_killed_reader_gives_everything_back(reader):
    child, peer = reader
    before = pinned()
    assert sent((child, peer), np.full(4 * MIB, 2, "u1"), stage=True) == f"{8 * MIB} 0"
    child.kill()
    with pytest.raises(weft.PeerLostError):
        peer.recv().wait(100)
    assert pinned() == before
