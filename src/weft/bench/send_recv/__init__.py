# SPDX-License-Identifier: BSD-3-Clause
"""``weft bench send-recv``."""
