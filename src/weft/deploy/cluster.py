# SPDX-License-Identifier: BSD-3-Clause
"""What a cluster needs wherever it runs: interpreter, protocols, where workers go, environment, program; as shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from weft.errors import InvalidParamError

#: In a word of the program, where the schedulers' addresses go, with commas between them.
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
        Lines of shell that come before, as they are: ``module load``, ``source``.
    program : tuple of str
        Its words; none: the cluster runs until it is ended.

    Raises
    ------
    InvalidParamError
        `env` has something else, or a name that shells do not take.
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
    """Return the assignment of a Bash array, each of `words` one element whatever it contains."""
    return f"{name}=({shlex.join(words)})"


def one_line(option: str, value: str) -> str:
    """Return `value`, which is to stand in a line that no quoting can continue.

    Raises
    ------
    InvalidParamError
        It has a line break or another control character.
    """
    if re.search(r"[\x00-\x1f\x7f]", value):
        raise InvalidParamError(f"{option} {value!r}: a control character; it must fit into one line")
    return value
