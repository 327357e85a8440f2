# SPDX-License-Identifier: BSD-3-Clause
"""What several benchmarks share."""
