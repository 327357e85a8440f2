# SPDX-License-Identifier: BSD-3-Clause
"""What Request.wait takes for a bound."""

import signal

import pytest

import weft


@pytest.fixture
def alarm():
    """A wait without bound would stay until the runner ends it."""

    def ring(*_):
        raise AssertionError("still waiting after 5 s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 5)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("timeout", [-1, -0.5, -1e300, float("-inf")])
def test_a_negative_timeout_is_over(worker, alarm, timeout):
    """Who computes what is left of a deadline comes to one."""
    request = worker.tag_recv(bytearray(8), 1)
    with pytest.raises(weft.TimedOutError):
        request.wait(timeout)
    assert not request.done()


@pytest.mark.parametrize(
    ("timeout", "error"), [(float("nan"), weft.InvalidParamError), ("1", TypeError), (b"1", TypeError), ([], TypeError)]
)
def test_what_is_no_number_is_refused(worker, endpoint, alarm, timeout, error):
    request = worker.tag_recv(bytearray(8), 1)
    with pytest.raises(error):
        request.wait(timeout)
    endpoint.tag_send(b"12345678", 1)
    assert request.wait(100) == (8, 1)
    with pytest.raises(error):
        request.wait(timeout)


@pytest.mark.parametrize("timeout", [5, 5.5, 10**300, float("inf"), None])
def test_any_other_number_is_a_bound(worker, endpoint, alarm, timeout):
    request = worker.tag_recv(bytearray(8), 1)
    endpoint.tag_send(b"12345678", 1)
    assert request.wait(timeout) == (8, 1)
