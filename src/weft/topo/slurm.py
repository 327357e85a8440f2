# SPDX-License-Identifier: BSD-3-Clause
"""The memory that a Slurm job has of this node, as its environment tells it.

Where Slurm keeps jobs to their memory by control groups, those say it too; where it does not (no ``task/cgroup``, or
no ``ConstrainRAMSpace``), the variables alone do, and whoever takes more takes it from other jobs. sbatch and salloc
set them, srun does not, so a step that asks for less than its job has is not known.

Source: sbatch(1) and srun(1), OUTPUT ENVIRONMENT VARIABLES.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_SIZE = re.compile(r"([0-9]{1,15})([KMGT]?)", re.IGNORECASE)
_SCALE = {"K": 1 << 10, "": 1 << 20, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
#: What of which there is so much memory each, and the variable that counts it.
_COUNTED = {"SLURM_MEM_PER_CPU": "SLURM_CPUS_ON_NODE", "SLURM_MEM_PER_GPU": "SLURM_GPUS_ON_NODE"}


def memory_limit(environ: Mapping[str, str]) -> tuple[int, str] | None:
    """Return how many bytes the job has here, and the variables that say so; None if they do not.

    Only what slurmd has started has ``SLURMD_NODENAME``: salloc's shell has the others too, but on the login node.
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
    """Read a size, in MiB where it has no unit; 0 if there is none, which is also what Slurm calls no limit."""
    match = _SIZE.fullmatch(environ.get(name, ""))
    return int(match[1]) * _SCALE[match[2].upper()] if match else 0
