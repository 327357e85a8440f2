# SPDX-License-Identifier: BSD-3-Clause
import importlib.util

if importlib.util.find_spec("distributed") is None:
    collect_ignore_glob = ["test_*.py"]
