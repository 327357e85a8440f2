# SPDX-License-Identifier: BSD-3-Clause
"""``ucx://`` is weft's in every Dask process, by installation alone, and importing costs nothing but the import.

All of it in fresh processes. distributed-ucxx is absent, or present as a stand-in that refuses to work.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

#: A bound of what hangs: on a busy machine each of Dask's commands takes half a minute to start.
TIMEOUT_S = 100
OURS = "weft.dask.comm"

OTHER = """
def __getattr__(name):
    raise AttributeError(name)

class UCXXBackend:
    def __getattr__(self, name):
        raise RuntimeError("distributed-ucxx was used")
"""
OTHER_ENTRY_POINTS = """
[distributed.comm.backends]
ucx = distributed_ucxx:UCXXBackend
ucxx = distributed_ucxx:UCXXBackend
"""

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("distributed_ucxx") is not None, reason="the real distributed-ucxx is installed"
)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A folder with a stand-in for distributed-ucxx, to be put on the path."""
    package, metadata = tmp_path / "other/distributed_ucxx", tmp_path / "other/distributed_ucxx-0.99.dist-info"
    package.mkdir(parents=True)
    metadata.mkdir()
    (package / "__init__.py").write_text(OTHER)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: distributed-ucxx\nVersion: 0.99\n")
    (metadata / "entry_points.txt").write_text(OTHER_ENTRY_POINTS)
    return package.parent


def environment(**more: object) -> dict[str, str]:
    """This process's environment without what would steer the ones that are started."""
    kept = {name: value for name, value in os.environ.items() if name.split("_")[0] not in ("DASK", "UCX", "WEFT")}
    return kept | {name: str(value) for name, value in more.items()}


def python(code: str, *args: object, **env: object) -> str:
    """Run `code` in a fresh interpreter where warnings are errors, and return what it prints."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *map(str, args)]
    done = subprocess.run(command, env=environment(**env), capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# ---- importing ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("module", ["weft", "dask.sizeof", "distributed", "weft.dask"])
def test_an_import_changes_no_variable_and_loads_no_ucx(module: str) -> None:
    code = """
        import importlib, os, sys
        variables = dict(os.environ)
        importlib.import_module(sys.argv[1])
        assert dict(os.environ) == variables
        from distributed.comm.registry import get_backend
        if sys.argv[1] != "weft": print(type(get_backend("ucx")).__module__)
        with open("/proc/self/maps") as maps: text = maps.read()
        assert not any(name in text for name in ("libucp", "libucs", "libuct", "libucm"))
    """
    assert python(code, module) == ("" if module == "weft" else OURS)


def test_weft_does_without_distributed() -> None:
    code = """
        import sys
        sys.modules["distributed"] = None
        import dask.sizeof, weft
        assert dask.sizeof.sizeof(b"abc") >= 3
        assert "weft._claim_scheme" in sys.modules
        assert not any(name.startswith("distributed.") for name in sys.modules)
    """
    python(code)


def test_weft_does_without_dask() -> None:
    python('import sys; sys.modules["dask"] = sys.modules["distributed"] = None; import weft; weft.Context')


@pytest.mark.slow
@pytest.mark.parametrize(
    "first", ["dask", "distributed", "distributed.comm", "dask.array", "distributed.comm.registry"]
)
def test_whatever_is_imported_first(first: str) -> None:
    code = """
        import importlib, sys
        importlib.import_module(sys.argv[1])
        from distributed.comm.registry import get_backend
        print(type(get_backend("ucx")).__module__)
    """
    assert python(code, first) == OURS


# ---- the placeholder ------------------------------------------------------------------------------------------


def test_the_claim_leaves_dask_s_configuration_alone() -> None:
    code = """
        import copy, dask.config
        before = copy.deepcopy(dask.config.config)
        import dask.sizeof
        assert dask.config.config == before
    """
    python(code)


@pytest.mark.slow
def test_the_placeholder_is_kept_out_only_without_the_other(other: Path) -> None:
    code = 'import sys, dask.sizeof; print("distributed.comm.ucx" in sys.modules)'
    assert python(code) == "True"
    assert python(code, PYTHONPATH=other) == "False"


# ---- with the other installed -------------------------------------------------------------------------------

WHO = """
    import sys
    if sys.argv[1] == "last": sys.path.append(sys.argv[2])
    from distributed import Client
    try:
        Client("ucx://127.0.0.1:9", timeout=0.2)
    except Exception as error:
        assert type(error) in (RuntimeError, OSError), error
        print("other" if "distributed-ucxx was used" in str(error) else "ours", end=" ")
    from distributed.comm.registry import get_backend
    print(type(get_backend("ucx")).__module__, end=" ")
    print(type(get_backend("ucxx")).__module__)
"""


def who(place: str, other: Path, **env: object) -> str:
    return python(WHO, place, other, **env, **({"PYTHONPATH": other} if place == "first" else {}))


@pytest.mark.slow
@pytest.mark.parametrize("place", ["first", "last"])
def test_the_client_is_ours(other: Path, place: str) -> None:
    assert who(place, other) == f"ours {OURS} distributed_ucxx"


@pytest.mark.slow
@pytest.mark.parametrize(("place", "no"), [("first", "false"), ("last", "false"), ("first", "no"), ("last", "Off")])
def test_the_client_is_the_other_s_if_asked(other: Path, place: str, no: str) -> None:
    used, _, ucxx = who(place, other, DASK_WEFT__CLAIM_UCX=no).split()
    assert (used, ucxx) == ("other", "distributed_ucxx")


@pytest.mark.slow
def test_a_word_that_is_neither_yes_nor_no_is_an_error_of_whoever_uses_the_scheme(other: Path) -> None:
    code = """
        from distributed import Client
        try:
            Client("ucx://127.0.0.1:9", timeout=0.2)
        except ValueError as error:
            print(type(error).__name__, error)
    """
    said = python(code, PYTHONPATH=other, DASK_WEFT__CLAIM_UCX="maybe")
    assert said == "InvalidParamError weft.claim-ucx: 'maybe' is neither true nor false"


# ---- the command line ---------------------------------------------------------------------------------------

COMMS = """
def comms():
    from distributed.comm.core import Comm
    return sorted({type(comm).__module__ for comm in Comm._instances if not comm.closed()})
"""
CLIENT = f"""
import json, sys
from distributed import Client
{COMMS}
with Client(scheduler_file=sys.argv[1], timeout={TIMEOUT_S}) as client:
    client.wait_for_workers(int(sys.argv[2]), timeout={TIMEOUT_S})
    assert client.submit(sum, [1, 2, 3]).result(timeout={TIMEOUT_S}) == 6
    answer = dict(client=comms(), scheduler=client.run_on_scheduler(comms), **client.run(comms))
    if sys.argv[3] == "nanny":
        answer |= {{"nanny " + key: value for key, value in client.run(comms, nanny=True).items()}}
with open("answer.json", "w") as file: json.dump(answer, file)
"""


class Commands:
    """``dask`` command lines that run until the test is over."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.folder, self.env = folder, env
        self.running: list[subprocess.Popen[bytes]] = []
        self.scheduler_file = folder / "scheduler.json"

    def start(self, *arguments: object) -> None:
        """Start ``dask`` with these arguments."""
        self.run([str(Path(sys.executable).with_name("dask")), *map(str, arguments)])

    def start_client(self, *arguments: str) -> None:
        self.run([sys.executable, "-c", CLIENT, str(self.scheduler_file), *arguments])

    def run(self, command: list[str]) -> None:
        with (self.folder / f"{len(self.running)}.log").open("wb") as log:
            self.running.append(subprocess.Popen(command, env=self.env, cwd=self.folder, stdout=log, stderr=log))

    def scheduler(self, *more: object) -> str:
        """Start a scheduler as its users do, and return its address."""
        options = ["--protocol", "ucx", "--port", "0", "--host", "127.0.0.1", "--no-dashboard"]
        self.start("scheduler", *options, *more, "--scheduler-file", self.scheduler_file)
        deadline = time.monotonic() + TIMEOUT_S
        while not (self.scheduler_file.exists() and self.scheduler_file.stat().st_size):
            assert self.running[-1].poll() is None, self.logs()
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.02)
        return str(json.loads(self.scheduler_file.read_text())["address"])

    def logs(self) -> str:
        return "\n".join(log.read_text() for log in sorted(self.folder.glob("*.log")))

    def end(self) -> None:
        # Interrupted in turn, workers first: each has its own children to end.
        for process in reversed(self.running):
            process.terminate()
            try:
                process.wait(100)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(100)


@pytest.fixture(params=["absent", "present"])
def commands(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Commands]:
    env = environment()
    if request.param == "present":
        env["PYTHONPATH"] = str(request.getfixturevalue("other"))
    commands = Commands(tmp_path, env)
    yield commands
    commands.end()


def ask(commands: Commands, workers: int, *, nanny: bool) -> dict[str, list[str]]:
    """Connect a client in a process of its own, run a task, and return each process's kinds of comms."""
    commands.start_client(str(workers), "nanny" if nanny else "worker")
    client = commands.running[-1]
    deadline = time.monotonic() + 2 * TIMEOUT_S
    while client.poll() is None:
        assert all(process.poll() is None or process is client for process in commands.running), commands.logs()
        assert time.monotonic() < deadline, commands.logs()
        time.sleep(0.02)
    assert client.returncode == 0, commands.logs()
    answer = json.loads((commands.folder / "answer.json").read_text())
    assert len(answer) == 2 + workers * (1 + nanny)
    return answer


@pytest.mark.slow
def test_scheduler_and_workers_from_the_command_line(commands: Commands) -> None:
    address = commands.scheduler()
    assert address.startswith("ucx://127.0.0.1:")
    common = ["--nthreads", "1", "--no-dashboard", "--host", "127.0.0.1"]
    commands.start("worker", address, "--no-nanny", "--nthreads", "1", "--no-dashboard")
    commands.start("worker", "--protocol", "ucx", "--scheduler-file", commands.scheduler_file, "--no-nanny", *common)
    answer = ask(commands, 2, nanny=False)
    assert all(kinds == [OURS] for kinds in answer.values()), answer
    assert "Traceback" not in commands.logs()


@pytest.mark.slow
def test_workers_with_nannies_from_the_command_line(commands: Commands) -> None:
    address = commands.scheduler()
    commands.start("worker", address, "--nworkers", "2", "--nthreads", "1", "--no-dashboard")
    answer = ask(commands, 2, nanny=True)
    assert all(kinds == [OURS] for kinds in answer.values()), answer
    assert "Traceback" not in commands.logs()


@pytest.mark.slow
def test_preloads_on_the_command_line_do_not_unclaim(commands: Commands) -> None:
    """A preload that is given as an option stands in for the configured ones."""
    (commands.folder / "mine.py").write_text("print('my preload ran')\n")
    address = commands.scheduler("--preload", "mine.py")
    commands.start(
        "worker", address, "--nthreads", "1", "--no-dashboard", "--preload", "mine.py", "--preload-nanny", "mine.py"
    )
    answer = ask(commands, 1, nanny=True)
    assert all(kinds == [OURS] for kinds in answer.values()), answer
    assert "my preload ran" in commands.logs()


@pytest.mark.slow
def test_preloads_with_arguments_go_on_to_work(commands: Commands) -> None:
    """Configured preloads may have a list of arguments each; one preload more must not upset that."""
    (commands.folder / "mine.py").write_text("print('my preload ran')\n")
    for role in ("SCHEDULER", "WORKER"):
        commands.env[f"DASK_DISTRIBUTED__{role}__PRELOAD"] = "['mine.py']"
        commands.env[f"DASK_DISTRIBUTED__{role}__PRELOAD_ARGV"] = "[['--x']]"
    address = commands.scheduler()
    commands.start("worker", address, "--nthreads", "1", "--no-dashboard", "--no-nanny")
    answer = ask(commands, 1, nanny=False)
    assert all(kinds == [OURS] for kinds in answer.values()), answer


SCRIPT = f"""
from distributed import Client, LocalCluster
{COMMS}
if __name__ == "__main__":
    with LocalCluster(protocol="ucx", n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster, \\
            Client(cluster) as client:
        assert client.submit(sum, [1, 2]).result(timeout={TIMEOUT_S}) == 3
        print(*comms(), *client.run_on_scheduler(comms), *sum(client.run(comms).values(), []))
"""


@pytest.mark.slow
@pytest.mark.parametrize("present", [False, True], ids=["absent", "present"])
def test_a_local_cluster_in_a_fresh_process(tmp_path: Path, other: Path, present: bool) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    env = environment(PYTHONPATH=other) if present else environment()
    done = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=2 * TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {OURS}
    assert "Traceback" not in done.stderr
