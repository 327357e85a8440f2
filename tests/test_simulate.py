# SPDX-License-Identifier: BSD-3-Clause
"""The simulator: shares of links, what follows from them, and that a run repeats itself."""

import json
import random
import statistics
import sys

import pytest

from weft import _cli
from weft.simulate import lab, runs
from weft.simulate.cluster import Cluster
from weft.simulate.engine import Engine
from weft.simulate.graphs import GRAPHS, Size
from weft.simulate.learned import Learned
from weft.simulate.network import switched
from weft.simulate.policy import Policy
from weft.simulate.sharing import Flow, Links, _fill, _fill_many
from weft.simulate.tasks import Task
from weft.simulate.topologies import TOPOLOGIES

MIB = 1 << 20


def rates(capacities, paths, most=None):
    links = Links(capacities)
    flows = [
        Flow(path, 1.0, min(links.most(path), (most or {}).get(i, 1e9)), lambda: None) for i, path in enumerate(paths)
    ]
    for flow in flows:
        links.add(flow)
    found = dict(links.share())
    return [found[flow] for flow in flows]


@pytest.mark.parametrize(
    ("capacities", "paths", "expected"),
    [
        ([10], [(0,)], [10]),
        ([10], [(0,), (0,)], [5, 5]),
        ([10, 4], [(0,), (0, 1), (1,)], [8, 2, 2]),  # what the second link stops, the first has for the other
        ([12, 6, 3], [(0, 1), (0, 2), (0, 1), (0,)], [3, 3, 3, 3]),
        ([1, 2, 1], [(0, 1), (1, 2), (1,)], [2 / 3, 2 / 3, 2 / 3]),
        ([5, 100], [(0, 1), (1,)], [5, 95]),
    ],
)
def test_links_are_shared_max_min_fair(capacities, paths, expected):
    assert rates(capacities, paths) == pytest.approx(expected)


def test_a_flow_with_a_most_leaves_the_rest_to_others():
    assert rates([10], [(0,), (0,), (0,)], {0: 1}) == pytest.approx([1, 4.5, 4.5])


def test_arrays_share_as_python_does():
    order = random.Random(1)
    capacities = {link: order.choice([1.0, 2.0, 5.0, 20.0]) for link in range(20)}
    paths = [tuple(order.sample(range(20), order.randint(1, 4))) for _ in range(100)]
    flows = [Flow(path, 1.0, min(capacities[link] for link in path), lambda: None) for path in paths]
    flows[3].most = 0.01
    assert _fill_many(flows, dict(capacities)) == pytest.approx(_fill(flows, dict(capacities)))


def test_without_numpy_python_shares(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)
    flows = [Flow((0,), 1.0, 10.0, lambda: None) for _ in range(100)]
    assert _fill_many(flows, {0: 10.0}) == pytest.approx([0.1] * 100)


def test_what_a_flow_leaves_is_given_to_others():
    engine, ended = Engine([10.0]), []
    engine.move((0,), 10, lambda: ended.append(engine.now_s))
    engine.move((0,), 20, lambda: ended.append(engine.now_s))
    engine.run()
    assert ended == pytest.approx([2.0, 3.0])
    assert engine.shared == 2


def test_links_that_carry_all_that_is_wanted_part_those_beside_them():
    links = Links([10, 100, 10])
    first, second = (Flow((i, 1), 1.0, 10.0, lambda: None) for i in (0, 2))
    links.add(first)
    links.add(second)
    assert len(links.share()) == 2
    links.remove(second)
    assert links.share() == []


def fan_out(policy, hosts, *, nbytes=100 * MIB, workers=1, seed=0):
    network = switched("", {f"h{i}": workers if i else 1 for i in range(hosts + 1)}, 25e6)
    cluster = Cluster(network, policy, seed=seed)
    value = Task("value", nbytes, worker="h0.0")
    cluster.put([value])
    tasks = [Task(f"t{i}", 8, 0, [value], worker=name) for i, name in enumerate(network.places) if i]
    return cluster.compute_all(tasks), cluster


def test_a_star_takes_as_many_times_as_there_are_hosts():
    seconds, cluster = fan_out(Policy(), 8)
    assert seconds == pytest.approx(8 * 100 * MIB / 25e6, rel=0.01)
    assert cluster.moved_nbytes == 8 * 100 * MIB


def test_a_chain_of_pieces_takes_little_more_than_one_transfer():
    seconds, cluster = fan_out(Learned(), 8, workers=2)
    assert seconds == pytest.approx((100 + 7) * MIB / 25e6, rel=0.02)
    assert cluster.moved_nbytes == 8 * 100 * MIB, "once into each host"


def test_a_source_serves_ten_at_once():
    _, cluster = fan_out(Policy(), 11, nbytes=MIB)
    assert cluster.requests > 11


@pytest.mark.parametrize("policy", [Policy, Learned])
def test_the_same_seed_gives_the_same_numbers(policy):
    runs = [fan_out(policy(), 12, nbytes=20 * MIB, seed=3) for _ in range(2)]
    assert runs[0][0] == runs[1][0]
    assert runs[0][1].requests == runs[1][1].requests


@pytest.mark.parametrize("policy", [Policy, Learned])
def test_a_death_in_the_middle_ends_nobody_else(policy):
    network = switched("", {f"h{i}": 1 for i in range(9)}, 25e6)
    cluster = Cluster(network, policy())
    value = Task("value", 100 * MIB, worker="h0.0")
    cluster.put([value])
    tasks = [Task(f"t{i}", 8, 0, [value], worker=name) for i, name in enumerate(network.places) if i]
    cluster.engine.after(1.7, cluster.kill, "h4.0")
    cluster.compute_all(tasks)
    assert all(task.who_has for task in tasks)


@pytest.mark.parametrize(("flows", "seconds"), [(2, 2), (100, 100.25)])
def test_what_reaches_many_flows_is_shared_at_multiples_of_the_resolution(flows, seconds):
    engine, ended = Engine([10.0], resolution_s=0.25), []
    for _ in range(flows):
        engine.move((0,), 10, lambda: ended.append(engine.now_s))
    engine.run()
    assert ended == pytest.approx([seconds] * flows)
    assert engine.shared < 5


def test_gpus_of_a_dgx1_go_by_nvlink_or_through_their_switch():
    network = TOPOLOGIES["dgx1"].make()

    def names(a, b):
        return [network.links[link].name for link in network.way(f"gpu{a}", f"gpu{b}").links]

    assert names(0, 3) == ["gpu0 > gpu3"]
    assert network.links[network.way("gpu0", "gpu3").links[0]].bandwidth_Bps == 40e9
    out, up, socket, down, into = names(0, 5)
    assert (out, into) == ("gpu0 PCIe out", "gpu5 PCIe in")
    assert socket.startswith("socket 0-19")
    assert up == names(1, 4)[1], "GPUs 0 and 1 are behind one switch"
    assert down == "switch 9 down"


def test_all_to_all_on_a_dgx1_goes_by_nvlink_where_links_are_known():
    stock, learned = (runs.simulate("dgx1", "all-to-all", way) for way in runs.WAYS)
    assert stock["relayed_nbytes"] == 0
    assert learned["relayed_nbytes"] >= 24 * 1024 * MIB, "at least the pairs that have no NVLink: 24 of 56"
    assert learned["seconds"] < 0.2 * stock["seconds"]


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("way", runs.WAYS)
def test_every_graph_ends_and_repeats_itself(graph, way):
    first, second = (runs.simulate("islands", graph, way, seed=5) for _ in range(2))
    assert first == second
    assert first["seconds"] > 0


def test_first_tasks_whose_results_are_combined_run_on_one_island():
    stock, learned = (runs.simulate("islands", "x + x.T", way) for way in runs.WAYS)
    assert learned["moved_nbytes"] < stock["moved_nbytes"] / 2


def test_large_values_are_learned_from_although_they_travel_in_pieces():
    network = switched("", {"a": 1, "b": 1}, 25e6)
    policy = Learned()
    cluster = Cluster(network, policy)
    for number in range(3):
        value = Task(f"value-{number}", 100 * MIB, worker="a.0")
        cluster.put([value])
        cluster.compute_all([Task(f"read-{number}", 8, 0, [value], worker="b.0")])
    known = policy.model.predict("a.0", "b.0", cluster.engine.now_s)
    assert known.source == "pair"
    assert known.seconds_per_byte == pytest.approx(1 / 25e6, rel=0.05)


def test_jobs_that_make_their_own_data_gain_on_the_labs_islands():
    stock, learned = ([lab.simulate("islands", way, seed=seed) for seed in range(5)] for way in runs.WAYS)
    for job in ("x + x.T", "tree reduce", "mixed"):
        with_learned, with_stock = (statistics.median(each[job] for each in found) for found in (learned, stock))
        assert with_learned < 0.6 * with_stock


def test_shuffles_of_many_are_staged():
    job = GRAPHS["shuffle"]([f"w{i}" for i in range(100)], Size(MIB, 1e9))
    assert len(job.tasks) == 100 + 2 * (100 + 10 * 100 + 100)
    last = [task for task in job.tasks if not task.dependents]
    reached = set(last[:1])
    for task in reversed(job.tasks):
        if task in reached:
            reached.update(task.dependencies)
    assert reached >= {task for task in job.tasks if not task.dependencies}, "each block has a part in each result"


def test_the_lab_is_held_against_what_was_measured():
    record = {
        "records": [
            {"scenario": "fanout", "title": "t", "runs": {"stock": [{"seconds": {"fan-out": [35.2, 35.3]}}]}},
            {"scenario": "uniform", "title": "not simulated", "runs": {"stock": [{"seconds": {"merge": [1.0]}}]}},
        ]
    }
    (row,) = lab.compare(record, seeds=1)
    assert (row.job, row.way, row.fitted) == ("fan-out", "stock", True)
    assert abs(row.off) < 0.02


def test_the_command_prints_and_writes(capsys, tmp_path):
    arguments = ["simulate", "islands", "--graphs", "broadcast,svd", "--charts", str(tmp_path)]
    assert _cli.main(arguments) == 0
    assert "learned/stock" in capsys.readouterr().out
    assert "two islands" in (tmp_path / "simulate-islands.svg").read_text()
    assert _cli.main(["simulate", "islands", "--graphs", "broadcast", "--ways", "stock", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    (entry,) = record["records"]
    assert {"cpu_model", "commit"} <= record["environment"].keys()
    assert entry["ways"]["stock"]["workers"] == 8
    (tmp_path / "empty.json").write_text('{"records": []}')
    capsys.readouterr()
    assert _cli.main(["simulate", "none", "--lab", str(tmp_path / "empty.json")]) == 2
    assert (
        "empty.json: none of its runs can be simulated; those of fanout, copies, pairs, kill, islands, there can\n"
        "weft simulate: nothing was simulated" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[1]", "not a record of weft bench links"),
        ('{"rows": 3}', "not a record of weft bench links"),
        ("print(1)", "not JSON (line 1, column 1)"),
        (None, "No such file or directory"),
    ],
)
def test_other_files_are_refused(text, why, tmp_path, capsys):
    file = tmp_path / "x.json"
    if text:
        file.write_text(text)
    assert _cli.main(["simulate", "none", "--lab", str(file)]) == 2
    assert capsys.readouterr().err == f"weft simulate: --lab {file}: {why}\n"


def test_what_never_ends_is_said():
    cluster = Cluster(switched("", {"h0": 1, "h1": 1}, 1e6), Policy())
    lost = Task("lost", 8, worker="h0.0")
    with pytest.raises(RuntimeError, match="1 of 2 tasks never end"):
        cluster.compute_all([Task("ends", 8), Task("never", 8, 0, [lost])])


def test_an_odd_one_is_added_once():
    job = GRAPHS["tree reduce"](["a", "b", "c"], Size(MIB, 1e9))
    assert len(job.tasks) == 6 + 5, "leaves and sums"
    assert len({task.key for task in job.tasks}) == 11


def test_neighbours_have_an_order():
    cluster = Cluster(switched("", {"h0": 9}, 1e6), Learned())
    assert list(cluster.policy.model.beside("h0.3")) == [f"h0.{i}" for i in range(9)]
