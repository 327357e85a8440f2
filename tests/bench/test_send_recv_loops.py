# SPDX-License-Identifier: BSD-3-Clause
"""How ``weft bench send-recv`` ends before its time: Ctrl-C, a side that is killed, a parent that is."""

import argparse
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys

import psutil
import pytest

import weft
from weft.bench.send_recv import command as send_recv
from weft.bench.send_recv import loops

pytest.importorskip("numpy")
pytestmark = pytest.mark.slow
HANG_S = 90.0
LONG = ["bench", "send-recv", "-n", "1MiB", "--n-iter", "100_000_000"]
#: The command, which says when its messages have begun to go around.
SAYING = """
import sys
from weft import _cli as cli
from weft.bench.send_recv import loops

agree, receive, left = loops.agree, loops._Mover._receive, [3]

def agreed(control, parameters):
    agree(control, parameters)
    if parameters.over != "weft":
        print("going around", flush=True)

def told(self):
    left[0] -= 1
    if left[0] == 0:
        print("going around", flush=True)
    return receive(self)

loops.agree, loops._Mover._receive = agreed, told
sys.exit(cli.main(sys.argv[1:]))
"""
#: The command, whose client never connects.
WAITING = """
import signal, sys
from weft import _cli as cli
from weft.bench.send_recv import command as send_recv

send_recv._client = lambda args: (print("going around", flush=True), signal.pause())
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
        until(process, "going around")
        children = psutil.Process(process.pid).children()
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=HANG_S)
    assert (process.returncode, said) == (130, "weft bench send-recv: interrupted\n")
    assert len(children) == 1
    assert ended(children)


def test_a_server_says_nothing_of_its_own_client_that_goes(capfd):
    code = "import sys; from weft.bench.send_recv import command; command.serve(sys.argv[1])"
    parser = argparse.ArgumentParser()
    send_recv.add_arguments(parser)
    options = json.dumps(vars(parser.parse_args(["-l", "socket", "-s", "127.0.0.1"])))
    with subprocess.Popen([sys.executable, "-c", code, options], stdout=subprocess.PIPE, text=True) as server:
        port = until(server, "Server runs at 127.0.0.1:")
        socket.create_connection(("127.0.0.1", int(port))).close()
        assert server.wait(HANG_S) == 1
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("code", [SAYING, WAITING], ids=["in the loop", "before the client connects"])
def test_a_parent_that_is_killed_leaves_no_server(code, number):
    with command(code=code) as process:
        until(process, "going around")
        children = psutil.Process(process.pid).children()
        process.send_signal(number)
        assert process.wait(HANG_S) == -number
        assert len(children) == 1
        assert ended(children)


@pytest.mark.parametrize("backend", ["weft-async", "weft-core", "asyncio", "socket"])
@pytest.mark.parametrize("lost", ["client", "server"])
def test_a_side_elsewhere_that_is_killed_ends_the_other(lost, backend):
    here = ["-s", "127.0.0.1", "-l", backend]
    with command(*here, "--server-only") as server:
        port = until(server, "Server runs at 127.0.0.1:")
        with command(*here, "--client-only", "-p", port) as client:
            until(client, "going around")
            until(server, "going around")
            killed, other = (client, server) if lost == "client" else (server, client)
            killed.kill()
            _, said = other.communicate(timeout=HANG_S)
    assert (other.returncode, said.count("\n")) == (1, 1)
    assert re.match(r"weft bench send-recv: (PeerLost|ConnectionReset|BrokenPipe)Error: ", said), said


@pytest.mark.parametrize("over", ["weft", "socket", "streams"])
def test_an_other_side_that_has_agreed_and_goes(over):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    plan, make = loops.Parameters(over, "tag", 8, 1, 1), loops.objects("numpy", 8, 0)
    with ours, theirs, pytest.raises(weft.PeerLostError, match="send-recv: the other side went away"):
        theirs.sendall(json.dumps(plan._asdict()).encode() + b"\n")
        theirs.shutdown(socket.SHUT_WR)
        if over == "weft":
            loops.over_weft(ours, plan, make, client=True, reuse=False, waits=False, settings={})
        elif over == "socket":
            loops.over_socket(ours, plan, make, client=True, reuse=False)
        else:
            loops.over_streams(ours, plan, make, client=True)
