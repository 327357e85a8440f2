# SPDX-License-Identifier: BSD-3-Clause
"""Two doctors: on one host, and on two, which are network namespaces as in tests/test_network.py."""

import contextlib
import json
import signal
import socket
import threading

import pytest
from tests.machines import hosts as recorded
from tests.machines import trees
from tests.test_network import cable, hosts  # noqa: F401 - fixtures

import weft
from weft import _cli as cli
from weft.doctor import trial, trial_end, ucx
from weft.doctor.finding import Level

#: What a listener and a caller are, for a child process.
DOCTOR = "import sys; from weft import _cli; sys.exit(_cli.main(['doctor', *sys.argv[1:]]))"
#: As JSON, it exceeds the interpreter's recursion limit.
DEEP = b"[" * 4000 + b"\n"


def port_of(line):
    assert line.startswith("listening on "), line
    return line.rpartition(":")[2]


@pytest.mark.slow
def test_on_one_host(spawn, capsys):
    listening = spawn(DOCTOR, "--listen", "127.0.0.1:0")
    address = f"127.0.0.1:{port_of(listening.line())}"
    assert cli.main(["doctor", "--pair", address, "--json"]) == 0
    found = {finding["check"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert list(found) == ["path", "default", "posix", "tcp"]
    assert found["path"]["what"] == f"{address} answers, with the same versions"
    assert found["posix"]["what"].startswith("posix/memory: ")
    assert found["tcp"]["what"].startswith("tcp/lo: ")
    # a stranger, and one that goes without a word, disturb nobody
    for nonsense in (b"GET / HTTP/1.1\r\n\r\n", b'{"trial": "rm"}\n', b"[]\n", DEEP, b""):
        with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=100) as sock:
            assert json.loads(sock.makefile("rb").readline())["weft"]
            sock.sendall(nonsense)
    with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=100) as sock:
        assert json.loads(sock.makefile("rb").readline())["weft"]
    assert listening.process.poll() is None


@pytest.mark.slow
def test_on_two_hosts(hosts):  # noqa: F811
    a, b = hosts
    listening = a.python(DOCTOR, "--listen", f"{a.ipv4}:0")
    port = port_of(listening.line())
    calling = b.python(DOCTOR, "--pair", f"{a.ipv4}:{port}")
    assert calling.line().startswith(f"ok       path     {a.ipv4}:{port} answers")
    for name in ("default", "tcp"):
        said = calling.line()
        assert said.startswith(f"ok       {name:<7}  tcp/{b.device}: "), said
    assert calling.line() == "3 ok"
    assert calling.wait() == 0


def test_the_other_end_has_the_whole_trial_to_start(monkeypatch, capsys):
    class Listener:
        address = "somewhere"

        def accept(self, timeout):
            raise weft.TimedOutError(f"nobody came within {timeout} s", op="accept")

    monkeypatch.setattr(signal, "alarm", lambda seconds: None)
    monkeypatch.setattr(weft, "listen", lambda address: contextlib.nullcontext(Listener()))
    assert trial_end.main(["listen", "127.0.0.1:0"]) == 1
    assert f"nobody came within {trial_end.LIMIT_S} s" in capsys.readouterr().out


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    found = trial.examine(f"127.0.0.1:{port}")
    assert list(found) == ["path"]
    assert found["path"].remedy == "start it there: weft doctor --listen"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "it closed the connection"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "it sent b'SSH-2.0-OpenSSH_9.2"),
        (b"[1]\n", "it sent b'[1]"),
        (b"\xff\xfe\n", "it sent b'"),
        (b"{" * 5000, "it sent b'{{"),
        (DEEP, "it sent b'"),
    ],
)
def test_something_else_listens(answer, said):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            caller, _ = server.accept()
            with caller:
                caller.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        found = trial.examine(f"127.0.0.1:{server.getsockname()[1]}")
        thread.join(100)
    assert found["path"].level is Level.ERROR
    assert f"is not a weft doctor, or it ended: {said}" in found["path"].what


@pytest.mark.parametrize(
    ("trial_name", "said", "devices", "remedy"),
    [
        ("tcp", "UCX found no device with UCX_TLS=rc", "", "correct or unset UCX_TLS"),
        ("tcp", "refused", "lo there", "UCX_NET_DEVICES is set (lo there): unset it"),
        ("posix", "refused", "lo there", "look at shared memory"),
        ("tcp", "has the device several addresses?", "", "make the one that the other machine can reach its first"),
        ("tcp", "no answer", "", "open the ephemeral ports"),
    ],
)
def test_the_remedy_fits_the_failure(trial_name, said, devices, remedy):
    assert remedy in trial._judged(trial_name, {"error": said}, devices).remedy


def test_a_trial_listens_on_ucx_s_ports(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("UCX_TCP_PORT_RANGE", f"{port}-{port + 20}")
        host, _, chosen = trial_end._with_ucx_s_port("127.0.0.1:0").rpartition(":")
    assert host == "127.0.0.1"
    assert port < int(chosen) <= port + 20


def test_who_is_silent_is_named_while_it_waits(monkeypatch, capsys):
    monkeypatch.setattr(trial, "_QUIET_S", 0.01)
    monkeypatch.setattr(trial, "LIMIT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        found = trial.examine(address)
    assert found["path"].level is Level.ERROR
    waits = (
        f"weft doctor: no answer from {address} yet: it may be answering another doctor, or not be one; waiting 0.1 s\n"
    )
    assert capsys.readouterr().err == waits


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"error": "connect to x: \x1b no answer"}, "no transfer: connect to x: ? no answer"),
        ({}, "no transfer: no answer"),
        ({"transports": 3, "one_way_s": "x", "bandwidth_Bps": None}, "no transfer: no answer"),
    ],
)
def test_an_end_that_failed(told, said):
    found = trial._judged("tcp", told)
    assert (found.level, found.what) == (Level.ERROR, said)
    assert "ephemeral ports" in found.remedy


@pytest.mark.parametrize(
    ("there", "level", "said"),
    [
        ({}, Level.OK, "ucx: 1.22.0 there, 1.22.0 here"),
        ({"ucx": "1.18.1"}, Level.NOTE, "ucx: 1.18.1 there, 1.22.0 here"),
        ({"UCX_TLS": "posix"}, Level.WARNING, "UCX_TLS: posix there, not set here"),
    ],
)
def test_what_is_not_alike_at_both_ends(there, level, said):
    here = {"weft": "0.1.0", "ucx": "1.22.0", "UCX_TLS": "not set"}
    found = trial._path("x", {**here, **there}, here)
    assert found.level is level
    assert said in found.evidence


def test_a_port_in_use(capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert cli.main(["doctor", "--listen", f"127.0.0.1:{server.getsockname()[1]}"]) == 1
    assert "choose another port" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["doctor", "explain"])
@pytest.mark.parametrize(
    ("address", "why"),
    [("192.0.2.9:1", "Cannot assign requested address"), ("no-such-host.invalid:1", "")],
)
def test_an_address_of_another_host(command, address, why, capsys):
    assert cli.main([command, "--listen", address]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"weft {command}: listen on {address}: {why}")
    assert said.endswith("; write an address of this host, or 0.0.0.0 for all IPv4 addresses\n")


def test_rc_is_tried_where_there_is_something_that_has_it(tmp_path):
    for layer, driver, tried in (("InfiniBand", "mlx5_core", True), ("Unspecified", "efa", False)):
        made = recorded.bare(tmp_path / driver, environ={"WEFT_LIBUCX": "system"})
        recorded.system_ucx(made.root)
        trees.rdma(made.root, "rdma0", "pci0000:00/0000:01:00.0", layer=layer, driver=driver)
        assert trial._rdma(made, ucx.chosen(made)) is tried
