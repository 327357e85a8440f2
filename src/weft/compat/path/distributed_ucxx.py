# SPDX-License-Identifier: BSD-3-Clause
"""``import distributed_ucxx`` if this folder is in PYTHONPATH."""

from weft.compat import install_distributed_ucxx

install_distributed_ucxx()
