# SPDX-License-Identifier: BSD-3-Clause
"""What every cluster needs: interpreter, protocols, placement of workers, environment, program; written as shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from weft.errors import InvalidParamError

#: In the program's arguments, this is replaced by the schedulers' addresses, separated by commas.
PLACEHOLDER = "{scheduler}"


@dataclass(frozen=True)
class Cluster:
    """A scheduler and workers for each protocol, and the program that uses them.

    Parameters
    ----------
    python : str
        The interpreter that has weft, on the hosts.
    protocols : tuple of str
        A cluster for each, side by side.
    placing : tuple of str
        Options of ``weft worker``.
    interface : str, optional
        The network device of the addresses of schedulers and workers.
    env : tuple of str
        ``NAME=VALUE`` each, for every process.
    setup : tuple of str
        Lines of shell to run first, unchanged: ``module load``, ``source``.
    program : tuple of str
        Its words. If empty, the cluster runs until it is stopped.

    Raises
    ------
    InvalidParamError
        An entry of `env` is not ``NAME=VALUE``, or its name is not valid in a shell.
    """

    python: str
    protocols: tuple[str, ...] = ("ucx",)
    placing: tuple[str, ...] = ()
    interface: str | None = None
    env: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    program: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for each in self.env:
            if not re.match(r"[A-Za-z_]\w*=", each, re.ASCII):
                raise InvalidParamError(f"--env {each!r}: write NAME=VALUE, as in UCX_NET_DEVICES=mlx5_0:1")

    @property
    def device(self) -> tuple[str, ...]:
        """The options that give `interface` to a scheduler or worker."""
        return () if self.interface is None else ("--interface", self.interface)

    def exports(self) -> list[str]:
        """Return `env` as lines of shell."""
        pairs = (each.partition("=") for each in self.env)
        return [f"export {name}={shlex.quote(value)}" for name, _, value in pairs]


def array(name: str, words: Iterable[str]) -> str:
    """Return the assignment of a Bash array, with each of `words` as one element, whatever it contains."""
    return f"{name}=({shlex.join(words)})"


def one_line(option: str, value: str) -> str:
    """Return `value` if it can stand in a line that quoting cannot continue.

    Raises
    ------
    InvalidParamError
        `value` has a line break or another control character.
    """
    if re.search(r"[\x00-\x1f\x7f]", value):
        raise InvalidParamError(f"{option} {value!r}: a control character; it must fit on one line")
    return value
