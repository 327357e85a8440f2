# SPDX-License-Identifier: BSD-3-Clause
"""``weft worker``: the workers that a plan lays out on this machine, for a scheduler elsewhere.

- ``command``: its options, and what they ask of the plan.
- ``scheduler_file``: the file that the scheduler wrote its address to.
- ``nannies``: starting a nanny for each worker, and ending them all.
"""
