# SPDX-License-Identifier: BSD-3-Clause
"""Whose a worker is, and what is left when it is gone."""

import gc
import os
import select
import shutil
import subprocess
import sys
import threading

import pytest

import weft
from weft import config


def in_thread(function):
    outcome = []

    def run():
        try:
            outcome.append(function())
        except BaseException as e:
            outcome.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(100)
    return outcome[0]


def test_another_thread_is_refused(worker, endpoint):
    request = worker.tag_recv(bytearray(1), 1)
    for use in (
        worker.progress,
        lambda: worker.tag_recv(bytearray(1), 1),
        lambda: endpoint.tag_send(b"x", 1),
        lambda: request.wait(1),
        request.cancel,
        worker.close,
    ):
        error = in_thread(use)
        assert isinstance(error, weft.ThreadError)
        assert isinstance(error, RuntimeError)
    endpoint.tag_send(b"x", 1).wait(100)
    assert request.wait(100) == (1, 1)
    assert in_thread(request.cancel) is False  # there is nothing to do


def test_dropping_in_another_thread_is_safe(worker):
    endpoints = [worker.connect(worker.address)]
    in_thread(endpoints.clear)
    gc.collect()
    for _ in range(10):
        worker.progress()


def test_a_closed_worker_refuses(context):
    worker = weft.Worker(context)
    endpoint = worker.connect(worker.address)
    worker.close()
    worker.close()
    assert worker.closed
    with pytest.raises(weft.ClosedError):
        worker.tag_recv(bytearray(1), 1)
    with pytest.raises(weft.ClosedError):
        endpoint.tag_send(b"x", 1)


def test_requests_end_with_the_worker(context):
    worker = weft.Worker(context)
    requests = [worker.tag_recv(bytearray(1), 1), worker.am_recv(2)]
    worker.close()
    for request in requests:
        assert request.done()
        with pytest.raises(weft.CanceledError):
            request.wait(100)


def test_a_context_with_open_workers_stays(context):
    worker = weft.Worker(context)
    with pytest.raises(weft.InvalidParamError, match=r"are open \(1\)"):
        context.close()
    worker.close()
    context.close()
    context.close()
    with pytest.raises(weft.ClosedError):
        weft.Worker(context)


def test_workers_and_contexts_leave_no_descriptor(fds):
    def once():
        context = weft.Context({"TLS": "posix,self"})
        worker = weft.Worker(context)
        endpoint = worker.connect(worker.address)
        endpoint.tag_send(b"x", 1)
        worker.close()
        context.close()

    once()
    before = fds()
    for _ in range(10):
        once()
    assert fds() == before


def test_both_close_at_the_end_of_a_with_statement(fds):
    def once():
        with weft.Context({"TLS": "posix,self"}) as context, weft.Worker(context) as worker:
            request = worker.tag_recv(bytearray(1), 1)
        assert worker.closed
        with pytest.raises(weft.CanceledError):
            request.wait(100)
        with pytest.raises(weft.ClosedError):
            weft.Worker(context)

    once()
    before = fds()
    once()
    assert fds() == before
    with pytest.raises(ZeroDivisionError), weft.Worker(weft.Context({"TLS": "posix,self"})) as worker:
        1 / 0  # noqa: B018
    assert worker.closed


def test_dropping_everything_without_close(fds):
    def once():
        worker = weft.Worker(weft.Context({"TLS": "posix,self"}))
        worker.connect(worker.address).tag_send(b"x", 1).wait(100)

    once()
    before = fds()
    for _ in range(10):
        once()
    assert fds() == before


def test_a_worker_whose_thread_has_ended_is_taken_down_by_another(context):
    """UCX must have been told that threads may take turns: one with assertions ends the process otherwise."""
    left = []

    def leave_behind():
        worker = weft.Worker(context)
        endpoint = worker.connect(worker.address)
        endpoint.tag_send(b"x", 7).wait(100)
        left.append(worker)

    thread = threading.Thread(target=leave_behind)
    thread.start()
    thread.join(100)
    left.clear()
    gc.collect()
    context.close()  # refuses while a worker is there


def test_a_forked_child_is_refused_and_harms_nothing(worker, endpoint):
    received = worker.tag_recv(into := bytearray(8), 1)
    pid = os.fork()
    if pid == 0:
        refused = 0
        for use in (worker.progress, lambda: endpoint.tag_send(b"x", 1), lambda: weft.Worker(weft.Context())):
            try:
                use()
            except weft.ThreadError as e:
                refused += "forked" in str(e)
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    endpoint.tag_send(b"12345678", 1).wait(100)
    received.wait(100)
    assert into == b"12345678"


def test_config_says_what_differs_and_who_set_it(monkeypatch):
    own = {name: (value, "weft") for name, value in config.DEFAULTS.items() if name != "TLS"}
    context = weft.Context()
    assert context.config == own | {"TLS": ("^sysv,cma", "weft")}
    context.close()
    context = weft.Context({"UCX_TLS": "posix,tcp,self"})
    assert context.config == own | {"TLS": ("posix,tcp,self", "argument")}
    context.close()
    monkeypatch.setenv("UCX_TLS", "posix,tcp,self")
    context = weft.Context()
    assert context.config == own
    context.close()


@pytest.mark.parametrize(
    ("tls", "devices", "families"),
    [
        ("posix,self", "all", {"MM", "POSIX"}),
        ("sysv,self", "all", {"MM"}),
        ("tcp,self", "eth0", {"TCP"}),
        ("^tcp,sysv,cma,ib", "all", {"MM", "POSIX"}),
        ("^posix,sysv,cma", "eth0,mlx5_0:1", {"TCP"}),
        ("^posix,sysv,cma", "mlx5_0:1,mlx5_1:1", set()),
        ("all", "^mlx5_0:1", {"MM", "POSIX", "TCP"}),
        ("rc", "all", set()),
    ],
)
def test_no_defaults_of_transports_that_are_left_out(tls, devices, families):
    """UCX up to 1.20.0 warned of them, at each new worker."""
    defaults = config._used(config.DEFAULTS | config.tcp_segments({}), tls, devices)
    assert {name.partition("_")[0] for name in defaults} - {"TLS"} == families


def test_a_setting_that_ucx_does_not_know(capfd):
    with pytest.raises(weft.Error, match=r"RNDV_THRESH|NO_SUCH"):
        weft.Context({"NO_SUCH_SETTING_AT_ALL": "1", "RNDV_THRESH": "nonsense"})


@pytest.mark.parametrize("tls", ["tcp,self", "posix,self"])
def test_arm_wait_and_progress_are_a_loop(tls):
    """As a program with an event loop of its own has it."""
    with weft.Context({"TLS": tls}) as context, weft.Worker(context) as a, weft.Worker(context) as b:
        to_b, received = a.connect(b.address), b.tag_recv(bytearray(4), 1)
        sent = to_b.tag_send(b"abcd", 1)
        poll = select.poll()
        for worker in (a, b):
            poll.register(worker.fileno(), select.POLLIN)
        for _ in range(1000):
            if received.done() and sent.done():
                break
            for worker in (a, b):
                while not worker.arm():
                    worker.progress()
            poll.poll(100)
            for worker in (a, b):
                worker.progress()
        assert received.result() == (4, 1)


#: A UCX as verbs are where a device tells of nothing that it has told already: it arms without a look.
ARMS_BLINDLY = "int ucp_worker_arm(void *worker) { return 0; }"
USES_IT = """
import ctypes, sys, weft
from weft import _native
worker = weft.Worker(weft.Context({"TLS": "posix"}))
itself = worker.connect(worker.address)
received = worker.tag_recv(bytearray(1), 1)
itself.tag_send(b"x", 1).wait(100), received.wait(100)  # the way is there
ctypes.CDLL(sys.argv[1])
_native.bind(sys.argv[1])
received = worker.tag_recv(bytearray(1), 2)
itself.tag_send(b"x", 2)
print(received.done(), worker.arm())
worker.progress()
print(received.done())
"""


def test_what_came_before_arming_is_found(tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C compiler")
    blind = tmp_path / "libblind.so"
    flags = ["-shared", "-Wl,--no-as-needed", "-Wl,--allow-shlib-undefined", "-o", blind]
    command = [compiler, *flags, "-x", "c", "-", "-x", "none", weft.ucx_library().path]
    subprocess.run(command, input=ARMS_BLINDLY, text=True, check=True)
    said = subprocess.run([sys.executable, "-c", USES_IT, blind], capture_output=True, text=True, timeout=60)
    assert said.stdout.split() == ["False", "False", "True"], said.stderr


ATTEMPT = """
import os, resource, weft
for left in range(2, 25):  # with fewer, AddressSanitizer itself fails
    pid = os.fork()
    if not pid:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1 + left, 4096))
        try:
            with weft.Context() as context, weft.Worker(context):
                os._exit(10)
        except (weft.Error, OSError) as e:  # or libucp cannot be loaded
            os._exit(11 if "open files" in str(e) else 12)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), end=" ", flush=True)
"""


def test_a_context_with_too_few_descriptors_is_refused():
    """Where UCX gets none for its thread, it would abort the process."""
    done = subprocess.run([sys.executable, "-c", ATTEMPT], capture_output=True, text=True, timeout=200, check=True)
    codes = [int(code) for code in done.stdout.split()]
    assert set(codes) <= {10, 11}, codes
    assert (codes[0], codes[-1]) == (11, 10)
