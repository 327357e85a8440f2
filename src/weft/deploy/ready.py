# SPDX-License-Identifier: BSD-3-Clause
"""``python -m weft.deploy.ready``: wait until schedulers have all the workers of some plans, and print their addresses.

The printed scripts run it, between starting the workers and the program.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from distributed import Client

from weft._options import timeout
from weft.errors import Error, InvalidParamError, TimedOutError


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m weft.deploy.ready")
    parser.add_argument(
        "--timeout", type=timeout, default=120.0, metavar="S", help="seconds for each scheduler (default: %(default)g)"
    )
    parser.add_argument("--plans", nargs="+", required=True, metavar="FILE", help="from weft worker --plan --json")
    parser.add_argument("--schedulers", nargs="+", required=True, metavar="SCHEDULER", help="an address, or its file")
    args = parser.parse_args(argv)
    try:
        expected = sum(map(_workers, args.plans))
        print(*(_wait(each, expected, args.timeout) for each in args.schedulers), sep=",")
    except Error as error:
        print(f"weft.deploy.ready: {error}", file=sys.stderr)
        return 1
    return 0


def _workers(plan: str) -> int:
    try:
        return len(json.loads(Path(plan).read_text())["workers"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidParamError(f"{plan} is not what weft worker --plan --json prints: {error!r}") from error


def _wait(scheduler: str, expected: int, timeout: float) -> str:
    """Return the address of `scheduler` once it has as many workers as `expected`."""
    where: dict[str, Any] = {"address": scheduler} if "://" in scheduler else {"scheduler_file": scheduler}
    here = 0
    try:
        with Client(**where, timeout=timeout, set_as_default=False) as opened:
            client: Any = opened
            try:
                client.wait_for_workers(expected, timeout=timeout)
            finally:
                here = len(client.scheduler_info(n_workers=-1)["workers"])
            return str(client.scheduler.address)
    except (OSError, TimeoutError) as error:
        raise TimedOutError(f"{scheduler}: {here} of {expected} workers within {timeout:g} s: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
