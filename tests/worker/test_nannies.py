# SPDX-License-Identifier: BSD-3-Clause
"""A scheduler that listens on both protocols, and the command beside it."""

import asyncio
import concurrent.futures
import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from distributed import Client, Scheduler

import weft
from weft.worker import nannies

COMMAND = [sys.executable, "-m", "weft", "worker"]

# distributed's connect over tcp can leave a socket of tornado's to the garbage collector; weft's own do not warn.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(autouse=True)
def left_sockets():
    """Collect them in the test that left them: pytest's own last collection would fail the whole run."""
    yield
    gc.collect()


def alive(pid):
    """A zombie is not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


async def gone(pids):
    for _ in range(600):
        if not any(map(alive, pids)):
            return True
        await asyncio.sleep(0.1)
    return False


async def two_workers(scheduler, tcp, process):
    """Use the two workers that `process` starts; return the ids of their processes."""
    async with Client(tcp, asynchronous=True) as client:
        await client.wait_for_workers(2, timeout=100)
        assert process.poll() is None
        assert all(address.startswith("ucx://") for address in scheduler.workers)
        assert sorted(worker.name for worker in scheduler.workers.values()) == ["a-0", "a-1"]
        assert await client.submit(sum, client.map(len, ["ab", "c"])) == 3
        return list((await client.run(os.getpid)).values())


async def run():
    both = {"protocol": ["tcp", "ucx"], "host": "127.0.0.1", "port": [0, 0]}
    async with Scheduler(**both, dashboard=False, dashboard_address=":0") as scheduler:
        tcp, ucx = (listener.contact_address for listener in scheduler.listeners)
        assert ucx.startswith("ucx://")
        options = ["--protocol", "ucx", "--per", "1", "--workers", "2", "--name", "a", "--no-dashboard"]
        # a session of its own: a Ctrl-C reaches all processes of a terminal's foreground group
        process = subprocess.Popen([*COMMAND, tcp, *options], stderr=subprocess.PIPE, start_new_session=True)
        try:
            pids = await two_workers(scheduler, tcp, process)
            assert os.getpid() not in pids
            os.killpg(process.pid, signal.SIGINT)
            said = (await asyncio.to_thread(process.communicate, None, 30))[1]
            assert process.returncode == 0, said.decode()
            assert b"Traceback" not in said, said.decode()
            assert await gone(pids)
            assert not scheduler.workers
        finally:
            process.kill()
            process.communicate()


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_two_workers_of_a_tcp_scheduler_that_listens_on_both_and_a_ctrl_c():
    asyncio.run(asyncio.wait_for(run(), 200))


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_while_the_scheduler_does_not_answer(number, code):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        command = [*COMMAND, f"tcp://127.0.0.1:{silent.getsockname()[1]}", "--workers", "1", "--no-dashboard"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                silent.settimeout(100)
                caller, _ = silent.accept()
                with caller:
                    process.send_signal(number)
                    said = process.communicate(timeout=100)[1]
            finally:
                process.kill()
    assert process.returncode == code, said
    assert "Traceback" not in said


@pytest.mark.slow
def test_a_scheduler_that_is_not_there():
    command = [*COMMAND, "tcp://127.0.0.1:1", "--workers", "1", "--death-timeout", "1", "--no-dashboard"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    why = "no answer within 1 s: connection refused; start the scheduler, or correct its address"
    assert done.stderr.splitlines()[-1] == f"weft worker: start workers for tcp://127.0.0.1:1: {why}"


@pytest.mark.parametrize("scheme", ["tcp", "ucx"])
@pytest.mark.parametrize(
    ("where", "why"), [("127.0.0.1:1", "connection refused"), ("no-such-host.invalid:1", "no such host: ")]
)
def test_why_a_scheduler_does_not_answer(scheme, where, why, monkeypatch, capsys):
    monkeypatch.setattr(nannies, "_SAY_S", 0.1)
    given = {"scheduler_ip": f"{scheme}://{where}", "scheduler_file": None, "death_timeout": 0.3}
    with pytest.raises(weft.TimedOutError, match=f"no answer within 0.3 s: {why}.*; start the scheduler"):
        nannies.run([given])
    assert capsys.readouterr().err == f"weft worker: waiting for the scheduler at {scheme}://{where} ...\n"


@contextlib.contextmanager
def echo():
    """A listener of weft's in another thread, which returns what it gets; gives its address."""

    async def serve(peer):
        with contextlib.suppress(weft.PeerLostError):
            while True:
                await peer.send(await peer.recv())

    async def listen():
        async with weft.listen("127.0.0.1:0", serve) as listener:
            where.set_result(listener.address)
            await asyncio.to_thread(stop.wait, 100)

    where, stop = concurrent.futures.Future(), threading.Event()
    thread = threading.Thread(target=asyncio.run, args=(listen(),))
    thread.start()
    try:
        yield where.result(100)
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize(
    ("scheme", "why"),
    [
        ("tcp", r"start workers for tcp://\S+: it listens on ucx://, and tcp://\S+ is another protocol"),
        ("ucx", "what answers there is no Dask scheduler; correct its address"),
    ],
)
def test_what_answers_is_no_scheduler_of_this_protocol(scheme, why):
    with echo() as address, pytest.raises(weft.Error, match=why):
        nannies.run([{"scheduler_ip": f"{scheme}://{address}", "scheduler_file": None, "death_timeout": None}])


def test_a_port_where_every_attempt_fails_at_once_is_left_in_peace(monkeypatch):
    attempts = 0

    async def connect(*_, **__):
        nonlocal attempts
        attempts += 1
        raise OSError("the handshake failed")

    monkeypatch.setattr(nannies, "connect", connect)
    with pytest.raises(weft.TimedOutError, match="no answer within 1 s"):
        nannies.run([{"scheduler_ip": "ucx://127.0.0.1:1", "scheduler_file": None, "death_timeout": 1.0}])
    assert attempts <= 6  # after 0, 0.1, 0.3, 0.7 and 1 s, and one more where the timer is early


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"scheduler_ip": "tcp://h"}, "start workers for tcp://h: missing port number"),
        ({"scheduler_ip": "tcp://h:99999"}, "99999 is not a port between 1 and 65535; write it like ucx://HOST:8786"),
        ({"scheduler_ip": "nonsense://h:1"}, "unknown address scheme 'nonsense'"),
        ({"protocol": "nonsense"}, "--protocol nonsense: unknown address scheme 'nonsense'"),
    ],
)
def test_usage_errors(options, why):
    given = {"scheduler_ip": "tcp://127.0.0.1:1", "scheduler_file": None, "death_timeout": None} | options
    with pytest.raises(weft.InvalidParamError, match=why):
        nannies.run([given])


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_while_the_scheduler_file_is_not_written(number, code, tmp_path):
    file = tmp_path / "scheduler.json"
    command = [*COMMAND, "--scheduler-file", file, "--workers", "1", "--no-dashboard"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr.readline() == f"weft worker: waiting for a scheduler to write {file}\n"
            process.send_signal(number)
            said = process.communicate(timeout=100)[1]
        finally:
            process.kill()
    assert (process.returncode, said) == (code, "")


def test_the_address_is_taken_once_the_file_is_whole(tmp_path, capsys):
    file = tmp_path / "scheduler.json"

    async def main():
        address = asyncio.create_task(nannies._address(str(file), None))
        for there in ("", "[", "{}", '{"address": "tcp://h:1"}'):
            await asyncio.sleep(0)
            assert not address.done()
            file.write_text(there)
        return await asyncio.wait_for(address, 100)

    assert asyncio.run(main()) == "tcp://h:1"
    assert capsys.readouterr().err.count("\n") == 1
    assert asyncio.run(nannies._address(str(file), None)) == "tcp://h:1"
    assert capsys.readouterr().err == ""


def test_a_scheduler_file_that_does_not_come(tmp_path):
    file = str(tmp_path / "none.json")
    with pytest.raises(weft.TimedOutError, match=r"no scheduler has written .*none\.json within 0\.001 s$"):
        nannies.run([{"scheduler_ip": None, "scheduler_file": file, "death_timeout": 0.001}])


@pytest.mark.parametrize("text", ["garbage", '{"exit": 0}', "[1]"])
def test_a_file_that_is_no_schedulers(text, tmp_path, capsys):
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(weft.TimedOutError, match=r"within 0\.001 s, which has no JSON with a scheduler's address$"):
        nannies.run([{"scheduler_ip": None, "scheduler_file": str(file), "death_timeout": 0.001}])
    assert capsys.readouterr().err.endswith(f"to write {file}, which has no JSON with a scheduler's address\n")


def test_a_scheduler_file_that_cannot_be_read(tmp_path):
    with pytest.raises(weft.InvalidParamError, match=r"--scheduler-file .*Is a directory"):
        nannies.run([{"scheduler_ip": None, "scheduler_file": str(tmp_path), "death_timeout": None}])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"interface": "nope"}, "'nope' is not a valid network interface"),
        ({"protocol": "ucx", "host": "192.0.2.9"}, r"listen on 192\.0\.2\.9:0: Cannot assign"),
    ],
)
def test_what_keeps_a_nanny_from_starting_is_said(options, why, monkeypatch):
    async def reached(*_):
        pass

    monkeypatch.setattr(nannies, "_reach", reached)
    with pytest.raises(weft.Error, match=f"^start workers for .*{why}"):
        nannies.run([{"scheduler_ip": "tcp://127.0.0.1:1", "scheduler_file": None, "death_timeout": 5.0} | options])


class Unending:
    """A nanny whose worker does not start."""

    process = None

    def __init__(self, **options):
        assert options["death_timeout"] is None, "distributed would end the start by it, with tracebacks"
        self.cancelled = self.closed = False
        made.append(self)

    def __await__(self):
        return self.start().__await__()

    async def start(self):
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.cancelled = True
            raise

    async def close(self, **_):
        self.closed = True


made = []


@pytest.mark.parametrize(("given_s", "least_s", "limit_s"), [(0.01, 0.02, 0.02), (0.03, 0.01, 0.03)])
def test_workers_that_do_not_start(given_s, least_s, limit_s, monkeypatch, capfd):
    async def reached(*_):
        pass

    monkeypatch.setattr(nannies, "_reach", reached)
    monkeypatch.setattr(nannies, "Nanny", Unending)
    monkeypatch.setattr(nannies, "_START_S", least_s)
    made.clear()
    why = f"start workers for ucx://h:1: not every worker process started within {limit_s} s; give a longer --timeout"
    with pytest.raises(weft.Error) as error:
        nannies.run([{"scheduler_ip": "ucx://h:1", "scheduler_file": None, "death_timeout": given_s}] * 2)
    assert str(error.value) == why
    assert [(nanny.cancelled, nanny.closed) for nanny in made] == [(True, True)] * 2
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_a_ctrl_c_while_a_worker_starts(tmp_path):
    started = tmp_path / "started"
    hangs = tmp_path / "hangs.py"
    lines = "import os, threading", f"open({str(started)!r}, 'w').write(str(os.getpid()))", "threading.Event().wait()"
    hangs.write_text("\n".join(lines))

    async def main():
        async with Scheduler(host="127.0.0.1", port=0, dashboard=False, dashboard_address=":0") as scheduler:
            options = ["--workers", "1", "--no-dashboard", "--preload", str(hangs)]
            command = [*COMMAND, scheduler.address, *options]
            process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
            try:
                for _ in range(1000):
                    if started.exists() and (text := started.read_text()):
                        break
                    await asyncio.sleep(0.1)
                pid = int(text)
                process.send_signal(signal.SIGINT)
                said = (await process.communicate())[1].decode()
                assert process.returncode == 0, said
                assert "Traceback" not in said, said
                assert "did not close" not in said, said
                assert await gone([pid])
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.communicate()

    asyncio.run(asyncio.wait_for(main(), 200))


def test_the_error_before_the_assertion_that_fails_while_a_nanny_is_closed():
    try:
        try:
            raise OSError("no room")
        except OSError:
            raise AssertionError("Status.init")  # noqa: B904 - as distributed does
    except AssertionError as error:
        failed = RuntimeError("Nanny failed to start.")
        failed.__cause__ = error
    said = nannies._not_started([{"scheduler_ip": "ucx://h:1"}], failed)
    assert str(said) == "start workers for ucx://h:1: no room"


@pytest.mark.parametrize(
    ("given", "missing"),
    [("tls_worker_cert", "--tls-ca-file, or distributed.comm.tls.ca-file"), ("tls_ca_file", "--tls-cert")],
)
def test_half_of_the_files_for_tls(given, missing):
    options = {"scheduler_ip": "ucx://h:1", "scheduler_file": None, "death_timeout": None, "security": {given: "x.pem"}}
    with pytest.raises(weft.InvalidParamError, match=f"^TLS also needs {missing}"):
        nannies.run([options])
