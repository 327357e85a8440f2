# SPDX-License-Identifier: BSD-3-Clause
"""Workers where the plan puts them. What is asserted is read from the kernel, of every thread."""

import contextlib
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
from distributed import Client

import weft
from weft.dask import TopologyCluster
from weft.topo import cpulist, discovery
from weft.topo.model import Allowed, Cpu, Gpu, Nic, NumaNode, Port, Topology

QUIET = {"dashboard_address": None, "silence_logs": 40}


def allowed_lists(pid):
    """Read which CPUs each thread of the process may use."""
    status = [(task / "status").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return [line.split()[1] for text in status for line in text.splitlines() if line.startswith("Cpus_allowed_list")]


def pids_of(client):
    return client.run(os.getpid)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_every_thread_of_each_worker_is_on_its_core():
    topology = discovery.read()
    with TopologyCluster("1", n_workers=2, **QUIET) as cluster, Client(cluster) as client:
        client.wait_for_workers(2, timeout=100)
        assert sorted(client.gather(client.map(lambda i: i * i, range(8)))) == [i * i for i in range(8)]
        places = client.run(lambda dask_worker: dask_worker.name)
        for address, pid in pids_of(client).items():
            assert address.startswith("ucx://")
            expected = cpulist.join(cluster.layout.workers[int(places[address])].cpus)
            lists = allowed_lists(pid)
            assert len(lists) >= 3
            assert set(lists) == {expected}
        assert cluster.layout.workers[0].cpus != cluster.layout.workers[1].cpus
        assert set(client.nthreads().values()) == {1}
    assert os.sched_getaffinity(0) == set(topology.allowed.cpus)


@contextlib.asynccontextmanager
async def not_started(**options):
    """Make a cluster whose workers are described and not started."""
    cluster = TopologyCluster(asynchronous=True, **QUIET, **options)
    yield [entry["options"] for entry in cluster.worker_spec.values()]
    await cluster.close()


CPU_MACHINE = Topology(
    ("made up",),
    cpus=tuple(Cpu(i, i, i // 2, i // 2, None) for i in range(4)),
    nodes=(NumaNode(0, (0, 1), 2**30), NumaNode(1, (2, 3), 2**30)),
    allowed=Allowed((0, 1, 2, 3), (0, 1)),
    memory_nbytes=2**31,
)


async def test_options_become_those_of_the_nannies():
    asked = {"threads_per_worker": 3, "memory_limit": "64 MiB", "interface": "lo"}
    async with not_started(topology=CPU_MACHINE, **asked) as workers:
        assert workers[1]["env"] == {"WEFT_CPUS": "2-3", "WEFT_MEMORY_NODES": "1"}
        assert (workers[1]["nthreads"], workers[1]["memory_limit"]) == (3, 2**26)
        assert (workers[1]["interface"], workers[1]["host"]) == ("lo", None)
        assert workers[1]["preload"] == ["weft.dask.place"]
    async with not_started(topology=CPU_MACHINE) as workers:
        assert [(worker["host"], worker["nthreads"], worker["memory_limit"]) for worker in workers] == [
            ("127.0.0.1", 2, 2**30),
            ("127.0.0.1", 2, 2**30),
        ]


@pytest.mark.parametrize(
    ("asked", "limit"),
    [
        ("auto", 2**30),
        (0.5, 2**30),
        ("0.25", 2**29),
        (1, 2**31),
        (None, 0),
        (0, 0),
        ("0", 0),
        ("4GiB", 2**32),
        (2**27, 2**27),
    ],
)
async def test_memory_limits_are_dasks(asked, limit):
    async with not_started(topology=CPU_MACHINE, memory_limit=asked) as workers:
        assert [worker["memory_limit"] for worker in workers] == [limit] * 2


async def test_options_that_local_cuda_cluster_has_too():
    asked = {"pre_import": "json, csv", "worker_dashboard_address": ":0", "env": {"OMP_NUM_THREADS": "1"}}
    async with not_started(topology=CPU_MACHINE, scheduler_port=0, **asked) as workers:
        assert workers[0]["preload"] == ["weft.dask.place", "json", "csv"]
        assert workers[0]["env"] == {"WEFT_CPUS": "0-1", "WEFT_MEMORY_NODES": "0", "OMP_NUM_THREADS": "1"}
        assert (workers[0]["dashboard"], workers[0]["dashboard_address"]) == (True, ":0")
    defaults = {"rmm_pool_size": None, "rmm_async": False, "enable_cudf_spill": False, "cudf_spill_stats": 0}
    async with not_started(topology=CPU_MACHINE, **defaults) as workers:
        assert workers[0]["dashboard"] is False


def test_options_that_have_no_meaning_here_are_refused_with_the_reason():
    with pytest.raises(weft.InvalidParamError, match=r"\(rmm_pool_size='24GB'\) .*: weft sets no RMM up"):
        TopologyCluster(rmm_pool_size="24GB", **QUIET)
    with pytest.raises(weft.InvalidParamError, match="UCX chooses its transports itself"):
        TopologyCluster(enable_nvlink=True, **QUIET)
    with pytest.raises(weft.InvalidParamError, match="UCX chooses its transports itself"):
        TopologyCluster(enable_nvlink=False, **QUIET)
    with pytest.raises(weft.InvalidParamError, match="weft spills no device memory"):
        TopologyCluster(log_spilling=True, **QUIET)
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        TopologyCluster(colour="red", **QUIET)


async def test_gpus_by_number_and_by_the_variable(monkeypatch):
    gpus = tuple(Gpu(f"GPU{i}", i, cpus=(0, 1), node=0) for i in range(3))
    topology = dataclasses.replace(CPU_MACHINE, gpus=gpus)
    async with not_started(topology=topology) as workers:
        assert [worker["env"]["CUDA_VISIBLE_DEVICES"] for worker in workers] == ["0,1,2", "1,2,0", "2,0,1"]
    async with not_started(topology=topology, CUDA_VISIBLE_DEVICES=[2, 0]) as workers:
        assert [worker["env"]["CUDA_VISIBLE_DEVICES"] for worker in workers] == ["2,0", "0,2"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    async with not_started(topology=topology) as workers:
        assert [worker["env"]["CUDA_VISIBLE_DEVICES"] for worker in workers] == ["1"]


async def test_the_users_ucx_variables_stay(monkeypatch):
    nic = Nic("mlx5_0", "infiniband", 0, (Port(1, True, "active", 2e11),))
    topology = dataclasses.replace(CPU_MACHINE, nics=(nic,))
    async with not_started(topology=topology) as workers:
        assert [worker["env"]["UCX_NET_DEVICES"] for worker in workers] == ["mlx5_0:1"] * 2
    monkeypatch.setenv("UCX_NET_DEVICES", "eth7")
    async with not_started(topology=topology) as workers:
        assert ["UCX_NET_DEVICES" in worker["env"] for worker in workers] == [False, False]


async def test_scaling_takes_the_places_that_are_free():
    cluster = TopologyCluster(asynchronous=True, topology=CPU_MACHINE, **QUIET)
    with pytest.raises(weft.InvalidParamError, match="2 places for workers, and all are taken"):
        cluster.new_worker_spec()
    entry = cluster.worker_spec.pop(0)
    assert cluster.new_worker_spec() == {2: entry}  # a name of its own: the former worker may still be closing
    assert cluster.new_worker_spec() == {3: entry}  # nobody took the first
    await cluster.close()


@pytest.mark.parametrize(
    ("asked", "workers", "told"),
    [
        ({"n": 1}, 1, []),
        ({"cores": 2}, 1, []),
        ({"cores": 3}, 2, []),
        ({"memory": "1.5 GiB"}, 2, []),
        ({"n": 3}, 2, ["scale: 3 workers requested, but the plan has only 2 places"]),
        ({"cores": 9}, 2, ["scale: 5 workers requested, but the plan has only 2 places"]),
    ],
)
async def test_scaling_ends_where_the_places_do(asked, workers, told, monkeypatch, caplog):
    cluster = TopologyCluster(asynchronous=True, topology=CPU_MACHINE, dashboard_address=None, silence_logs=False)
    monkeypatch.setattr(cluster, "_correct_state", lambda: None)  # nobody is started
    cluster.worker_spec.clear()
    cluster.scale(**asked)
    assert len(cluster.worker_spec) == workers
    assert caplog.messages == told
    cluster.worker_spec.clear()
    await cluster.close()


@pytest.mark.parametrize("limit", [0, None, "auto"])
async def test_workers_without_a_limit_are_not_counted_by_memory(limit):
    unknown = dataclasses.replace(CPU_MACHINE, memory_nbytes=None, nodes=())
    cluster = TopologyCluster(asynchronous=True, topology=unknown, memory_limit=limit, **QUIET)
    for how in (
        lambda: cluster.scale(memory="1 GiB"),
        lambda: cluster.adapt(minimum_memory="1 GiB"),
        lambda: cluster.adapt(maximum_memory="1 GiB"),
    ):
        with pytest.raises(weft.InvalidParamError, match=r"no memory limit.* give a number of workers, or cores"):
            how()
    await cluster.close()


async def test_adapting_ends_where_the_places_do():
    cluster = TopologyCluster(asynchronous=True, topology=CPU_MACHINE, **QUIET)
    adaptive = cluster.adapt(minimum=1, maximum=8, interval="1h")
    assert (adaptive.minimum, adaptive.maximum) == (1, 2)
    adaptive = cluster.adapt(minimum=8, interval="1h")
    assert (adaptive.minimum, adaptive.maximum) == (2, 2)
    adaptive = cluster.adapt(maximum_cores=2, interval="1h")
    assert (adaptive.minimum, adaptive.maximum) == (0, 1)
    await cluster.close()


@pytest.mark.parametrize("count", [0, -1])
def test_no_worker_at_all_is_refused(count):
    with pytest.raises(weft.InvalidParamError, match=f"{count} workers"):
        TopologyCluster("numa", n_workers=count, topology=CPU_MACHINE, **QUIET)


def test_more_workers_than_places_are_refused():
    with pytest.raises(weft.InvalidParamError, match="99 workers"):
        TopologyCluster("numa", n_workers=99, **QUIET)


def test_importing_the_comm_does_not_import_the_cluster():
    """distributed loads the comm while it is itself half imported, and the cluster needs all of it."""
    code = "import weft.dask.comm, sys; assert 'weft.dask.cluster' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


def test_the_package_has_no_other_names():
    with pytest.raises(AttributeError, match="no attribute 'Cluster'"):
        weft.dask.Cluster  # noqa: B018
