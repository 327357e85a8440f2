# SPDX-License-Identifier: BSD-3-Clause
"""Whose a worker is, and what is left when it is gone."""

import gc
import os
import threading

import pytest

import weft


def in_thread(function):
    outcome = []

    def run():
        try:
            outcome.append(function())
        except BaseException as e:
            outcome.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10)
    return outcome[0]


def test_another_thread_is_refused(worker, endpoint):
    request = worker.tag_recv(bytearray(1), 1)
    for use in (
        worker.progress,
        lambda: worker.tag_recv(bytearray(1), 1),
        lambda: endpoint.tag_send(b"x", 1),
        lambda: request.wait(1),
        worker.close,
    ):
        error = in_thread(use)
        assert isinstance(error, weft.ThreadError)
        assert isinstance(error, RuntimeError)


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
            request.wait(1)


def test_a_context_with_open_workers_stays(context):
    worker = weft.Worker(context)
    with pytest.raises(weft.InvalidParamError, match="1 workers"):
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


def test_dropping_everything_without_close(fds):
    def once():
        worker = weft.Worker(weft.Context({"TLS": "posix,self"}))
        worker.connect(worker.address).tag_send(b"x", 1).wait(5)

    once()
    before = fds()
    for _ in range(10):
        once()
    assert fds() == before


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
    endpoint.tag_send(b"12345678", 1).wait(5)
    received.wait(5)
    assert into == b"12345678"


def test_config_says_what_differs_and_who_set_it(monkeypatch):
    names = ("MM_ERROR_HANDLING", "TLS", "TCP_TX_SEG_SIZE", "TCP_RX_SEG_SIZE")
    own = dict(zip(names, (("y", "weft"), ("^sysv,cma", "weft"), ("256k", "weft"), ("256k", "weft")), strict=True))
    context = weft.Context({"UCX_TLS": "posix,self"})
    assert context.config == own | {"TLS": ("posix,self", "argument")}
    context.close()
    monkeypatch.setenv("UCX_TLS", "posix,self")
    context = weft.Context()
    assert context.config == {name: entry for name, entry in own.items() if name != "TLS"}
    context.close()


def test_a_setting_that_ucx_does_not_know(capfd):
    with pytest.raises(weft.Error, match=r"RNDV_THRESH|NO_SUCH"):
        weft.Context({"NO_SUCH_SETTING_AT_ALL": "1", "RNDV_THRESH": "nonsense"})
