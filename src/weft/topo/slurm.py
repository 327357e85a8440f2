# SPDX-License-Identifier: BSD-3-Clause
"""The memory that a Slurm job has on this node, from its environment.

If Slurm enforces the limit by control groups, those show it too. If it does not (no ``task/cgroup``, or no
``ConstrainRAMSpace``), only the variables show it, and a job that uses more takes memory from other jobs. sbatch and
salloc set the variables and srun does not, so the smaller request of a step is not known.

Source: sbatch(1) and srun(1), OUTPUT ENVIRONMENT VARIABLES.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_SIZE = re.compile(r"([0-9]{1,15})([KMGT]?)", re.IGNORECASE)
_SCALE = {"K": 1 << 10, "": 1 << 20, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
#: Each variable that gives memory per unit, and the variable that counts the units.
_COUNTED = {"SLURM_MEM_PER_CPU": "SLURM_CPUS_ON_NODE", "SLURM_MEM_PER_GPU": "SLURM_GPUS_ON_NODE"}


def memory_limit(environ: Mapping[str, str]) -> tuple[int, str] | None:
    """Return how many bytes the job has here, and the variables that say so; None if there are none.

    Only processes started by slurmd have ``SLURMD_NODENAME``: salloc's shell has the others, but on the login node.
    """
    if "SLURMD_NODENAME" not in environ:
        return None
    told = [(_nbytes(environ, "SLURM_MEM_PER_NODE"), "SLURM_MEM_PER_NODE")]
    for each, counted in _COUNTED.items():
        count = environ.get(counted, "")
        many = int(count) if re.fullmatch("[0-9]{1,6}", count) else 0
        told.append((_nbytes(environ, each) * many, f"{each} and {counted}"))
    return min((limit for limit in told if limit[0]), default=None)


def _nbytes(environ: Mapping[str, str], name: str) -> int:
    """Read a size, in MiB if it has no unit; 0 if there is none, which is also Slurm's value for no limit."""
    match = _SIZE.fullmatch(environ.get(name, ""))
    return int(match[1]) * _SCALE[match[2].upper()] if match else 0
