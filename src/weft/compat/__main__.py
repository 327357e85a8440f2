# SPDX-License-Identifier: BSD-3-Clause
"""``python -m weft.compat`` prints the folder that must be in PYTHONPATH to make ``import ucp`` import weft's."""

from weft.compat import PATH

print(PATH)
