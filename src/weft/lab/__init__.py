# SPDX-License-Identifier: BSD-3-Clause
"""Several hosts on one machine: network namespaces, cables with a rate and a delay, and a command on each.

``network`` is the file and what follows from it, ``lab`` builds and removes, ``command`` is ``weft lab``.
"""

from weft.lab.lab import Lab, clean, leftovers
from weft.lab.network import Network, parse, read

__all__ = ["Lab", "Network", "clean", "leftovers", "parse", "read"]
