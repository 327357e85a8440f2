# SPDX-License-Identifier: BSD-3-Clause
"""``dask weft ...``: every ``dask`` command imports this module, so it imports weft only when it is used."""

from __future__ import annotations

import sys

import click


@click.group(name="weft", help="Workers where the machine's topology has places for them.")
def weft() -> None:
    """Group weft's commands."""


@weft.command(
    help="What weft worker does; see dask weft worker --help.",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def worker(arguments: tuple[str, ...]) -> None:
    """Pass the arguments on to ``weft worker``, which parses them."""
    from weft import _cli as cli

    sys.exit(cli.main(["worker", *arguments]))
