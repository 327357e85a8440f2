# SPDX-License-Identifier: BSD-3-Clause
"""The batch script, read and run with fakes in place of srun and Python."""

import pytest

from weft.deploy import slurm
from weft.deploy.cluster import Cluster
from weft.errors import InvalidParamError

ODD = 'it\'s "odd" $HOME `id` #1 \\ 50%'


def directives(job):
    return [line for line in slurm.script(job, Cluster("python")).splitlines() if line.startswith("#SBATCH")]


def test_whole_nodes_unless_told_otherwise():
    assert directives(slurm.Job()) == [
        "#SBATCH --job-name=weft",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --exclusive",
    ]


def test_what_is_asked_of_slurm():
    job = slurm.Job("a b", 3, 8, 4, "64G", "1:00:00", "gpu", "team", directives=("--constraint=ib",))
    assert directives(job) == [
        "#SBATCH --job-name='a b'",
        "#SBATCH --nodes=3",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --cpus-per-task=8",
        "#SBATCH --gpus-per-node=4",
        "#SBATCH --mem=64G",
        "#SBATCH --time=1:00:00",
        "#SBATCH --partition=gpu",
        "#SBATCH --account=team",
        "#SBATCH --constraint=ib",
    ]


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (slurm.Job("a\n#SBATCH --uid=0"), "--job-name 'a\\n#SBATCH --uid=0': a control character"),
        (slurm.Job(partition="a\rb"), "--partition"),
        (slurm.Job(directives=("-C\nib",)), "--sbatch"),
        (slurm.Job(directives=("rm -r",)), "--sbatch 'rm -r': write an option of sbatch"),
    ],
)
def test_directives_cannot_be_left(job, why):
    with pytest.raises(InvalidParamError) as raised:
        slurm.script(job, Cluster("python"))
    assert why in str(raised.value)


@pytest.mark.parametrize("job", [slurm.Job(), slurm.Job(ODD, cpus=2, folder=ODD)])
def test_shellcheck(job, shellcheck):
    shellcheck(slurm.script(job, Cluster("python")))
    odd = Cluster(ODD, ("tcp", "ucx"), ("--per", ODD), ODD, (f"A={ODD}",), ("module load ucx",), (ODD, "{scheduler}"))
    shellcheck(slurm.script(job, odd))


@pytest.mark.slow
def test_the_program_runs_beside_the_cluster(fakes):
    """One run shows the order of things, words that reach their program whole, and the program's own status."""
    program = ("bash", "-c", 'printf "<%s>" "$@" $DASK_SCHEDULER_ADDRESS; exit 3', "x", ODD, "a={scheduler}", "")
    cluster = Cluster(
        fakes.python, ("tcp", "ucx"), ("--per", "l 3"), "ib 0", (f"UCX_TLS={ODD}",), ("cd /",), program=program
    )
    folder = fakes.folder / ODD.replace("/", "")
    done = fakes.run(slurm.script(slurm.Job(cpus=2, folder=str(folder)), cluster), 4)
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout == f"<{ODD}><a=tcp://a:1,ucx://a:2><><tcp://a:1>"
    calls = fakes.lines("calls")
    assert {call.partition(" UCX_TLS=")[2] for call in calls} == {ODD}
    calls = [call.partition(" UCX_TLS=")[0] for call in calls]
    placing = "[--per][l 3][--interface][ib 0]"
    files = [f"[{folder}/weft-7/scheduler-{protocol}.json]" for protocol in ("tcp", "ucx")]
    assert calls[0] == f"[-m][weft][worker][--plan][--json]{placing}"
    assert sorted(calls[1:3]) == [
        f"[-m][dask][scheduler][--protocol][{protocol}][--port][0][--dashboard-address][:0][--interface][ib 0]"
        f"[--scheduler-file]{file}"
        for protocol, file in zip(("tcp", "ucx"), files, strict=True)
    ]
    ready, *workers = sorted(calls[3:])
    assert workers == [
        f"[-m][weft][worker][--scheduler-file]{file}[--protocol][{protocol}][--timeout][120]{placing}"
        for protocol, file in zip(("tcp", "ucx"), files, strict=True)
    ]
    assert ready == (
        f"[-m][weft.deploy.ready][--timeout][120][--plans][{folder}/weft-7/plan-0.json][--schedulers]{''.join(files)}"
    )
    for line in fakes.lines("sruns"):
        assert line.startswith("<--overlap><--ntasks-per-node=1><--cpus-per-task=2><--cpu-bind=cores>")


@pytest.mark.slow
def test_a_cluster_that_does_not_come_up_runs_nothing(fakes):
    done = fakes.run(slurm.script(slurm.Job(), Cluster(fakes.python, program=("echo", "ran"))), 2, READY="5")
    assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.slow
def test_without_a_program_it_stays_until_the_workers_end(fakes):
    script = slurm.script(slurm.Job(), Cluster(fakes.python))
    # the fake workers end when this one "scheduler" is gone: at once
    done = fakes.run(script.replace("\nset -u\n", '\nset -u\n(sleep 1; kill $(cat "$CALLS/schedulers")) &\n', 1), 2)
    assert (done.returncode, done.stdout) == (0, "tcp://a:1,ucx://a:2\n")
