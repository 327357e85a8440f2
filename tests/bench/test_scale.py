# SPDX-License-Identifier: BSD-3-Clause
"""``weft bench scale``: options, turns, what is said of known runs, runs that fail, and tiny real ones."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import resource
import signal
import subprocess
import sys
import time

import psutil
import pytest
from rich.console import Console

pytest.importorskip("distributed")
pytest.importorskip("numpy")

from weft import _cli as cli
from weft import lab
from weft.bench import compare
from weft.bench.charts import command as plot
from weft.bench.common.errors import BenchError
from weft.bench.scale import cluster, command, run, table
from weft.bench.scale.run import Place, Plan
from weft.errors import InvalidParamError, UnsupportedError

MIB = 1 << 20
START, FIRST, LATER, CLOSE, MEMORY, SHM, DESCRIPTORS, MOST, IDLE = table.MEASURES


def parse(*arguments):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(arguments)


def taken(workers, *, times=1.0, **more):
    return {
        "start_s": times * workers,
        "first_s": times * 0.1,
        "later_s": [times * seconds for seconds in (0.01, 0.02, 0.9)],
        "processes": workers + 2,
        "idle_cpu_percent": 10.0,
        "descriptors": 40 * workers,
        "most_descriptors": 50,
        "pss_nbytes": 80 * MIB * workers,
        "shm_nbytes": 0,
        "pairs": workers * (workers - 1),
        "connections": workers * workers,
        "lanes": {},
        "close_s": times,
    } | more


@pytest.fixture
def record():
    """Two rounds with 2 and 4 workers; ucx takes more of all, and does not come up with 4 in the second round."""
    ucx = {"shm_nbytes": 14 * MIB, "lanes": {"ring/memory": 12}, "pss_nbytes": 400 * MIB, "descriptors": 300}
    failed = {"failed": "did not come up within 68 s: too <many> open files"}
    runs = {
        (2, "tcp"): [taken(2), taken(2, times=1.1)],
        (2, "ucx"): [taken(2, times=2.0, **ucx), taken(2, times=3.3, **ucx)],
        (4, "tcp"): [taken(4), taken(4, times=7.0)],
        (4, "ucx"): [taken(4, times=0.5, **ucx), failed],
    }
    return {
        "command": "weft bench scale",
        "rounds": 2,
        "protocols": ["tcp", "ucx"],
        "workers": [2, 4],
        "nannies": True,
        "limit": 256,
        "nbytes": 128 << 10,
        "idle_s": 5.0,
        "records": [{"workers": n, "protocol": protocol, "runs": each} for (n, protocol), each in runs.items()],
        "environment": {
            "cpu_model": "a <CPU>",
            "cores_usable": 2,
            "load_average": [0.1, 0.1, 0.1],
            "date_utc": "2026-01-02T03:04:05+00:00",
            "weft": "0.1.0",
            "ucx": {"version": "1.22.0", "origin": "wheel"},
        },
    }


# --- options and turns --------------------------------------------------------------------------------------


def test_defaults():
    args = parse()
    assert (args.workers, args.protocol, args.rounds, args.nannies) == ([4, 8, 16, 32], ["tcp", "ucx"], 3, True)
    assert command.plan_of(args, 8, "ucx") == Plan("ucx", 8, timeout_s=76)


def test_what_is_run_is_what_was_asked_for():
    given = ("--no-nanny", "--ulimit", "256", "--size", "1KiB", "--later", "2", "--idle", "2", "--timeout", "9")
    asked = command.plan_of(parse(*given), 16, "tcp")
    assert asked == Plan("tcp", 16, nannies=False, limit=256, nbytes=1024, later=2, idle_s=2.0, timeout_s=9.0)


def test_numbers_of_workers_each_once():
    assert command.counts("4, 2,4") == [4, 2]


@pytest.mark.parametrize(
    ("option", "given"), [("--workers", "1,4"), ("--workers", "four"), ("--ulimit", "0"), ("--protocol", "tcp,tcp")]
)
def test_what_is_no_number_or_protocol_is_refused(option, given, capsys):
    with pytest.raises(SystemExit):
        parse(option, given)
    assert option in capsys.readouterr().err


def test_a_number_makes_a_lab(tmp_path):
    made = command.network("3")
    assert [host.name for host in made.hosts] == ["h1", "h2", "h3"]
    assert made.cables[0].between == ("h1", "h2", "h3")
    (tmp_path / "two.toml").write_text('[hosts.a]\n[hosts.b]\n[[links]]\nbetween = ["a", "b"]\n')
    assert [host.name for host in command.network(str(tmp_path / "two.toml")).hosts] == ["a", "b"]


@pytest.mark.parametrize("given", ["1", "none.toml"])
def test_a_lab_that_there_cannot_be_is_said(given, monkeypatch, capsys):
    monkeypatch.setattr(run, "measure", lambda *_: pytest.fail("started nevertheless"))
    assert cli.main(["bench", "scale", "--lab", given]) == 2
    assert capsys.readouterr().err.startswith("weft bench scale: ")


def test_a_lab_without_root_is_said(monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(run, "measure", lambda *_: pytest.fail("started nevertheless"))
    assert cli.main(["bench", "scale", "--lab", "2"]) == 1
    assert "network namespaces need root" in capsys.readouterr().err


def test_the_hosts_of_a_lab_are_taken_in_turn():
    started = []
    start = command.in_turn(lambda host, argv, **popen: started.append((host, argv, popen)), ["a", "b", "c"])
    for i in range(4):
        start(i, [str(i)], env={})
    assert started == [(host, [str(i)], {"env": {}}) for i, host in enumerate("abca")]


def test_a_protocol_that_dask_does_not_have_is_refused():
    with pytest.raises(BenchError, match="Dask has no protocol 'nope'"):
        command.refuse(parse("--protocol", "nope"))


def test_a_limit_below_what_a_process_needs_is_refused():
    with pytest.raises(BenchError, match="--ulimit 5: no process of a cluster starts with less than 32 open files"):
        command.refuse(parse("--ulimit", "5"))


def test_a_limit_above_the_hard_one_is_refused(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 200))
    command.refuse(parse("--ulimit", "200"))
    with pytest.raises(BenchError, match="the hard limit of open files is 200"):
        command.refuse(parse("--ulimit", "201"))


def test_protocols_take_turns_with_each_number_of_workers(monkeypatch, tmp_path, capsys):
    plans = []

    def measured(plan, place):
        plans.append((plan.workers, plan.protocol))
        return taken(plan.workers) if plan.protocol == "tcp" else {"failed": "did not come up within 1 s: no files"}

    monkeypatch.setattr(run, "measure", measured)
    path = tmp_path / "scale.json"
    assert cli.main(["bench", "scale", "--workers", "2,4", "--rounds", "2", "--json", str(path)]) == 0
    assert plans == [(2, "tcp"), (2, "ucx"), (4, "tcp"), (4, "ucx")] * 2
    written = json.loads(path.read_text())
    assert [(e["workers"], e["protocol"], len(e["runs"])) for e in written["records"]] == [
        (workers, protocol, 2) for workers in (2, 4) for protocol in ("tcp", "ucx")
    ]
    assert written["environment"]["cores_usable"] == len(os.sched_getaffinity(0))
    said = capsys.readouterr().out
    assert said.count("ucx://, 4 workers, round") == 2
    assert "did not come up" in said


def test_a_signal_unwinds_as_an_interrupt_does(monkeypatch):
    monkeypatch.setattr(run, "measure", lambda *_: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", "scale", "--workers", "2"])
    assert ended.value.code == 128 + signal.SIGTERM


def test_nothing_that_came_up_is_a_failure(monkeypatch, capsys):
    monkeypatch.setattr(run, "measure", lambda *_: {"failed": "did not come up within 1 s"})
    assert cli.main(["bench", "scale", "--workers", "2", "--rounds", "1", "--protocol", "ucx"]) == 1
    assert "ucx://, 2 workers, round 1: did not come up within 1 s" in capsys.readouterr().out


# --- what is said of a record -------------------------------------------------------------------------------


def test_a_later_all_to_all_is_the_median_of_its_run(record):
    entry = table.entry_of(record, "tcp", 2)
    assert table.values(entry, LATER) == pytest.approx([0.02, 0.022])
    assert table.values(table.entry_of(record, "ucx", 4), START) == [2.0]


def test_a_ratio_is_of_the_rounds_that_both_have(record):
    assert table.ratio(record, FIRST, 2, "ucx", "tcp") == pytest.approx((2.5, 2.0, 3.0))
    assert table.ratio(record, FIRST, 4, "ucx", "tcp") == pytest.approx((0.5, 0.5, 0.5))


def test_nothing_is_divided_by_nothing(record):
    assert table.ratio(record, SHM, 2, "ucx", "tcp") is None
    assert table.difference(record, SHM, 2, "ucx", "tcp") == "+14 MiB"
    assert table.difference(record, MEMORY, 2, "tcp", "ucx") == "-240 MiB"
    record["records"][-1]["runs"] = [{"failed": "gone"}] * 2
    assert table.ratio(record, FIRST, 4, "ucx", "tcp") is None
    assert table.difference(record, MEMORY, 4, "ucx", "tcp") == "-"


def test_a_row_for_each_measure_and_number_of_workers(record):
    record["records"][-1]["runs"] = [{"failed": "gone"}] * 2
    head, rows = table.rows(record)
    assert head == ["", "workers", "tcp", "ucx", "ucx/tcp", "ucx - tcp"]
    assert [row[:2] for row in rows] == [[m.title, n] for m in table.MEASURES for n in ("2", "4")]
    assert rows[1] == ["start", "4", "16 s", "did not come up", "-", ""]
    assert rows[12] == ["descriptors", "2", "80", "300", "3.75 (one round)", "+220"]
    assert rows[13][2:] == ["160", "-", "-", "-"]


def shown_of(record):
    out = io.StringIO()
    table.show(record, Console(file=out, width=80))
    return out.getvalue()


def test_the_table_is_as_wide_as_a_terminal_and_says_what_failed(record):
    shown = shown_of(record)
    assert "…" not in shown
    assert "ucx://, 4 workers, round 2: did not come up within 68 s: too <many> open files" in shown
    assert "started and watched by nannies, at most 256 open files in each process" in shown
    assert "Lanes between workers over ucx://: ring/memory" in shown
    assert "pairs" not in shown


def test_pairs_that_did_not_meet_are_said(record):
    record["records"][2]["runs"][1]["pairs"] = 11
    assert "tcp://, 4 workers, round 2: 11 pairs of 12 fetched from each other" in shown_of(record)


def test_more_workers_than_the_cores_bear_run_calmly_and_it_is_said(record, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    args = parse()
    assert [command.plan_of(args, workers, "tcp").calm for workers in (2, 32, 33)] == [False, False, True]
    assert "slowed down" not in shown_of(record)
    record["records"][2]["calm"] = record["records"][3]["calm"] = True
    assert "With 4 workers Dask's profiler, ticks and system monitor are slowed down" in shown_of(record)


def test_the_hosts_are_said(record):
    record["lab"] = {"hosts": {"a": {}, "b": {}}, "links": [{"between": ["a", "b"], "rate": None, "delay": None}]}
    assert "Hosts a, b: namespaces of one machine" in shown_of(record)


def test_times_are_compared(record, tmp_path, capsys):
    (tmp_path / "a.json").write_text(json.dumps(record))
    times = compare.times(*compare.read(tmp_path / "a.json"))
    assert times["later all-to-all", "2", "tcp://"] == pytest.approx([0.02, 0.022])
    assert {key[0] for key in times} == {"start", "first all-to-all", "later all-to-all", "close"}
    assert cli.main(["bench", "compare", str(tmp_path / "a.json"), str(tmp_path / "a.json")]) == 0
    assert "All 16 rows together" in capsys.readouterr().out


# --- charts -------------------------------------------------------------------------------------------------


def test_a_panel_for_each_measure_and_a_line_for_each_protocol(record):
    scales = pytest.importorskip("weft.bench.charts.scale")
    figure = scales.chart(record)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == [measure.title for measure in table.MEASURES if measure is not CLOSE]
    for axes in figure.axes:
        assert [line.get_label() for line in axes.lines] == ["tcp", "ucx"]
        assert [list(line.get_xdata()) for line in axes.lines] == [[2, 4]] * 2
    assert {axes.get_yscale() for axes in figure.axes} == {"log", "linear"}
    assert figure.axes[titles.index("/dev/shm")].get_yscale() == "linear"
    assert list(figure.axes[0].lines[1].get_ydata()) == pytest.approx([5.3, 2.0])


def test_a_cluster_that_did_not_come_up_is_a_cross(record):
    scales = pytest.importorskip("weft.bench.charts.scale")
    record["records"][-1]["runs"] = [{"failed": "gone"}] * 2
    for axes in scales.chart(record).axes:
        (cross,) = [line for line in axes.lines if line.get_marker() == "x"]
        assert list(cross.get_xdata()) == [4]
        (ucx,) = [line for line in axes.lines if line.get_label() == "ucx"]
        assert list(ucx.get_xdata()) == [2]


def test_ticks_are_round():
    scales = pytest.importorskip("weft.bench.charts.scale")
    assert scales.round_values(0.15, 3, binary=False) == pytest.approx([0.2, 0.5, 1, 2])
    assert scales.round_values(0.05, 120, binary=False) == pytest.approx([0.1, 1, 10, 100])
    assert scales.round_values(200 * MIB, 1500 * MIB, binary=True) == [256 * MIB, 512 * MIB, 1024 * MIB]
    assert scales.round_values(1, 200, binary=True) == [1, 4, 16, 64]


@pytest.mark.slow
def test_picture_and_page_are_drawn_from_the_record(record, tmp_path):
    pytest.importorskip("matplotlib")
    path, picture, page = tmp_path / "scale.json", tmp_path / "scale.svg", tmp_path / "scale.html"
    path.write_text(json.dumps(record))
    parser = argparse.ArgumentParser()
    plot.add_arguments(parser)
    assert plot.run(parser.parse_args([str(path), "--plot", str(picture), "--html", str(page)])) == 0
    assert picture.stat().st_size > 10_000
    text = page.read_text()
    assert text.count("<svg") == 1
    assert "too &lt;many&gt; open files" in text
    assert "did not come up" in text


# --- runs that fail -----------------------------------------------------------------------------------------

#: In place of a cluster. It has a child that would stay, whose process id it writes to the file.
PRETENDS = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
open(sys.argv[1], "w").write(str(child.pid))
print("a warning", file=sys.stderr)
sys.stdin.readline()
"""


def pretending(path, text):
    """Return a place where a cluster is PRETENDS and then `text`."""

    def start(_, command, **popen):
        return run.here(_, [sys.executable, "-c", PRETENDS + text, str(path)], **popen)

    return Place(start)


def ended(path):
    pid = int(path.read_text())
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("time.sleep(1000)", "did not come up within 2 s: a warning"),
        ("sys.exit('OSError: too many open files')", "did not come up: OSError: too many open files"),
        (
            """print('{"scheduler": ""}\\n{"start_s": 1.5}', flush=True); time.sleep(1000)""",
            "came up, and its workers did not all fetch from each other within 2 s: a warning",
        ),
    ],
)
def test_what_fails_is_told_and_every_process_ended(text, reason, tmp_path):
    found = run.measure(Plan("tcp", 2, timeout_s=2.0), pretending(tmp_path / "pid", text))
    assert found.pop("failed") == reason
    assert found == ({"start_s": 1.5} if reason.startswith("came up") else {})
    assert ended(tmp_path / "pid")


@pytest.mark.slow
def test_an_interrupt_ends_every_process(tmp_path, monkeypatch):
    def interrupted(*_):
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(run._Processes, "hear", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.measure(Plan("tcp", 2), pretending(tmp_path / "pid", "time.sleep(1000)"))
    assert ended(tmp_path / "pid")


@pytest.mark.slow
def test_a_worker_that_ends_is_not_waited_for():
    def start(i, command, **popen):
        ends = [sys.executable, "-c", r"import os; os.write(2, b'no memory\n'); os._exit(1)"]
        argv = ends if "--no-nanny" in command else command
        return run.here(i, argv, **popen)

    begin = time.monotonic()
    found = run.measure(Plan("tcp", 2, nannies=False, timeout_s=1000.0), Place(start))
    assert found == {"failed": "did not come up: a worker ended: no memory"}
    assert time.monotonic() - begin < 1000


def test_the_limit_of_files_is_that_of_the_processes_started_meanwhile():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with run._files_limited(200):
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (200, before[1])
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
    with run._files_limited(None):
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])


def test_what_a_process_holds():
    me = psutil.Process()
    with contextlib.ExitStack() as files:
        for _ in range(50):
            files.enter_context(open(os.devnull))
        held = run.taken([me], 0.01)
    assert held["processes"] == 1
    assert held["descriptors"] == held["most_descriptors"] >= 50
    assert 0 < held["pss_nbytes"] <= me.memory_info().rss + MIB
    both = run.taken([me, me], 0.01)
    assert both["descriptors"] == 2 * both["most_descriptors"]


def test_a_process_that_ends_while_it_is_read_is_told():
    child = psutil.Popen([sys.executable, "-c", "pass"])
    child.wait()
    with pytest.raises(BenchError, match="a process ended while the cluster was idle"):
        run.taken([child], 0.0)


# --- real clusters ------------------------------------------------------------------------------------------


@pytest.fixture
def nothing_left():
    before = set(psutil.Process().children(recursive=True))
    yield
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.mark.slow
@pytest.mark.parametrize("nannies", [True, False])
@pytest.mark.parametrize("protocol", ["tcp", "ucx"])
def test_a_cluster_of_two(protocol, nannies, nothing_left):
    plan = Plan(protocol, 2, nannies=nannies, nbytes=200_000, later=2, idle_s=0.2, limit=900, timeout_s=200.0)
    found = run.measure(plan, Place(run.here))
    assert "failed" not in found, found["failed"]
    assert len(found["later_s"]) == 2
    assert found["pairs"] == 2
    assert found["processes"] - nannies == 3  # with nannies multiprocessing has one of its own
    assert found["descriptors"] > found["most_descriptors"] > 10
    assert found["pss_nbytes"] > 20 * MIB
    assert bool(found["lanes"]) == (protocol == "ucx")
    assert {measure.key for measure in table.MEASURES} <= found.keys()


@pytest.mark.slow
def test_too_few_files_are_a_cluster_that_does_not_come_up(nothing_left):
    """In a process of its own: the limit holds for what starts the cluster, too, and this one may have as many open."""
    code = """
import json
from weft.bench.scale import run
print(json.dumps(run.measure(run.Plan("tcp", 2, limit=30, timeout_s=20.0), run.Place(run.here))))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.keys() == {"failed"}
    assert found["failed"].startswith("did not come up")


@pytest.mark.slow
def test_a_cluster_ends_with_the_process_that_started_it(nothing_left):
    plan = Plan("tcp", 2, timeout_s=200.0)
    with run._started(plan, Place(run.here)) as processes:
        assert processes.hear("did not come up")["scheduler"].startswith("tcp://")
        assert processes.hear("did not come up")["start_s"] > 0
        every = processes.all()
        assert len(every) == 4
        processes.first.stdin.close()
        _, alive = psutil.wait_procs(every, 60)
        assert not alive


@pytest.mark.slow
def test_a_cluster_that_is_interrupted_leaves_no_semaphores():
    """In a /dev/shm of its own: other tests may run beside this one."""
    code = """
import os
from weft.bench.scale import run
try:
    with run._started(run.Plan("tcp", 2, timeout_s=100.0), run.Place(run.here)) as processes:
        processes.hear("did not come up")
        processes.hear("did not come up")
        print(bool(os.listdir("/dev/shm")))
        raise KeyboardInterrupt
except KeyboardInterrupt:
    print(os.listdir("/dev/shm"))
"""
    alone = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("namespaces cannot be made here")
    done = subprocess.run([*alone, sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "True\n[]\n", done.stderr


@pytest.mark.slow
def test_a_lab_of_two_hosts(tmp_path, capfd):
    try:
        with lab.Lab(command.network("2")):
            pass
    except UnsupportedError as e:
        pytest.skip(str(e))
    path = tmp_path / "scale.json"
    given = ("--workers", "2", "--lab", "2", "--protocol", "ucx", "--rounds", "1", "--idle", "0.2", "--timeout", "200")
    assert cli.main(["bench", "scale", *given, "--json", str(path)]) == 0, capfd.readouterr()
    (entry,) = json.loads(path.read_text())["records"]
    assert entry["runs"][0]["lanes"] == {"tcp/lab0": 2}
    assert entry["runs"][0]["pairs"] == 2
    assert "Hosts h1, h2: namespaces of one machine" in capfd.readouterr().out


def test_arrays_of_other_bytes_are_refused(monkeypatch):
    class Workers:
        def submit(self, function, *args, **_):
            return function(*args)

        def gather(self, values):
            return values

    monkeypatch.setattr(cluster, "wait", lambda *_, **__: None)
    monkeypatch.setattr(cluster, "_on_each", lambda _, function, arrays: [
        function(*(array for other, array in arrays.items() if other != worker)) for worker in arrays
    ])  # fmt: skip
    assert cluster.all_to_all(Workers(), ["a", "b", "c"], 100, 0, 1.0) >= 0
    monkeypatch.setattr(cluster, "checksums", lambda *arrays: [0] * len(arrays))
    with pytest.raises(BenchError, match="a received other bytes than were sent"):
        cluster.all_to_all(Workers(), ["a", "b", "c"], 100, 0, 1.0)


def test_a_file_that_is_no_lab_is_told(tmp_path):
    (tmp_path / "x.toml").write_text("hosts = 3")
    with pytest.raises(InvalidParamError):
        command.network(str(tmp_path / "x.toml"))
