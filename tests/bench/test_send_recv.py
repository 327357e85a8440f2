# SPDX-License-Identifier: BSD-3-Clause
"""The round trip of ucx-py and UCXX: their options, their lines, every backend once, and what cannot be run."""

import argparse
import asyncio
import importlib.util
import json
import re
import socket
import subprocess
import sys
import threading
import tracemalloc

import pytest

import weft
from weft import _cli
from weft.bench.send_recv import command as send_recv
from weft.bench.send_recv import loops as send_recv_loops

pytest.importorskip("numpy")
pytestmark = pytest.mark.usefixtures("nothing_left")
BRIEF = ["--n-iter", "3", "--n-warmup-iter", "1"]


def parsed(*arguments):
    parser = argparse.ArgumentParser()
    send_recv.add_arguments(parser)
    return parser.parse_args([*BRIEF, *arguments])


def bench(*arguments):
    return send_recv.run(parsed(*arguments))


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("8", 8), ("10 Mb", 10**7), ("10MB", 10**7), ("128MiB", 2**27), ("1GB", 10**9), ("1e6", 10**6), ("1_000", 1000)],
)
def test_size(text, nbytes):
    assert send_recv.parse_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "0", "MB", "-1", "1XB", "1..2", "nan", "1e999"])
def test_size_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is not a size"):
        send_recv.parse_bytes(text)


def test_a_message_is_made_in_the_memory_that_it_takes():
    nbytes = 64 << 20
    tracemalloc.start()
    try:
        made = send_recv_loops.objects("numpy", nbytes, 0).filled()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert made.nbytes == nbytes
    assert made[:257].tolist() == [*range(256), 0]
    assert most < 2 * nbytes


@pytest.mark.parametrize(
    "line",
    [
        "--server-dev 0 --client-dev 1 -o rmm --reuse-alloc -n 128MiB",
        "--server-dev 2 --client-dev 1 --object_type rmm --reuse-alloc --n-bytes 1GB",
        "-d 0 -e 5 -o cupy --reuse-alloc -n 1GB --server-only --port 13337 --n-iter 100",
        "--client-only --server-address 10.0.0.2 --port 13337 --n-iter 100 -l ucp-core --delay-progress",
        "-l ucxx-core -x 4 --progress-mode blocking --asyncio-wait -b 0 -c 1 -v --max-outstanding 16",
        "--enable-am --no-detailed-report --cuda-profile --rmm-init-pool-size 1000 --rmm-managed-memory",
        "--report-gil-contention --no-error-handling --rndv-thresh 8192 -l tornado -s 127.0.0.1 -p 5000",
    ],
)
def test_command_lines_of_ucx_py_and_ucxx(line):
    assert parsed(*line.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "api", "lanes"),
    [
        ([], "TAG", "posix/memory"),
        (["-l", "ucp-core", "--reuse-alloc", "-x", "3"], "TAG", "posix/memory"),
        (["-l", "ucxx-core", "--enable-am"], "AM", "posix/memory"),
        (["--enable-am", "-x", "2", "--rndv-thresh", "1024"], "AM", "posix/memory"),
        (["-l", "asyncio"], None, "tcp"),
        (["-l", "socket", "--reuse-alloc"], None, "tcp"),
    ],
)
def test_report(arguments, api, lanes, capsys):
    assert bench("-n", "100kB", *arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    fields = dict(line.split("| ", 1) for line in lines if "| " in line)
    fields = {key.strip(): value for key, value in fields.items()}
    assert fields["Bytes"] == "97.66 KiB"
    assert fields["Reuse allocation"] == str("--reuse-alloc" in arguments)
    assert fields.get("Transfer API") == api
    assert fields["Lanes"] == lanes
    assert fields["Device(s)"] == "CPU-only"
    for figure in ("Bandwidth (average)", "Bandwidth (median)"):
        assert fields[figure].endswith("B/s")
    for figure in ("Latency (average)", "Latency (median)"):
        assert int(fields[figure].removesuffix(" ns")) > 0
    assert [key for key in fields if key.isdecimal()] == ["0", "1", "2"]


@pytest.mark.slow
def test_without_detail_and_with_notes(capsys):
    arguments = ("--no-detailed-report", "--delay-progress", "--no-error-handling", "--progress-mode", "thread")
    assert bench("-n", "8", *arguments) == 0
    captured = capsys.readouterr()
    assert "Latency (median)" in captured.out
    assert "Bandwidth, Latency" not in captured.out
    assert [line.split()[1] for line in captured.err.splitlines()] == [
        "--delay-progress",
        "--progress-mode",
        "--no-error-handling",
    ]


@pytest.mark.slow
def test_server_and_client_apart(capsys):
    options = vars(parsed("-n", "8", "--server-only", "-s", "127.0.0.1"))
    command = [sys.executable, "-c", send_recv.CHILD, json.dumps(options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        port = server.stdout.readline().strip().rsplit(":", 1)[1]
        assert bench("-n", "8", "--client-only", "-s", "127.0.0.1", "-p", port) == 0
        assert server.wait(100) == 0
    assert "Roundtrip benchmark" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("heard", "error", "message"),
    [
        (b'{"over": "weft", "api": "am", "nbytes": 8}\n', weft.HandshakeError, "api is tag here and am there"),
        (b"SSH-2.0\n", weft.HandshakeError, "is not weft bench send-recv: b'SSH-2.0"),
        (b"", weft.PeerLostError, "closed without sending anything"),
    ],
)
def test_sides_that_do_not_agree(heard, error, message):
    ours, theirs = socket.socketpair()
    with ours, theirs, ours.makefile("rwb", buffering=0) as control:
        theirs.sendall(heard)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(error, match=message):
            send_recv_loops.agree(control, send_recv_loops.Parameters("weft", "tag", 8, 1, 4))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--client-only", "-p", "1"], "send-recv: --client-only needs --server-address and --port"),
        (["--n-iter", "0"], "send-recv: --n-iter"),
        (["-l", "socket", "-x", "2"], "send-recv: --n-buffers above 1 needs a backend of weft's"),
        (["-b", "4096"], "send-recv: --server-cpu-affinity 4096: this process may use the cores"),
        (["--client-only", "-s", "127.0.0.1", "-p", "1"], "connection refused"),
    ],
)
def test_refused(arguments, message, capsys):
    assert bench(*arguments) == (2 if "send-recv: " in message else 1)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("end", [[], ["--client-only", "-s", "127.0.0.1", "-p", "1"], ["--server-only"]])
@pytest.mark.parametrize("backend", ["weft-async", "asyncio", "socket"])
def test_messages_beyond_the_memory_are_refused(backend, end, capsys):
    assert bench("-n", "1e18", "-l", backend, *end) == 1
    said = capsys.readouterr()
    assert re.fullmatch(
        r"weft bench send-recv: NoMemoryError: --n-bytes 1000000000000000000: .*, where this process may use \S+ GiB\n",
        said.err,
    )
    assert said.out == ""


def test_memory_that_runs_out_is_one_line(monkeypatch, capsys):
    def full(*_):
        raise MemoryError

    monkeypatch.setattr(send_recv_loops, "objects", lambda *_: send_recv_loops.Objects(full, full))
    assert bench("-n", "8") == 1
    assert "weft bench send-recv: NoMemoryError: --n-bytes 8: " in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--timeout=nan", "--timeout=inf", "--timeout=0", "--timeout=1e300", "--timeout=x"])
def test_a_timeout_that_no_clock_can_wait_for_is_refused(option, capsys):
    with pytest.raises(SystemExit) as refused:
        parsed(option)
    assert refused.value.code == 2
    assert f"argument --timeout: {option[10:]!r}" in capsys.readouterr().err


@pytest.mark.parametrize("port", ["99999", "65536", "-5", "0", "x"])
def test_what_is_no_port_is_refused(port, capsys):
    with pytest.raises(SystemExit) as refused:
        parsed("--client-only", "-s", "127.0.0.1", f"--port={port}")
    assert refused.value.code == 2
    assert f"argument -p/--port: {port!r} is not a port between 1 and 65535" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["cupy", "rmm", "torch"])
def test_gpu_objects_without_a_gpu_are_a_named_error(kind, capsys):
    if importlib.util.find_spec("torch" if kind == "torch" else "cupy"):
        pytest.skip("the package is here, and may have a GPU")
    assert bench("-o", kind, "--server-dev", "0", "--client-dev", "1") == 1
    message = f"UnsupportedError: send-recv of {kind} objects: needs the package {kind} and CUDA device 1"
    assert message in capsys.readouterr().err


def test_without_numpy_the_command_to_install_it_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert bench("-o", "numpy") == 1
    assert 'NumPy is not installed: pip install "weft-ucx[bench]"' in capsys.readouterr().err


@pytest.mark.slow
def test_a_server_that_dies_ends_the_client(monkeypatch, capsys):
    code = "import os, time; print('Server runs at 127.0.0.1:1', flush=True); time.sleep(0.3); os._exit(3)"
    monkeypatch.setattr(send_recv, "CHILD", code)
    hold = threading.Event()
    monkeypatch.setattr(send_recv, "_client", lambda args: hold.wait(20))
    assert bench("-n", "8") == 1
    assert "the server ended with status 3" in capsys.readouterr().err


def test_a_client_without_an_answer_gives_up(capsys):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        assert bench("--client-only", "-s", "127.0.0.1", "-p", port, "--timeout", "0.05") == 1
    assert "TimedOutError: send-recv: did not finish within 0.05 s" in capsys.readouterr().err


def test_a_timeout_that_a_callback_of_the_loop_swallows_comes_again():
    swallowed = []

    async def wait():
        loop, enough = asyncio.get_running_loop(), threading.Event()
        loop.set_exception_handler(lambda _, context: swallowed.append(context["exception"]))
        loop.call_soon(enough.wait, 60)
        await asyncio.wait_for(loop.create_future(), 90)

    with pytest.raises(weft.TimedOutError, match="did not finish within"), send_recv._within(0.05):
        asyncio.run(wait())
    assert {type(error) for error in swallowed} == {weft.TimedOutError}


@pytest.mark.parametrize(
    ("host", "why"), [("127.0.0.1", "connection refused"), ("no-such-host.invalid", "no such host: ")]
)
def test_a_server_that_is_not_there(host, why, capsys):
    assert _cli.main(["bench", "send-recv", "--client-only", "--server-address", host, "--port", "1"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"weft bench send-recv: UnreachableError: connect to {host}:1: {why}")
    assert "start the server there, by --server-only" in said
