# SPDX-License-Identifier: BSD-3-Clause
"""``python -m ucxx.benchmarks.send_recv``: its command line runs ``weft bench send-recv``."""

import subprocess
import sys

if __name__ == "__main__":
    sys.exit(subprocess.call([sys.executable, "-m", "weft", "bench", "send-recv", *sys.argv[1:]]))
