# SPDX-License-Identifier: BSD-3-Clause
"""``import ucxx`` if this folder is in PYTHONPATH."""

from weft.compat import install_ucxx

install_ucxx()
