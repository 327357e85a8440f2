# SPDX-License-Identifier: BSD-3-Clause
"""What a machine consists of, and where to put workers on it.

- ``model``: the data. ``machine``: this machine, from ``sysfs``, ``cgroup``, ``devices`` and ``nvml``.
- ``nvidia_smi``: another one, from the text of ``nvidia-smi topo -m``.
- ``links``: classes of links, nearest first, and what to assume of them.
- ``plan``, with ``network``: a layout of workers, and the reason of each choice. ``bind``: going there.
- ``draw``, ``command``: ``weft topo``.

Reading and planning start nothing and change nothing; docs/topology.md says what is read from where.
"""
