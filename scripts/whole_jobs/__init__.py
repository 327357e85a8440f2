# SPDX-License-Identifier: BSD-3-Clause
"""The parts of ``coiled_benchmarks.py``."""
