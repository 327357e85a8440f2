# SPDX-License-Identifier: BSD-3-Clause
"""Examine a machine for problems that affect weft, and say how to fix them.

- ``finding``: a level, what was found, the evidence, the remedy, the source of both.
- ``machine``: what a check may look at: files below a root, the environment, what commands said.
- ``ucx``: which libucp would be loaded, and what it was built with; nothing is loaded.
- ``checks_*``: pure functions from a machine to a finding. ``checks``: all of them by name.
- ``trial``, ``trial_end``: a short transfer over each transport to another machine.
- ``draw``, ``command``: ``weft doctor``.

A check reads, and nothing else: it starts nothing, writes nothing and loads no UCX; docs/doctor.md has them all.
"""
