# SPDX-License-Identifier: BSD-3-Clause
import dataclasses
import itertools

import pytest
from tests.machines import hosts, trees


@pytest.fixture
def machine(tmp_path):
    """Make a machine by its name, each in a folder of its own, with files written over it."""
    numbers = itertools.count()

    def make(name="bare", files=None, **changes):
        root = tmp_path / str(next(numbers))
        made = hosts.bare(root) if name == "bare" else hosts.ALL[name](root)
        trees.write(root, files or {})
        return dataclasses.replace(made, **changes)

    return make
