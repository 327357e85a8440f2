# SPDX-License-Identifier: BSD-3-Clause
"""UCXX's benchmarks, of which there is ``send_recv``."""
