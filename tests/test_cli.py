# SPDX-License-Identifier: BSD-3-Clause
"""The command as a shell sees it."""

import os
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


def test_info_tells_settings_of_the_environment_too():
    environment = {**os.environ, "UCX_RNDV_THRESH": "1m", "UCX_TLS": "tcp,self"}
    command = [sys.executable, "-m", "weft", "info"]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=100).stdout
    assert {"UCX_RNDV_THRESH=1m (environment)", "UCX_TLS=tcp,self (environment)"} <= {*said.splitlines()}
