# SPDX-License-Identifier: BSD-3-Clause
"""Several emulated hosts on one machine: network namespaces joined by cables with a rate and a delay.

``network`` reads the file, ``lab`` builds and removes what it describes, ``command`` is ``weft lab``.
"""

from weft.lab.lab import Lab, clean, leftovers
from weft.lab.network import Network, parse, read

__all__ = ["Lab", "Network", "clean", "leftovers", "parse", "read"]
