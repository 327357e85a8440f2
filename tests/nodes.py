# SPDX-License-Identifier: BSD-3-Clause
"""Processes that lend to each other and do what they are told, for the tests of lending."""

from __future__ import annotations

import itertools

MIB = 1 << 20

#: A process with connections by name, that does what it is told and answers in lines.
NODE = """
import contextlib, os, sys, time
import numpy as np, weft
from weft import _native

peers, held, children = {}, [], []
listener = weft.listen("127.0.0.1:0").__enter__()

def crank():
    for name, peer in list(peers.items()):
        try:
            peer.recv().wait(0.005)
        except weft.TimedOutError:
            pass
        except weft.PeerLostError:
            peers.pop(name).abort()

def file_of(array):
    address = array.ctypes.data
    for line in open("/proc/self/maps"):
        place, _, _, device, inode, *_ = line.split()
        begin, end = (int(x, 16) for x in place.split("-"))
        if begin <= address < end:
            return device, inode

def listen():
    return listener.address

def accept(name):
    peers[name] = listener.accept(100)

def connect(name, address):
    peers[name] = weft.connect(address).open()

def make(value, mib):
    with weft.arrays_in_pool():
        held.append(np.full(int(mib) << 20, int(value), "u1"))

def lend(name):
    peers[name].lend(held[-1]).wait(100)

def frames(name):
    half = len(held[-1]) // 2
    peers[name].send_frames([held[-1][:half], held[-1][half:]], lend=True).wait(100)

def recv(name):
    held.append(np.frombuffer(peers[name].recv().wait(100), "u1"))

def recv_frames(name):
    held.append(np.concatenate([np.frombuffer(f, "u1") for f in peers[name].recv_frames().wait(100) if len(f)]))

def lent(name):
    return peers[name].lent_nbytes[0]

def borrowed():
    return _native.pool_statistics()["borrowed_total_nbytes"]

def borrowing():
    return _native.pool_statistics()["borrowed_nbytes"]

def counted_elsewhere():
    return _native.loans_counted_elsewhere()

def flag():
    _native.flag_loans()

def live():
    return _native.pool_statistics()["live_nbytes"]

def sum():
    return int(held[-1].sum(dtype="u8"))

def write(at, value):
    held[-1][int(at)] = int(value)

def file():
    return file_of(held[-1])

def allocated():
    # MiB that the kernel has for the file of the newest array, whoever uses them.
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            status = os.stat(f"/proc/self/fd/{fd}")
            if status.st_ino == int(file_of(held[-1])[1]):
                return status.st_blocks >> 11

def drop():
    held.clear()

def keep(index):
    held[:] = [held[int(index)]]

def wait():
    for _ in range(10):
        crank()

def until_lost(name):
    end = time.monotonic() + 100
    while name in peers and time.monotonic() < end:
        crank()
    wait()
    return name not in peers

def fork():
    # A child that holds what this process holds, and no descriptor; it tells the sum when the pipe ends.
    begin, wait = os.pipe()
    answer, tell = os.pipe()
    if os.fork():
        os.close(begin), os.close(tell)
        children.append((wait, answer))
        return
    os.dup2(begin, 100), os.dup2(tell, 101)
    os.closerange(2, 100), os.closerange(102, 4096)
    os.read(100, 1)
    os.write(101, str(sum()).encode())
    os._exit(0)

def fork_all():
    # A child that holds every descriptor, too.
    if not (child := os.fork()):
        time.sleep(20)
        os._exit(0)
    return child

def child_sum():
    wait, answer = children.pop()
    os.close(wait)
    return os.read(answer, 100).decode()

def files():
    # Of memory: segments of its own, and of others.
    names = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            names.append(os.readlink(f"/proc/self/fd/{fd}"))
    return builtins_sum(name.startswith(("/#", "/memfd:weft")) for name in names)

def until(what, wanted):
    end = time.monotonic() + 100
    while (seen := ask[what]()) != int(wanted) and time.monotonic() < end:
        crank()
    return seen

def pinned():
    return _native.pool_statistics()["pinned_nbytes"] >> 20

def peers_left():
    return len(peers)

def resident():
    (line,) = [x for x in open("/proc/self/status") if x.startswith("RssShmem")]
    return int(line.split()[1]) >> 10

def trim():
    _native.pool_trim(0)

def reuse(mib):
    # Fill what the pool gives, more than one segment of it, and leave it.
    with weft.arrays_in_pool():
        others = [np.full(int(mib) << 20, 200, "u1") for _ in range(300 // int(mib))]

builtins_sum = __builtins__.sum
ask = dict(globals())
print("ready", flush=True)
for command in sys.stdin:
    word, *rest = command.split()
    print(ask[word](*rest), flush=True)
"""


class Node:
    def __init__(self, spawn, name):
        self.name = name
        self.child = spawn(NODE)
        assert self.child.line() == "ready"

    def ask(self, *words):
        self.child.say(" ".join(map(str, words)))
        return self.child.line()

    def meet(self, other):
        address = self.ask("listen")
        self.child.say(f"accept {other.name}")
        other.ask("connect", self.name, address)
        self.child.line()

    def lend(self, other, how="lend"):
        """Have `other` receive what this one holds: it answers for a segment while it waits."""
        other.child.say(f"{'recv' if how == 'lend' else 'recv_frames'} {self.name}")
        self.ask(how, other.name)
        other.child.line()

    def kill(self):
        self.child.kill()


def row_of(spawn, count):
    """Return some nodes: each knows the next."""
    nodes = [Node(spawn, name) for name in "abcd"[:count]]
    for node, following in itertools.pairwise(nodes):
        node.meet(following)
    return nodes


def lend_along(nodes, value=3, mib=8):
    nodes[0].ask("make", value, mib)
    for node, following in itertools.pairwise(nodes):
        node.lend(following)
