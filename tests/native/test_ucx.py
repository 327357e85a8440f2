# SPDX-License-Identifier: BSD-3-Clause
"""UCX in this process: where its words go, and settings that leave it no transport."""

import os
import subprocess
import sys

import pytest

import weft


@pytest.mark.parametrize("asked", [False, True])
def test_ucx_logs_to_stderr_unless_told_where(tmp_path, asked):
    code = "import weft; weft.ucx_library(); print('mine', flush=True); weft.Worker(weft.Context({'TLS': 'self'}))"
    # Debian's UCX has a thread for its files in FUSE, which may speak before weft can tell where to.
    env = {**os.environ, "UCX_LOG_LEVEL": "info", "UCX_VFS_ENABLE": "n"}
    log = tmp_path / "ucx.log"
    if asked:
        env["UCX_LOG_FILE"] = str(log)
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0
    assert done.stdout.endswith("mine\n")
    assert ("UCX INFO" in done.stderr) is not asked
    assert log.exists() is asked


def test_ucx_does_not_log_into_what_has_the_number_of_a_closed_stderr():
    code = """
import os, socket
near, far = socket.socketpair()
assert near.fileno() == 2
import weft
weft.Worker(weft.Context({"TLS": "self"}))
far.setblocking(False)
try:
    print(far.recv(1000))
except BlockingIOError:
    print("nothing")
"""
    env = {**os.environ, "UCX_LOG_LEVEL": "info", "UCX_VFS_ENABLE": "n"}
    closed = ["sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, code]
    assert subprocess.run(closed, env=env, stdout=subprocess.PIPE, text=True, timeout=100).stdout == "nothing\n"


@pytest.mark.parametrize("settings", [{"TLS": ""}, None])
def test_no_transport_at_all_is_refused(monkeypatch, settings):
    monkeypatch.setenv("UCX_TLS", "tcp" if settings else "")
    with pytest.raises(weft.InvalidParamError, match="UCX_TLS is empty, so UCX has no transport; unset it"):
        weft.Context(settings)
    weft.Context({"TLS": "self"})
