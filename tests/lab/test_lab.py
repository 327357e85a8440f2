# SPDX-License-Identifier: BSD-3-Clause
"""Labs that stand and fall, on this machine: root, iproute2 and a kernel that permits it, or these are skipped."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import weft
from weft import _cli as cli
from weft import lab
from weft.lab import lab as labs

CABLE = lab.parse({"hosts": {"a": {"cpus": "0"}, "b": {}}, "links": [{"between": ["a", "b"], "rate": "100mbit"}]})
FILE = '[hosts.a]\n[hosts.b]\n[[links]]\nbetween = ["a", "b"]\n'


@pytest.fixture(scope="module", autouse=True)
def _permitted():
    try:
        with lab.Lab(CABLE):
            pass
    except weft.UnsupportedError as e:
        pytest.skip(str(e))


def mine():
    """What labs of this process have in the kernel and in /etc."""
    listed = labs._run("ip", "netns", "list").split()
    folders = [path.name for path in labs._ETC.glob("weft-*")]
    return [name for name in [*listed, *folders] if name.startswith(f"weft-{os.getpid()}-")]


def said(standing, host, *command):
    return subprocess.run(standing.command(host, command), capture_output=True, text=True, timeout=100).stdout.split()


def test_cpus_that_are_not_there():
    cpus = str(max(os.sched_getaffinity(0)) + 1)
    network = lab.parse({"hosts": {"a": {"cpus": cpus}, "b": {}}, "links": [{"between": ["a", "b"]}]})
    with pytest.raises(weft.InvalidParamError, match=f"may use none of cpus='{cpus}'"), lab.Lab(network):
        pass
    assert not mine()


@pytest.mark.slow
def test_two_hosts():
    with lab.Lab(CABLE) as standing:
        assert len(mine()) == 4
        assert said(standing, "a", "cat", "/proc/sys/kernel/hostname") == ["a"]
        assert said(standing, "b", "getent", "hosts", "a")[0] == standing.address("a") == "10.77.0.1"
        ipc = ["readlink", "/proc/self/ns/ipc"]
        assert said(standing, "a", *ipc) == said(standing, "a", *ipc) != said(standing, "b", *ipc)
        assert said(standing, "a", "grep", "Cpus_allowed_list", "/proc/self/status")[1] == "0"
        assert "rate 100Mbit" in labs._run("tc", "-n", standing._namespaces["b"], "qdisc", "show")
        assert "lab0" not in labs._run("ip", "link")
        background = standing.start("b", ["sh", "-c", "sleep 60 & echo $! $WEFT_LAB_HOST"], stdout=subprocess.PIPE)
        with background.stdout:
            pid, name = background.stdout.readline().decode().split()
        assert name == "b"
        assert background.wait(100) == 0
        assert Path(f"/proc/{pid}").exists()
        with pytest.raises(weft.InvalidParamError, match="no host 'x'; there are a, b"):
            standing.command("x", ["true"])
    assert mine() == []
    ended = Path(f"/proc/{pid}/stat")
    assert not ended.exists() or ended.read_text().split()[2] == "Z"  # whoever adopted it may not have looked yet
    standing.close()
    with pytest.raises(weft.InvalidParamError, match="not running"):
        standing.ip("a", "link")


ANSWER = "import socket; s = socket.create_server(('a', 1)); print(flush=True); s.accept()[0].sendall(b'yes')"
ASK = "import socket; print(socket.create_connection(('a', 1)).recv(3).decode())"


@pytest.mark.slow
def test_a_switch():
    names = ["a", "b", "c"]
    with lab.Lab(lab.parse({"hosts": {name: {} for name in names}, "links": [{"between": names}]})) as standing:
        answering = standing.start("a", [sys.executable, "-c", ANSWER], stdout=subprocess.PIPE)
        with answering.stdout:
            answering.stdout.readline()
        assert said(standing, "c", sys.executable, "-c", ASK) == ["yes"]
    assert mine() == []


SEND = "import socket, sys; socket.socket(type=socket.SOCK_DGRAM).sendto(bytes(1000), (sys.argv[1], 9))"


@pytest.mark.slow
def test_pairs_and_flows_go_by_classes_of_their_own():
    pairs = [{"between": ["a", "b"], "rate": "10mbit"}]
    link = {"between": ["a", "b", "c"], "rate": "100mbit", "rate_per_flow": "20mbit", "pairs": pairs}
    with lab.Lab(lab.parse({"hosts": {"a": {}, "b": {}, "c": {}}, "links": [link]})) as standing:
        for other in "bc":
            said(standing, "a", sys.executable, "-c", SEND, standing.address(other))
        shown = labs._run("tc", "-n", standing._namespaces["a"], "-s", "class", "show", "dev", "lab0")
        classes = re.findall(r"htb 1:(\w+) .*\n Sent (\d+)", shown)
        used = {int(number, 16): int(nbytes) for number, nbytes in classes if int(nbytes) >= 1000}
        assert used.pop(0x10) < 2000  # the pair's
        assert used.pop(1) >= 2000  # all of it
        (flow,) = used
        assert flow >= 0x1000


def test_what_fails_on_the_way_leaves_nothing(monkeypatch):
    wrong = [["ip", "-n", "none", "link"]]
    monkeypatch.setattr(labs.networks, "commands", lambda *_: iter(wrong))
    with pytest.raises(weft.UnsupportedError, match="ip -n none link"), lab.Lab(CABLE):
        pass
    assert mine() == []


OWNER = """
import os, signal, sys
from weft import lab
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
from weft.lab import lab as labs
labs._SWEEPER = sys.argv[1] if sys.argv[1:] else labs._SWEEPER
with lab.Lab(lab.parse({"hosts": {"a": {}}})) as standing:
    print(standing.start("a", ["sleep", "60"]).pid, flush=True)
    sys.stdin.readline()
"""


@pytest.mark.slow
def test_what_a_killed_one_left_is_swept(spawn, monkeypatch):
    owner = spawn(OWNER, "exit")  # the sweeper was killed, too
    sleeper = int(owner.line())
    namespace = f"weft-{owner.pid}-0-a"
    assert namespace not in lab.leftovers()
    owner.kill()
    assert namespace in lab.leftovers()
    # others' labs are theirs to sweep
    monkeypatch.setattr(labs, "leftovers", lambda: [namespace])
    assert lab.clean() == [namespace]
    assert namespace not in labs._run("ip", "netns", "list").split()
    assert not (labs._ETC / namespace).exists()
    stat = Path(f"/proc/{sleeper}/stat")
    assert not stat.exists() or stat.read_text().split()[2] == "Z"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_lab_ends_with_its_owner(number, spawn):
    owner = spawn(OWNER)
    sleeper = int(owner.line())
    namespace = f"weft-{owner.pid}-0-a"
    assert namespace in labs._run("ip", "netns", "list").split()
    try:
        owner.process.send_signal(number)
        assert owner.wait() == -number
        until = time.monotonic() + 60
        while namespace in lab.leftovers() and time.monotonic() < until:
            time.sleep(0.05)
        assert namespace not in lab.leftovers()
    finally:
        labs._remove(namespace)
    stat = Path(f"/proc/{sleeper}/stat")
    assert not stat.exists() or stat.read_text().split()[2] == "Z"


@pytest.mark.slow
def test_the_command(tmp_path, capfd):
    (tmp_path / "two.toml").write_text(FILE)
    file = str(tmp_path / "two.toml")
    script = "echo $WEFT_LAB_HOST out; echo err >&2; test $WEFT_LAB_HOST = a || exit 7"
    assert cli.main(["lab", file, "--", "sh", "-c", script]) == 7
    assert sorted(capfd.readouterr().out.splitlines()) == ["a | a out", "a | err", "b | b out", "b | err"]
    assert cli.main(["lab", file, "--on", "b", "sh", "-c", "echo only; kill -9 $$"]) == 137
    assert capfd.readouterr().out == "only\n"
    assert cli.main(["lab", file, "--on=x", "true"]) == 2
    assert "no host 'x'" in capfd.readouterr().err
    assert mine() == []


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_takes_it_down(number, status, tmp_path):
    (tmp_path / "two.toml").write_text(FILE)
    command = [
        sys.executable,
        "-m",
        "weft",
        "lab",
        str(tmp_path / "two.toml"),
        "--",
        "sh",
        "-c",
        "echo up; sleep 60",
    ]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert running.stdout.readline().endswith(" | up\n")
        running.send_signal(number)
        assert running.wait(100) == status
    finally:
        running.terminate()  # it takes its lab down
        running.stdout.close()
        running.wait(100)
    assert f"weft-{running.pid}-" not in labs._run("ip", "netns", "list")
    assert not list(labs._ETC.glob(f"weft-{running.pid}-*"))


def test_a_host_that_does_not_come_up(monkeypatch):
    monkeypatch.setattr(labs, "_KEEPER", "exec sleep 100")
    monkeypatch.setattr(labs, "_UP_S", 0.2)
    with pytest.raises(weft.TimedOutError, match="namespaces of host a were not there"), lab.Lab(CABLE):
        pass
    assert mine() == []
