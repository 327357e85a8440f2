# SPDX-License-Identifier: BSD-3-Clause
"""What the drop-in's tests have: a context of shared memory only, which makes quick workers, and its end."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from weft.compat import ucp


@pytest.fixture(autouse=True)
def shared_memory() -> Iterator[None]:
    ucp.init({"TLS": "posix,self"})
    yield
    gc.collect()
    ucp.reset()
