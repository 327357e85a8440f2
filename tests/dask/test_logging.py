# SPDX-License-Identifier: BSD-3-Clause
"""What weft logs in Dask's processes looks like Dask's own lines."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import logging
import distributed, weft.dask
{before}
logging.getLogger("weft").warning("one")
logging.getLogger("weft").info("not said")
"""


@pytest.mark.parametrize(
    ("before", "line"),
    [
        ("", " - weft - WARNING - one"),
        ("logging.basicConfig(format='root: %(message)s')", "root: one"),
        ("logging.getLogger('distributed').handlers.clear()", "one"),
        ("logging.getLogger('weft').addHandler(logging.StreamHandler())", "one"),
    ],
)
def test_a_warning_is_said_once_in_the_format_of_the_program(before, line):
    command = [sys.executable, "-c", PROGRAM.format(before=before)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    (said,) = done.stderr.splitlines()
    assert said.endswith(line)


def test_dasks_configuration_may_name_weft():
    program = PROGRAM.format(before="").replace("not said", "two")
    environment = {**os.environ, "DASK_LOGGING__WEFT": "info"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment)
    assert [line.split(" - ")[1:] for line in done.stderr.splitlines()] == [
        ["weft", "WARNING", "one"],
        ["weft", "INFO", "two"],
    ]


def test_silence_logs_reaches_it():
    silence = "from distributed.utils import silence_logging_cmgr; s = silence_logging_cmgr('ERROR'); s.__enter__()"
    command = [sys.executable, "-c", PROGRAM.format(before=silence)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
