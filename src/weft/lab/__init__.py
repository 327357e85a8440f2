# SPDX-License-Identifier: BSD-3-Clause
"""Several hosts on one machine: network namespaces, cables with a rate and a delay, and a command on each.

``plan`` is the file and what follows from it, ``network`` builds and removes, ``command`` is ``weft lab``.
"""

from weft.lab.network import Lab, clean, leftovers
from weft.lab.plan import Plan, parse, read

__all__ = ["Lab", "Plan", "clean", "leftovers", "parse", "read"]
