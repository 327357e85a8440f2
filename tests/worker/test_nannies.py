# SPDX-License-Identifier: BSD-3-Clause
"""A scheduler that listens on both protocols, and the command beside it."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from distributed import Client, Scheduler

COMMAND = [sys.executable, "-m", "weft.cli", "worker"]


def alive(pid):
    """A zombie is not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


async def gone(pids):
    for _ in range(100):
        if not any(map(alive, pids)):
            return True
        await asyncio.sleep(0.1)
    return False


async def two_workers(scheduler, tcp, process):
    """Use the two workers that `process` starts; return the ids of their processes."""
    async with Client(tcp, asynchronous=True) as client:
        await client.wait_for_workers(2, timeout=40)
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
    asyncio.run(asyncio.wait_for(run(), 90))


@pytest.mark.slow
def test_a_signal_while_the_scheduler_does_not_answer():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        command = [*COMMAND, f"tcp://127.0.0.1:{silent.getsockname()[1]}", "--workers", "1", "--no-dashboard"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                silent.settimeout(30)
                caller, _ = silent.accept()
                with caller:
                    process.send_signal(signal.SIGTERM)
                    said = process.communicate(timeout=30)[1]
            finally:
                process.kill()
    assert process.returncode == 0, said
    assert "Traceback" not in said


@pytest.mark.slow
def test_a_scheduler_that_is_not_there():
    command = [*COMMAND, "tcp://127.0.0.1:1", "--workers", "1", "--death-timeout", "1", "--no-dashboard"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("weft worker: start workers for tcp://127.0.0.1:1: ")
