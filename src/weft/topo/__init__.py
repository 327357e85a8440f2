# SPDX-License-Identifier: BSD-3-Clause
"""What a machine consists of, and where to put workers on it.

- ``model``: the data. ``discovery``: this machine's, from ``sysfs``, ``cgroup``, ``devices`` and ``nvml``.
- ``nvidia_smi``: another one, from the text of ``nvidia-smi topo -m``.
- ``interconnect``: what joins two devices, by class, nearest first, and what it is assumed to carry.
- ``plan``, with ``options`` and ``network``: a layout of workers, and the reason of each choice. ``bind``: going there.
- ``draw``, ``command``: ``weft topo``.

Reading and planning start nothing and change nothing; docs/topology.md says what is read from where.
"""
