# SPDX-License-Identifier: BSD-3-Clause
"""The parts of a machine, and where to place workers on it.

- ``model``: the data. ``discovery``: this machine's, from ``sysfs``, ``cgroup``, ``devices`` and ``nvml``.
- ``nvidia_smi``: another machine's, from the text of ``nvidia-smi topo -m``.
- ``interconnect``: the connection between two devices, by class, nearest first, and its assumed bandwidth.
- ``plan``, with ``options`` and ``network``: a layout of workers, with a reason for each choice. ``bind``: apply it.
- ``draw``, ``command``: ``weft topo``.

Reading and planning start nothing and change nothing; docs/topology.md says what is read from where.
"""
