# SPDX-License-Identifier: BSD-3-Clause
"""Runs in the guest: the cases of /weft/cases.json, one after the other; what they say and how they end to /results."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

RESULTS = Path("/results")


def run(case: dict) -> int | None:
    """Return the exit code of the case's command; None if it took too long and was killed, with what it had started."""
    environment = os.environ | case["environment"]
    with (
        (RESULTS / f"{case['name']}.txt").open("wb") as said,
        subprocess.Popen(
            case["command"], env=environment, cwd="/weft", stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        ) as process,
    ):
        try:
            return process.wait(case["limit_s"])
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None


ended = {}
for case in json.loads(Path("/weft/cases.json").read_text()):
    since = time.monotonic()
    ended[case["name"]] = {"code": run(case), "took_s": round(time.monotonic() - since, 1)}
    print(case["name"], ended[case["name"]], flush=True)
    (RESULTS / "ended.json").write_text(json.dumps(ended))
