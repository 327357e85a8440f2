# SPDX-License-Identifier: BSD-3-Clause
"""``weft deploy``: the scripts that start a cluster elsewhere, printed and never run.

A script is its parameters, as assignments at the top, and a text below that is always the same; so nothing is
filled into the middle of a command, and what was printed can be read and changed by hand.

- ``command``: the options.
- ``cluster``: what every cluster needs, and its quoting.
- ``slurm``, ``ssh``, ``azure``: a script each.
- ``ready``: waiting for the workers; the scripts run it.
"""
