# SPDX-License-Identifier: BSD-3-Clause
"""``python -m weft.compat`` prints the folder that, in PYTHONPATH, gives ``import ucp`` to a program."""

from weft.compat import PATH

print(PATH)
