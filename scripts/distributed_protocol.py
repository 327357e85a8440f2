# SPDX-License-Identifier: BSD-3-Clause
"""A pytest plugin for distributed's tests: let them use Dask's default scheme, and note which comms each test made.

A test that spells out ``tcp://``, or needs no comm at all, says nothing about the default scheme when it passes.
``distributed_tests.py`` loads this and reads the notes in the record that pytest writes.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Generator
from typing import Any

if __name__ == "__main__":
    print("distributed_protocol.py is no command: pytest loads it, started by distributed_tests.py", file=sys.stderr)
    sys.exit(2)

import pytest
from distributed import utils_test
from distributed.comm import core

_strictly = core.parse_address

# listen() alone asks strictly, and takes tcp where the address has no scheme (test_batched's have none).
core.parse_address = lambda address, strict=False: _strictly(address)

# The comm that tests hold writes back with takes a TCP, and is one where it passes nothing on: let it take any.
utils_test.TCP = core.Comm
for _name in ("abort", "closed", "local_address", "peer_address"):
    setattr(utils_test.LockedComm, _name, property(operator.attrgetter(f"comm.{_name}")))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    made: set[str] = set()
    plain = core.Comm.__init__

    def init(comm: core.Comm, *args: Any, **kwargs: Any) -> None:
        made.add(type(comm).__name__.lower())
        plain(comm, *args, **kwargs)

    core.Comm.__init__ = init
    item.user_properties.append(("comms", made))  # filled until the record is written, after the last test
    try:
        return (yield)
    finally:
        core.Comm.__init__ = plain
