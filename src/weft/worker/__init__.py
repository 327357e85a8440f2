# SPDX-License-Identifier: BSD-3-Clause
"""``weft worker``: start the workers of a plan on this machine, for a scheduler elsewhere.

- ``command``: its options, and the plan that they describe.
- ``scheduler_file``: the file that the scheduler wrote its address to.
- ``nannies``: start a nanny for each worker, and stop them all.
"""
