# SPDX-License-Identifier: BSD-3-Clause
"""The command as a shell sees it."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "arguments", [["info"], ["info", "--json"], ["topo"], ["topo", "--json"], ["topo", "--plan"], ["doctor"]]
)
def test_a_reader_that_has_seen_enough(arguments):
    command = [sys.executable, "-m", "weft", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait(100) == 1
    assert "Traceback" not in said
