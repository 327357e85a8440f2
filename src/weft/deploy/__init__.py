# SPDX-License-Identifier: BSD-3-Clause
"""``weft deploy``: the scripts that start a cluster elsewhere, printed and never run.

A script assigns its parameters at the top; the text below is always the same. So nothing is filled into the middle
of a command, and you can read and edit what was printed.

- ``command``: the options.
- ``cluster``: what every cluster needs, and its quoting.
- ``slurm``, ``ssh``, ``azure``: a script each.
- ``ready``: waiting for the workers; the scripts run it.
"""
