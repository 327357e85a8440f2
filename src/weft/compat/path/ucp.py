# SPDX-License-Identifier: BSD-3-Clause
"""``import ucp`` if this folder is in PYTHONPATH."""

from weft.compat import install_ucp

install_ucp()
