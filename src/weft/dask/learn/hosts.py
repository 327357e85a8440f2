# SPDX-License-Identifier: BSD-3-Clause
"""What workers and scheduler know of a link before it is measured: the hosts at its ends, and Dask's own time."""

from __future__ import annotations

from distributed.comm.addressing import parse_address, parse_host_port

from weft.links import Place

#: Seconds that Dask adds to the wire's round trip for a request and its answer.
SOFTWARE_S = 5e-4
#: A source that sent nothing for this long, or a host that had no worker, is forgotten: its measurements count for
#: nothing by now (`HALF_LIFE_S`).
FORGOTTEN_S = 3600.0


def place_of(address: str) -> Place:
    """Return a worker's host: Dask identifies hosts by the addresses that workers listen on."""
    return Place(str(parse_host_port(parse_address(address)[1], 0)[0]))
