# SPDX-License-Identifier: BSD-3-Clause
"""Examine a machine for problems that affect weft, and say how to fix them.

- ``finding``: a level, what was found, the evidence, the remedy, the source of both.
- ``machine``: the input of a check: files below a root, the environment, the output of commands.
- ``ucx``: the libucp that would be loaded, and what it was built with; it loads nothing.
- ``checks_*``: pure functions from a machine to a finding. ``checks``: all of them by name.
- ``trial``, ``trial_end``: a short transfer over each transport to another machine.
- ``draw``, ``command``: ``weft doctor``.

A check only reads: it starts nothing, writes nothing and does not load UCX. docs/doctor.md lists all checks.
"""
