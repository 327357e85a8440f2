# SPDX-License-Identifier: BSD-3-Clause
"""How many large values a worker receives at once: a few, more where that brings more, in an order of its own."""

from __future__ import annotations

from weft.links.intake import LEAST, STALLED_S, Intake, distance

MiB = 1 << 20


def receive(intake: Intake[str], values: int, source: float, port: float, now_s: float = 0.0) -> tuple[list[str], int]:
    """Receive values of 10 MiB from sources and through a port of these bytes/second; return them, and the most."""
    for i in range(values):
        intake.wait(f"{i:03}", i)
    left: dict[str, float] = {}
    order, most = list[str](), 0

    def begin() -> None:
        while (name := intake.begin()) is not None:
            left[name] = 10 * MiB
            order.append(name)

    begin()
    while left:
        most = max(most, len(left))
        now_s += MiB / min(source, port / len(left))
        for name in list(left):
            left[name] -= MiB
            intake.landed(MiB, now_s)
            if left[name] <= 0:
                del left[name]
                intake.end()
                begin()
    return order, most


def test_more_than_a_few_are_received_only_if_that_brings_more() -> None:
    assert receive(Intake(), 60, 100 * MiB, 25 * MiB)[1] == LEAST + 1, "one more was tried"
    assert receive(Intake(), 200, 1 * MiB, 25 * MiB)[1] >= 19, "the port takes 25"


def test_afterwards_a_few_are_received_again() -> None:
    intake = Intake[str]()
    receive(intake, 40, 1 * MiB, 25 * MiB)
    assert intake.most == LEAST
    assert receive(intake, 3, 1 * MiB, 25 * MiB, 1000.0)[1] == LEAST


def test_the_urgent_begin_first_and_nothing_is_lost() -> None:
    intake = Intake[str]()
    for name in (names := [f"v{i}" for i in "dbace"]):
        intake.wait(name, name)
    intake.withdraw(names[1])
    assert [intake.begin() for _ in range(LEAST + 1)] == ["va", "vc", None]
    intake.end()
    assert intake.begin() == "vd"


def test_nothing_waits_for_sources_that_send_nothing() -> None:
    intake = Intake[str]()
    for name in "abcdef":
        intake.wait(name, name)
    assert [intake.begin() for _ in range(LEAST + 1)] == ["a", "b", None]
    intake.landed(MiB, 10.0)
    intake.look(10.0 + STALLED_S / 2)
    assert intake.begin() is None
    for _waiting in "cdef":
        intake.look(10.0 + STALLED_S)
    assert [intake.begin() for _ in range(2)] == ["c", None]
    intake.look(10.0 + 2 * STALLED_S)
    assert intake.begin() == "d"


def test_workers_begin_with_different_sources() -> None:
    workers = [f"ucx://10.0.0.{i}:40000" for i in range(16)]
    firsts = {min((other for other in workers if other != here), key=lambda o: distance(here, o)) for here in workers}
    assert firsts == set(workers), "each is the first source of one"
