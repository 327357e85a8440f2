# SPDX-License-Identifier: BSD-3-Clause
"""A batch script for Slurm: schedulers and program on the job's first node, ``weft worker`` on every node.

Slurm gives the one task of each node everything that the job has there. The plan does the rest: it sees the job's CPUs
by cpuset or affinity, its memory by control group, and its GPUs by ``CUDA_VISIBLE_DEVICES``. srun would bind the task
to a single core even if the job has the whole node, hence ``--cpu-bind``; since Slurm 22.05 srun does not inherit the
job's CPUs either, hence ``--cpus-per-task`` again. ``--overlap`` (Slurm 20.11) lets the steps of several protocols,
and the plan's step before them, run side by side.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from weft.deploy.cluster import Cluster, array, one_line
from weft.errors import InvalidParamError


@dataclass(frozen=True)
class Job:
    """The job to request from Slurm.

    Parameters
    ----------
    name : str
        The job's name.
    nodes : int
        Number of nodes; each runs workers.
    cpus, gpus : int, optional
        Of each node. Without `cpus`, whole nodes are requested.
    memory, time, partition, account : str, optional
        In the form that sbatch reads.
    folder : str, optional
        On a file system that all nodes mount; each job makes a folder in it. By default the folder of submission.
    directives : tuple of str
        More options of sbatch, passed unchanged.
    """

    name: str = "weft"
    nodes: int = 2
    cpus: int | None = None
    gpus: int | None = None
    memory: str | None = None
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    folder: str | None = None
    directives: tuple[str, ...] = ()


def script(job: Job, cluster: Cluster) -> str:
    """Return the text to give to sbatch.

    Raises
    ------
    InvalidParamError
        A value for sbatch has a line break, or a directive is no option.
    """
    step = ["--cpu-bind=none"] if job.cpus is None else [f"--cpus-per-task={job.cpus}", "--cpu-bind=cores"]
    lines = [
        "#!/bin/bash",
        *_directives(job),
        "",
        *cluster.setup,
        *cluster.exports(),  # before the script's own variables, which may have the same names
        f"python={shlex.quote(cluster.python)}",
        array("protocols", cluster.protocols),
        array("placing", cluster.placing),
        array("interface", cluster.device),
        array("step", step),
        array("program", cluster.program),
        f"folder={'$SLURM_SUBMIT_DIR' if job.folder is None else shlex.quote(job.folder)}/weft-$SLURM_JOB_ID",
    ]
    return "\n".join(lines) + "\n" + _REST


def _directives(job: Job) -> list[str]:
    wanted = {
        "--job-name": job.name,
        "--nodes": str(job.nodes),
        "--ntasks-per-node": "1",
        "--cpus-per-task": str(job.cpus or ""),
        "--gpus-per-node": str(job.gpus or ""),
        "--mem": job.memory,
        "--time": job.time,
        "--partition": job.partition,
        "--account": job.account,
    }
    # sbatch parses these lines itself; shlex's quotes suit it
    given = [f"#SBATCH {name}={shlex.quote(one_line(name, value))}" for name, value in wanted.items() if value]
    if job.cpus is None:
        given.append("#SBATCH --exclusive")
    for each in job.directives:
        if not each.startswith("-"):
            raise InvalidParamError(f"--sbatch {each!r}: write an option of sbatch, as in --sbatch=--constraint=ib")
        given.append(f"#SBATCH {one_line('--sbatch', each)}")
    return given


_REST = r"""
set -u
timeout_s=120  # for schedulers and workers to come up
logs=${folder//%/%%}  # srun replaces %
mkdir -p "$folder" || exit 1
schedulers=() workers=() files=()

# Workers end when their scheduler does; srun would kill them. What stays, Slurm ends with the job.
finish() {
    ((${#schedulers[@]})) && kill "${schedulers[@]}"
    for pid in "${workers[@]}"; do timeout 15 tail --pid="$pid" -s 0.2 -f /dev/null; done
}
trap finish EXIT

# One task on each node, with all that the job has there.
each_node=(srun --overlap --ntasks-per-node=1 "${step[@]}")

"${each_node[@]}" --output="$logs/plan-%n.json" \
    "$python" -m weft worker --plan --json "${placing[@]}" "${interface[@]}" || exit 1

for protocol in "${protocols[@]}"; do
    file=$folder/scheduler-$protocol.json
    "$python" -m dask scheduler --protocol "$protocol" --port 0 --dashboard-address :0 "${interface[@]}" \
        --scheduler-file "$file" >"$folder/scheduler-$protocol.log" 2>&1 &
    schedulers+=("$!")
    files+=("$file")
done

# A worker would wait for its scheduler's file for ever.
deadline=$((SECONDS + timeout_s))
for file in "${files[@]}"; do
    until [[ -s $file ]]; do
        if ((SECONDS > deadline)); then
            echo "no scheduler within $timeout_s s: see ${file%.json}.log" >&2
            exit 1
        fi
        sleep 0.2
    done
done

for protocol in "${protocols[@]}"; do
    if ((${#workers[@]})); then
        sleep 0.5  # the slurmd of Slurm 22.05 may hang when two steps start at once
    fi
    "${each_node[@]}" --output="$logs/worker-$protocol-%n.log" \
        "$python" -m weft worker --scheduler-file "$folder/scheduler-$protocol.json" --protocol "$protocol" \
        --timeout "$timeout_s" "${placing[@]}" "${interface[@]}" &
    workers+=("$!")
done

scheduler=$("$python" -m weft.deploy.ready --timeout "$timeout_s" \
    --plans "$folder"/plan-*.json --schedulers "${files[@]}") || exit 1
export DASK_SCHEDULER_ADDRESS=${scheduler%%,*}  # where a Client() without arguments goes
if ((${#program[@]})); then
    "${program[@]//'{scheduler}'/"$scheduler"}"
else
    echo "$scheduler"
    wait "${workers[@]}"
fi
"""
