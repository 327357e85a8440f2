# SPDX-License-Identifier: BSD-3-Clause
"""Two containers of one pod: one network and one Unix socket's reach, but IPC and PID namespaces of their own.

UCX's posix refuses a peer in another of those, so the network it is, or a refusal that says why.
"""

import os
import shutil
import subprocess
import sys

import pytest

import weft

ALONE = [shutil.which("unshare") or "unshare", "--fork", "--kill-child"]
TIMEOUT_S = 20


def may_unshare():
    return subprocess.run([*ALONE, "--ipc", "--pid", "true"], capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not may_unshare(), reason="namespaces cannot be made here")

CONNECT = """
import sys, weft
try:
    with weft.connect(sys.argv[1], timeout=10) as peer:
        peer.send(b"x" * 1_000_000).wait(10)
        print(peer.same_host, *peer.transports, peer.recv().wait(10).nbytes)
except weft.UnreachableError as e:
    print(e)
"""


def connect_from(kind, address, **env):
    command = [*ALONE, f"--{kind}", sys.executable, "-c", CONNECT, address]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | env)


@pytest.mark.parametrize("kind", ["ipc", "pid"])
def test_over_the_loopback_it_is_refused_with_the_reason(kind):
    with weft.listen("127.0.0.1:0") as listener:
        other = connect_from(kind, listener.address)
        with pytest.raises(weft.Error):
            listener.accept(1)
        assert "not the IPC or PID namespace" in other.communicate(timeout=TIMEOUT_S)[0]


@pytest.mark.parametrize("kind", ["ipc", "pid"])
def test_by_the_network_it_works(kind):
    with weft.listen("127.0.0.1:0", settings={"TLS": "tcp,self"}) as listener:
        other = connect_from(kind, listener.address, UCX_TLS="tcp,self")
        with listener.accept(TIMEOUT_S) as peer:
            assert not peer.same_host
            assert peer.recv().wait(TIMEOUT_S).nbytes == 1_000_000
            peer.send(b"y" * 70_000).wait(TIMEOUT_S)
        assert other.communicate(timeout=TIMEOUT_S)[0].split() == ["False", "tcp/lo", "70000"]
