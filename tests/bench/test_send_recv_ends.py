# SPDX-License-Identifier: BSD-3-Clause
"""How ``weft bench send-recv`` ends before its time: Ctrl-C, a side that is killed, a parent that is."""

import contextlib
import os
import signal
import subprocess
import sys

import psutil
import pytest

pytest.importorskip("numpy")
pytestmark = pytest.mark.slow
HANG_S = 90.0
LONG = ["bench", "send-recv", "-n", "1MiB", "--n-iter", "100_000_000"]
#: The command, which says when its messages have begun to go around.
SAYING = """
import sys
from weft import cli
from weft.bench import send_recv_sides as sides

receive, left = sides._Mover._receive, [3]

def told(self):
    left[0] -= 1
    if left[0] == 0:
        print("going around", flush=True)
    return receive(self)

sides._Mover._receive = told
sys.exit(cli.main(sys.argv[1:]))
"""


@contextlib.contextmanager
def command(*arguments, code=SAYING):
    """Run the command in a session of its own, as a terminal does."""
    words = [sys.executable, "-c", code, *LONG, *arguments]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def until(process, text):
    """Read lines until one begins with `text`; return what follows."""
    for line in process.stdout:
        if line.startswith(text):
            return line[len(text) :].strip()
    pytest.fail(f"{text!r} was not said: {process.stderr.read()}")


def ended(processes):
    """Wait until all are gone; who has nobody to ask for its status stays as a zombie."""
    _, alive = psutil.wait_procs(processes, timeout=HANG_S)
    return [each for each in alive if each.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.parametrize("backend", ["weft-async", "weft-core", "asyncio", "socket"])
def test_ctrl_c_is_one_line(backend):
    with command("-l", backend) as process:
        until(process, "going around" if backend.startswith("weft") else "Client connects to")
        children = psutil.Process(process.pid).children()
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=HANG_S)
    assert (process.returncode, said) == (130, "weft bench send-recv: interrupted\n")
    assert len(children) == 1
    assert ended(children)
