# SPDX-License-Identifier: BSD-3-Clause
"""The receive pool: alignment, reuse, lifetime, the cap, and forks."""

import gc
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import weft
from weft import _native


def address(view):
    return np.frombuffer(view, "u1").__array_interface__["data"][0]


@pytest.fixture(autouse=True)
def cap():
    gc.collect()
    _native.pool_set_hold(0)  # which a worker of another test has set
    before = _native.pool_statistics()["cap_nbytes"]
    _native.pool_set_cap(0)
    _native.pool_set_cap(before)
    yield before
    _native.pool_set_hold(0)
    _native.pool_set_cap(before)


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65535, 65536, 65537, 1 << 20, (64 << 20) + 1])
def test_blocks_are_aligned_writable_and_of_their_size(nbytes):
    view = _native.pool_allocate(nbytes)
    assert (view.nbytes, view.readonly) == (nbytes, False)
    if nbytes:
        assert address(view) % (4096 if nbytes >= 65536 else 64) == 0
        view[-1] = 7
    assert view.obj.pooled == (nbytes >= 65536)


def test_a_block_is_used_again():
    view = _native.pool_allocate(1 << 20)
    first = address(view)
    del view
    assert address(_native.pool_allocate(1 << 20)) == first


def test_an_array_keeps_its_block_alive():
    view = _native.pool_allocate(1 << 20)
    array = np.frombuffer(view, "f8")[10:20]
    array[:] = 3
    del view
    others = [_native.pool_allocate(1 << 20) for _ in range(4)]
    for other in others:
        other[:] = bytes(1 << 20)
    assert (array == 3).all()
    live = _native.pool_statistics()["live_nbytes"]
    del array
    assert _native.pool_statistics()["live_nbytes"] == live - (1 << 20)


MERGE = """
from weft import _native

blocks = [_native.pool_allocate(1 << 20) for _ in range(256)]  # all of a segment
last = blocks.pop()
assert _native.pool_statistics()["segments"] == 1
for order in (blocks[::2], blocks[1::2]):
    order.clear()
blocks.clear()
assert _native.pool_allocate(15 << 20).nbytes == 15 << 20
assert _native.pool_statistics()["segments"] == 1
"""


def test_neighbours_merge():
    """In a process of its own: what other tests have left in use lies between the blocks."""
    subprocess.run([sys.executable, "-c", MERGE], check=True, timeout=60)


def test_idle_memory_is_capped():
    before = _native.pool_statistics()  # other tests of this process may have left something in use
    _native.pool_set_cap(8 << 20)
    blocks = [_native.pool_allocate(1 << 20) for _ in range(64)]
    for block in blocks:
        block[:] = bytes(1 << 20)
    keep = blocks[0]
    del blocks, block
    statistics = _native.pool_statistics()
    assert statistics["live_nbytes"] - before["live_nbytes"] == keep.nbytes
    assert statistics["idle_nbytes"] <= 8 << 20
    del keep
    _native.pool_set_cap(0)
    assert _native.pool_statistics()["mapped_nbytes"] == before["mapped_nbytes"]


def test_trimmed_memory_goes_back_and_what_is_in_use_stays():
    blocks = [_native.pool_allocate(1 << 20) for _ in range(3)]
    for i, block in enumerate(blocks):
        block[:] = bytes([i + 1]) * (1 << 20)
    first, _, last = blocks
    del blocks[1], block, _
    assert _native.pool_statistics()["idle_nbytes"] == 1 << 20
    _native.pool_trim(1 << 20)
    assert _native.pool_statistics()["idle_nbytes"] == 1 << 20
    _native.pool_trim((1 << 20) - 1)
    assert _native.pool_statistics()["idle_nbytes"] == 0
    assert (bytes(first), bytes(last)) == (b"\1" * (1 << 20), b"\3" * (1 << 20))
    between = _native.pool_allocate(1 << 20)
    assert address(first) < address(between) < address(last)
    assert bytes(between) == bytes(1 << 20)  # new pages: it was given back, not only forgotten


def test_a_pool_that_cools_keeps_its_files():
    one = _native.pool_allocate(1 << 20)
    one[:] = b"\1" * (1 << 20)
    there, before = address(one), _native.pool_statistics()
    del one
    _native.pool_cool()
    after = _native.pool_statistics()
    assert (after["idle_nbytes"], after["segments"]) == (0, before["segments"])
    again = _native.pool_allocate(1 << 20)
    assert address(again) == there
    assert bytes(again) == bytes(1 << 20)  # new pages
    assert _native.pool_statistics()["taken_total"] == before["taken_total"] + 1


def test_a_lower_cap_holds_for_what_lies_between_blocks_in_use():
    blocks = [_native.pool_allocate(1 << 20) for _ in range(3)]
    for block in blocks:
        block[:] = bytes(1 << 20)
    del blocks[1], block
    _native.pool_set_cap(0)
    assert _native.pool_statistics()["idle_nbytes"] == 0


#: What a process of its own starts with: other tests leave blocks, which a huge page may share with those here.
COUNTING = """
import os, random
import numpy as np
from weft import _native
_native.pool_small_on_huge(False)  # whatever they cost this machine

def files_nbytes():
    "Return the pages that the pool's files have, by the kernel's count."
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            status = os.stat(f"/proc/self/fd/{name}")
        except OSError:  # the folder's own
            continue
        found += status.st_blocks * 512 if status.st_size >= 256 << 20 else 0
    return found

def touched(nbytes):
    view = _native.pool_allocate(nbytes)
    np.frombuffer(view, "u1")[::4096] = 1
    return view

def counted(key):
    return _native.pool_statistics()[key]

_native.pool_set_cap(0)
"""


def test_only_what_is_too_much_is_freed_and_not_the_whole_segment(spawn):
    code = """
_native.pool_set_cap(12 << 20)
blocks = [touched(2 << 20) for _ in range(8)]
del blocks[1:4], blocks[1:]
print(counted("idle_nbytes") >> 20, flush=True)
blocks.clear()
print(counted("idle_nbytes") >> 20, files_nbytes() >> 20, flush=True)
"""
    child = spawn(COUNTING + code)
    assert child.line() == "12"
    assert child.line() == "12 12"


def test_what_counts_as_idle_is_what_was_touched(spawn):
    code = """
first, second, last = touched(4 << 20), touched(4 << 20), touched(4 << 20)
del first  # its pages go back
_native.pool_set_cap(4 << 20)
del second
first = touched(2 << 20)  # from a hole whose first half is new
fresh = counted("fresh_total_nbytes")
print(counted("live_nbytes") >> 20, counted("idle_nbytes") >> 20, files_nbytes() >> 20, flush=True)
second = touched(2 << 20)
print(counted("fresh_total_nbytes") - fresh, flush=True)
"""
    child = spawn(COUNTING + code)
    assert child.line() == "6 2 8"
    assert child.line() == "0"


@pytest.mark.parametrize("small_on_huge", [False, True])
def test_ten_thousand_blocks_are_counted_to_the_page(spawn, small_on_huge):
    code = (
        f"_native.pool_small_on_huge({small_on_huge})"
        + """
_native.pool_set_cap(16 << 20)
choose, blocks, most = random.Random(17), [], 0
for turn in range(10_000):
    if choose.random() < (0.55 if turn // 100 % 2 else 0.42) and len(blocks) < 48:
        blocks.append(touched(choose.choices((72, 1 << 10, 2 << 10, 3000, 16 << 10), (6, 6, 6, 6, 1))[0] << 10))
    elif blocks:
        del blocks[choose.randrange(len(blocks))]
    if turn % 500 == 499:
        assert files_nbytes() == counted("live_nbytes") + counted("idle_nbytes"), turn
        assert counted("idle_nbytes") <= 16 << 20, turn
        most = max(most, len(blocks))
blocks.clear()
print(most > 8, counted("idle_nbytes") <= 16 << 20, flush=True)
"""
    )
    assert spawn(COUNTING + code).line() == "True True"


def test_a_large_hole_of_touched_pages_comes_before_a_small_one_of_new_pages():
    _native.pool_set_cap(0)
    _native.pool_set_cap(1 << 30)
    first, _second = _native.pool_allocate(100 << 20), _native.pool_allocate(128 << 20)  # and 28 MiB untouched
    del first
    before = _native.pool_statistics()["fresh_total_nbytes"]
    _third = _native.pool_allocate(16 << 20)
    assert _native.pool_statistics()["fresh_total_nbytes"] == before


def test_a_large_block_takes_no_small_pages():
    """It would be read more slowly there. In each kind the touched ones are used again."""
    _native.pool_set_cap(0)
    _native.pool_set_cap(1 << 30)
    blocks = [_native.pool_allocate(1 << 20) for _ in range(64)]
    del blocks
    before = _native.pool_statistics()["fresh_total_nbytes"]
    large = _native.pool_allocate(32 << 20)
    where = address(large)
    assert _native.pool_statistics()["fresh_total_nbytes"] - before == large.nbytes
    _small = _native.pool_allocate(1 << 20)
    del large
    large = _native.pool_allocate(32 << 20)
    assert address(large) == where
    assert _native.pool_statistics()["fresh_total_nbytes"] - before == large.nbytes


def test_a_small_block_takes_touched_huge_pages_before_new_small_ones(spawn):
    code = """
def address(view):
    return np.frombuffer(view, "u1").__array_interface__["data"][0]

_native.pool_set_cap(1 << 30)
small, large = _native.pool_allocate(1 << 20), _native.pool_allocate(32 << 20)
where, of_large = address(small), address(large)
del large, small
before = counted("fresh_total_nbytes")
blocks = [_native.pool_allocate(1 << 20) for _ in range(33)]
print(address(blocks[0]) == where, flush=True)  # touched small pages come first
print(all(of_large <= address(block) < of_large + (32 << 20) for block in blocks[1:]), flush=True)
print(counted("fresh_total_nbytes") - before, flush=True)
blocks.append(_native.pool_allocate(1 << 20))  # none is left: new small pages
print(of_large <= address(blocks[-1]) < of_large + (256 << 20), flush=True)
print(counted("fresh_total_nbytes") - before >> 20, flush=True)
"""
    child = spawn(COUNTING + code)
    assert [child.line() for _ in range(5)] == ["True", "True", "0", "False", "1"]


def hold_from_now():
    """Hold what is used from now on; what other tests of this process had in use is forgotten."""
    _native.pool_set_cap(0)
    _native.pool_set_hold(1e-9)
    for _ in range(2):
        time.sleep(1e-6)
        _native.pool_settle(0)
    _native.pool_set_hold(1000)


def test_with_a_hold_as_much_is_kept_as_was_in_use():
    _native.pool_set_cap(0)
    _native.pool_set_hold(1000)
    blocks = [_native.pool_allocate(1 << 20) for _ in range(8)]
    where = {address(block) for block in blocks}
    del blocks[1:]
    assert _native.pool_statistics()["idle_nbytes"] == 7 << 20
    blocks += [_native.pool_allocate(1 << 20) for _ in range(7)]
    assert {address(block) for block in blocks} == where
    _native.pool_trim(0)  # memory is short
    del blocks[1:]
    _native.pool_trim(3 << 20)
    assert _native.pool_statistics()["idle_nbytes"] <= 3 << 20
    _native.pool_set_hold(0)
    assert _native.pool_statistics()["idle_nbytes"] == 0


def test_with_a_hold_idle_blocks_of_one_kind_make_room_for_the_other():
    """The process never has more than it had in use at once, whichever pages it was in."""
    hold_from_now()
    before = _native.pool_statistics()["live_nbytes"]
    large = _native.pool_allocate(32 << 20)
    del large
    assert _native.pool_statistics()["idle_nbytes"] == 32 << 20
    blocks = [_native.pool_allocate(1 << 20) for _ in range(24)]
    statistics = _native.pool_statistics()
    assert statistics["live_nbytes"] - before == 24 << 20
    assert statistics["idle_nbytes"] <= 8 << 20
    del blocks
    _native.pool_set_hold(0)


@pytest.mark.parametrize("kinds", [(32, 1), (1, 32)], ids=["small after large", "large after small"])
def test_idle_blocks_that_nothing_needs_go_before_those_of_now(kinds):
    """A job's large blocks do not stay idle while each small block of the next job takes fresh pages, or vice versa."""
    _native.pool_set_cap(0)
    _native.pool_set_cap(64 << 20)
    for mebibytes in kinds:
        for i in range(3):
            blocks = [_native.pool_allocate(mebibytes << 20) for _ in range(64 // mebibytes)]
            del blocks
            if not i:
                before = _native.pool_statistics()["fresh_total_nbytes"]
        assert _native.pool_statistics()["fresh_total_nbytes"] == before
    assert _native.pool_statistics()["idle_nbytes"] == 64 << 20


def private_nbytes():
    resident, shared = Path("/proc/self/statm").read_text().split()[1:3]
    return (int(resident) - int(shared)) * resource.getpagesize()


def hold_up_to(nbytes):
    """Let the process have this much more than it has now before the pool keeps nothing."""
    hold_from_now()
    _native.pool_set_hold(1000, _native.pool_statistics()["live_nbytes"] + private_nbytes() + nbytes)


def test_a_hold_keeps_the_process_within_its_ceiling():
    hold_up_to(60 << 20)
    blocks = [_native.pool_allocate(10 << 20) for _ in range(8)]
    del blocks[7:]
    assert _native.pool_statistics()["idle_nbytes"] == 0  # in use: more than the ceiling
    del blocks[4:]
    assert 10 << 20 < _native.pool_statistics()["idle_nbytes"] <= 22 << 20  # other memory comes and goes
    _native.pool_set_hold(0)


def test_the_pool_notices_by_itself_what_the_process_has_beside_it():
    """A worker's loop that reads spilled values gives its monitor no turn."""
    hold_up_to(60 << 20)
    block = _native.pool_allocate(40 << 20)
    del block
    assert _native.pool_statistics()["idle_nbytes"] == 40 << 20
    values = b"1" * (55 << 20)
    time.sleep(0.02)
    block = _native.pool_allocate(64 << 10)
    del block
    assert _native.pool_statistics()["idle_nbytes"] <= 10 << 20
    assert len(values) == 55 << 20
    _native.pool_set_hold(0)


def test_what_the_process_has_beside_the_pool_counts_as_in_use():
    hold_from_now()
    blocks = [_native.pool_allocate(1 << 20) for _ in range(8)]
    del blocks[1:]
    _native.pool_settle(3 << 20)
    assert _native.pool_statistics()["idle_nbytes"] <= 4 << 20
    blocks += [_native.pool_allocate(1 << 20) for _ in range(7)]
    del blocks[1:]
    assert _native.pool_statistics()["idle_nbytes"] == 7 << 20  # it had 11 MiB
    _native.pool_settle(20 << 20)
    assert _native.pool_statistics()["idle_nbytes"] == 0
    _native.pool_settle(0)


def test_what_was_held_and_not_used_again_goes_back():
    _native.pool_set_cap(0)
    _native.pool_set_hold(0.01)
    blocks = [_native.pool_allocate(1 << 20) for _ in range(8)]
    blocks.clear()
    until = time.monotonic() + 10
    while _native.pool_statistics()["idle_nbytes"] and time.monotonic() < until:
        _native.pool_settle(0)
    assert _native.pool_statistics()["idle_nbytes"] == 0


def test_a_process_that_has_little_keeps_it_for_longer_than_the_hold():
    _native.pool_set_cap(0)
    live = _native.pool_statistics()["live_nbytes"]  # what other tests have left
    _native.pool_set_hold(1e-9, low_water_nbytes=live + (6 << 20))
    blocks = [_native.pool_allocate(1 << 20) for _ in range(8)]
    blocks.clear()
    for other_nbytes, idle in [(0, 6), (0, 6), (2 << 20, 4), (9 << 20, 0), (0, 0)]:
        _native.pool_settle(other_nbytes)
        assert (idle << 20) - _native.pool_statistics()["idle_nbytes"] in range(2 << 20)  # huge pages go whole
    _native.pool_set_hold(1e-9, live + (4 << 20), live + (6 << 20))
    blocks = [_native.pool_allocate(1 << 20) for _ in range(8)]
    blocks.clear()
    _native.pool_settle(0)
    assert _native.pool_statistics()["idle_nbytes"] <= 4 << 20  # never more than the ceiling
    _native.pool_settle(0)


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="the kernel has no huge pages")
@pytest.mark.parametrize(("nbytes", "asks"), [((16 << 20) - 1, False), (16 << 20, True)])
def test_large_blocks_ask_for_huge_pages(nbytes, asks):
    view = _native.pool_allocate(nbytes)
    mapping, flags = None, {}
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if not first.endswith(":"):
            mapping = tuple(int(end, 16) for end in first.split("-"))
        elif first == "VmFlags:" and mapping[0] <= address(view) < mapping[1]:
            flags = set(line.split()[1:])
    assert ("hg" in flags) == asks  # madvise(MADV_HUGEPAGE), which shared memory has where the kernel allows it


def test_no_room_is_a_memory_error():
    with pytest.raises(weft.NoMemoryError) as caught:
        _native.pool_allocate(1 << 50)
    assert isinstance(caught.value, MemoryError)


def test_without_segments_memory_comes_from_the_c_library(spawn):
    code = """
        import os, resource
        import numpy as np, weft
        from weft import _native
        lowest_free = os.dup(0)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, lowest_free))
        view = _native.pool_allocate(1 << 20)
        view[:] = bytes(1 << 20)
        with weft.arrays_in_pool():
            array = np.full(1 << 20, 1, "u1")
        print(view.obj.pooled, int(array.sum()), _native.pool_statistics()["segments"], flush=True)
    """
    assert spawn(code).line() == "False 1048576 0"


def test_a_forked_child_writes_into_its_own_copy():
    array = np.frombuffer(_native.pool_allocate(1 << 20), "u1")
    array[:] = 1
    pid = os.fork()
    if pid == 0:
        ok = (array == 1).all()
        array[:] = 2
        mine = _native.pool_allocate(1 << 20)
        os._exit(0 if ok and (array == 2).all() and not mine.obj.pooled else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (array == 1).all()


def test_ten_thousand_rounds_leave_nothing():
    _native.pool_allocate(65536)  # there is a segment for small blocks
    before = _native.pool_statistics()
    for i in range(10_000):
        _native.pool_allocate(65536 + (i * 7919) % 1_000_000)
    statistics = _native.pool_statistics()
    assert statistics["live_nbytes"] == before["live_nbytes"]
    assert statistics["segments"] == max(1, before["segments"])
