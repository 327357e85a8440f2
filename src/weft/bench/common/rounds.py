# SPDX-License-Identifier: BSD-3-Clause
"""How long a loop is measured, and what shows how far the rounds are."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Generator


def sampled(
    exchange: Callable[[int], list[float]], *, seconds: float, iterations: int, at_least: int = 3
) -> list[float]:
    """Take stamps in growing batches until `seconds` of them or `iterations` are there.

    Parameters
    ----------
    exchange : callable
        Takes that many stamps, returns the seconds of each.
    seconds : float
        Of stamps, warm-up not counted.
    iterations, at_least : int, >= 1
        Bounds on the number of stamps in a batch, the first on all of them.
    """
    count, warm = 1, exchange(1)
    while sum(warm) < seconds / 10 and count < iterations:
        count = min(2 * count, iterations)
        warm = exchange(count)
    if len(warm) >= at_least and sum(warm) >= seconds:
        return warm
    latest, samples, left_s = warm, list[float](), seconds
    # A batch is as long as the one before it predicts; the little that it then leaves over is left.
    while len(samples) < iterations and left_s > seconds / 10:
        count = max(at_least, int(left_s / (sum(latest) / len(latest))))
        latest = exchange(min(count, iterations - len(samples)))
        samples += latest
        left_s -= sum(latest)
    return samples


@contextlib.contextmanager
def progress(name: str, total: int, color: str) -> Generator[Callable[[str], None]]:
    """Show how far a benchmark is, on stderr; yield what is told each step of `total` before it is taken.

    Without a terminal there, nothing is shown; `color` is that of ``--color``.
    It is drawn between measurements only: a thread that redraws would take turns on the cores that are measured.
    """
    from rich.progress import Progress  # not needed where other libraries' environments import `sampled`

    from weft import _options

    console = _options.progress_console(color)
    with Progress(console=console, auto_refresh=False, transient=True, disable=not console.is_terminal) as bar:
        task, done = bar.add_task(name, total=total), itertools.count()

        def step(description: str) -> None:
            bar.update(task, description=description, completed=next(done), refresh=True)

        yield step
