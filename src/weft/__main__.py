# SPDX-License-Identifier: BSD-3-Clause
"""``python -m weft`` is the ``weft`` command."""

import sys

from weft._cli import main

sys.exit(main())
