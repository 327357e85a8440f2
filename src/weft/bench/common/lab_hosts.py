# SPDX-License-Identifier: BSD-3-Clause
"""The hosts of a lab as benchmarks see them: which labs will do, and what a record says of one. See ``weft.lab``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft import lab
from weft.errors import InvalidParamError


def common_cable(network: lab.Network) -> int:
    """Return the cable that all hosts of `network` are on, as each worker must reach each other one.

    Raises
    ------
    InvalidParamError
        There are fewer than two hosts, or no such cable.
    """
    names = {host.name for host in network.hosts}
    for i, cable in enumerate(network.cables):
        if len(names) > 1 and set(cable.between) == names:
            return i
    raise InvalidParamError(f"--lab: {', '.join(sorted(names))}: there must be two hosts, and one link between all")


def described(network: lab.Network) -> dict[str, Any]:
    """Say for the record what the lab was: each host with its CPUs, each cable with its rate and delay."""
    return {
        "hosts": {host.name: {"cpus": host.cpus} for host in network.hosts},
        "links": [{"between": list(i.between), "rate": i.rate, "delay": i.delay} for i in network.cables],
    }


def told(record: Mapping[str, Any]) -> str:
    """Say in one line what the lab of a record was; empty if there was none."""
    if not record.get("lab"):
        return ""
    link = next(i for i in record["lab"]["links"] if len(i["between"]) == len(record["lab"]["hosts"]))
    rate, delay = link["rate"] or "no limit of rate", f", {link['delay']} one way" if link["delay"] else ""
    return f"Hosts {', '.join(record['lab']['hosts'])}: namespaces of one machine, joined by a cable ({rate}{delay})"
