# SPDX-License-Identifier: BSD-3-Clause
"""UCXX's benchmarks; only ``send_recv`` is provided."""
