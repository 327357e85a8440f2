# SPDX-License-Identifier: BSD-3-Clause
"""The hosts of a lab as benchmarks see them: which labs will do, and what a record says of one. See ``weft.lab``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft import lab
from weft.errors import InvalidParamError


def joining(plan: lab.Plan) -> int:
    """Return the link that all hosts of `plan` are on, as each worker must reach each other one.

    Raises
    ------
    InvalidParamError
        There are fewer than two hosts, or no such link.
    """
    names = {host.name for host in plan.hosts}
    for i, link in enumerate(plan.links):
        if len(names) > 1 and set(link.between) == names:
            return i
    raise InvalidParamError(f"--lab: {', '.join(sorted(names))}: there must be two hosts, and one link between all")


def described(plan: lab.Plan) -> dict[str, Any]:
    """Say for the record what the lab was: each host with its CPUs, each link with its rate and delay."""
    return {
        "hosts": {host.name: {"cpus": host.cpus} for host in plan.hosts},
        "links": [{"between": list(i.between), "rate": i.rate, "delay": i.delay} for i in plan.links],
    }


def told(record: Mapping[str, Any]) -> str:
    """Say in one line what the lab of a record was; empty if there was none."""
    if not record.get("lab"):
        return ""
    link = next(i for i in record["lab"]["links"] if len(i["between"]) == len(record["lab"]["hosts"]))
    rate, delay = link["rate"] or "no limit of rate", f", {link['delay']} one way" if link["delay"] else ""
    return f"Hosts {', '.join(record['lab']['hosts'])}: namespaces of one machine, joined by a cable ({rate}{delay})"
