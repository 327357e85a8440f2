# SPDX-License-Identifier: BSD-3-Clause
"""The batch script in Slurm's hands: two nodes on this machine, with daemons, ports and munge of their own."""

import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from weft.deploy import slurm
from weft.deploy.cluster import Cluster

#: Fourteen Pythons start; on a busy machine that takes minutes. What hangs is ended, a command sooner than a test.
LIMIT_S = 200
pytestmark = [pytest.mark.slow, pytest.mark.timeout(4 * LIMIT_S)]

DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol")
#: Debian keeps daemons where only root looks.
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"

CONF = """
ClusterName=weft
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
MpiDefault=none
MailProg=/bin/true
MessageTimeout=100
NodeName=n0 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cpus} RealMemory=1000
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cpus} RealMemory=1000
PartitionName=main Nodes=n[0-1] Default=YES
"""


class Slurm:
    """Slurm on this machine: daemons in the foreground, ended by their process ids."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []
        (folder / "state").mkdir()
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o600)
        sockets = [socket.socket() for _ in range(3)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        ports = [each.getsockname()[1] for each in sockets]
        for each in sockets:
            each.close()
        host = socket.gethostname().partition(".")[0]
        cpus = os.cpu_count()
        values = {"host": host, "ports": ports, "user": getpass.getuser(), "folder": folder, "cpus": cpus}
        (folder / "slurm.conf").write_text(CONF.format(**values))

    def start(self) -> str | None:
        """Start the daemons; return why that failed, or None."""
        files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munged.pid", "seed-file": "seed"}
        munged = [f"--{option}={self.folder / name}" for option, name in files.items()]
        self._daemon("munged", "--foreground", "--force", *munged)
        self._until(lambda: (self.folder / "munge.socket").exists(), 5)
        self._daemon("slurmctld", "-D")
        self._daemon("slurmd", "-D", "-N", "n0")
        self._daemon("slurmd", "-D", "-N", "n1")
        if self._until(lambda: self.said("sinfo", "-h", "-N", "-o", "%T").split() == ["idle", "idle"], 20):
            return None
        ended = [daemon.args[0] for daemon in self._daemons if daemon.poll() is not None]
        return f"ended: {ended}; {self.said('tail', '-n', '3', *map(str, self.folder.glob('*.log')))}"

    def _daemon(self, *command: str) -> None:
        with (self.folder / f"{command[0]}.out").open("ab") as out:
            # of its own session: Ctrl-C is for this process to answer
            self._daemons.append(
                subprocess.Popen(command, env=self.env, stdout=out, stderr=out, start_new_session=True)
            )

    def said(self, *command: str) -> str:
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=LIMIT_S).stdout

    def _until(self, holds, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if holds():
                return True
            time.sleep(0.1)
        return False

    def run(self, script: str) -> tuple[str, str]:
        """Submit `script` and wait; return the job's state and what it printed."""
        (self.folder / "job.sh").write_text(script)
        job = self.said("sbatch", "--parsable", f"--output={self.folder}/job.out", str(self.folder / "job.sh")).strip()
        self._until(lambda: not self.said("squeue", "-h", "-j", job), 2 * LIMIT_S)
        fields = dict(word.partition("=")[::2] for word in self.said("scontrol", "show", "job", job).split())
        return f"{fields.get('JobState')} {fields.get('ExitCode')}", (self.folder / "job.out").read_text()

    def end(self) -> None:
        if self._daemons and self.said("squeue", "-h"):
            self.said("scancel", "--signal=KILL", "--full", *self.said("squeue", "-h", "-o", "%i").split())
            self._until(lambda: not self.said("squeue", "-h"), 10)
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    missing = [name for name in DAEMONS if shutil.which(name, path=PATH) is None]
    if missing:
        pytest.skip(f"no Slurm: {', '.join(missing)} not found; apt-get install slurmctld slurmd slurm-client munge")
    daemons = Slurm(tmp_path_factory.mktemp("slurm"))
    try:
        if (why := daemons.start()) is not None:
            pytest.skip(f"Slurm does not start here: {why}")
        yield daemons
    finally:
        daemons.end()


def test_merge_on_two_nodes_over_two_protocols(cluster):
    merge = "bench merge --scheduler-address {scheduler} --chunk-size 1000 --runs 1 --warmup-runs 0"
    merge += f" --timeout {LIMIT_S}"
    program = (sys.executable, "-m", "weft", *merge.split())
    layout = Cluster(sys.executable, ("tcp", "ucx"), ("--workers", "1", "--threads", "1"), program=program)
    job = slurm.Job('it\'s "odd" #1', folder=str(cluster.folder))
    state, printed = cluster.run(slurm.script(job, layout))
    folder = next(cluster.folder.glob("weft-*"))
    logs = "\n".join(path.read_text() for path in folder.glob("*.log"))
    assert state == "COMPLETED 0:0", f"{printed}\n{logs}"
    assert "merge over tcp://" in printed
    assert "merge over ucx://" in printed
    assert printed.count("Number of workers         | 2") == 2
    assert "Every result equals" in printed
    assert "srun:" not in printed, "workers had to be killed"
    assert sorted(path.name for path in folder.glob("worker-*")) == [
        f"worker-{protocol}-{node}.log" for protocol in ("tcp", "ucx") for node in (0, 1)
    ]
    assert 'JobName=it\'s "odd" #1' in cluster.said("scontrol", "show", "job")


@pytest.mark.parametrize(
    ("memory", "by"),
    [("--mem=512", "SLURM_MEM_PER_NODE"), ("--mem-per-cpu=512", "SLURM_MEM_PER_CPU and SLURM_CPUS_ON_NODE")],
)
def test_a_plan_keeps_to_the_cpus_and_the_memory_of_the_job(cluster, memory, by):
    asked = f"#SBATCH --nodes=1 --ntasks-per-node=1 --cpus-per-task=1 {memory}"
    step = f"srun --cpu-bind=cores {sys.executable} -m weft worker --plan --json --per 1"
    state, printed = cluster.run(f"#!/bin/bash\n{asked}\n{step}\n")
    assert state == "COMPLETED 0:0", printed
    (worker,) = json.loads(printed)["workers"]
    assert len(worker["cpus"]) == 1
    assert (worker["memory_nbytes"], worker["reasons"]["memory"]) == (512 << 20, f"all of the limit by {by}")
