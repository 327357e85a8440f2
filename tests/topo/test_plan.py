# SPDX-License-Identifier: BSD-3-Clause
import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.machines import matrices, trees
from tests.machines.trees import GIB, two_sockets

import weft
from weft.topo import cpulist, discovery, nvidia_smi
from weft.topo.model import Allowed, Gpu
from weft.topo.plan import PlanOptions, plan


def cpus_of(made):
    return [cpulist.join(worker.cpus) for worker in made.workers]


def described(text):
    return nvidia_smi.topology(nvidia_smi.parse(text))


def with_gpus(topology, *gpus):
    return dataclasses.replace(topology, gpus=gpus)


@pytest.fixture
def sockets(tmp_path):
    return discovery.read(two_sockets(tmp_path))


@pytest.mark.parametrize(
    ("per", "cpus"),
    [
        ("numa", ["0-3,8-11", "4-7,12-15"]),
        ("l3", ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]),
        ("2", ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]),
        ("3", ["0-2,8-10", "4-6,12-14"]),
        ("4", ["0-3,8-11", "4-7,12-15"]),
    ],
)
def test_places(sockets, per, cpus):
    assert cpus_of(plan(sockets, PlanOptions(per))) == cpus


def test_a_number_of_cores_may_be_a_number(sockets):
    assert cpus_of(plan(sockets, PlanOptions(4))) == cpus_of(plan(sockets, PlanOptions("4")))


def test_cores_that_are_left_over_are_named(sockets):
    assert plan(sockets, PlanOptions("3")).notes == (
        "CPUs 3,11 of NUMA node 0 stay free: fewer than 3 cores are left there",
        "CPUs 7,15 of NUMA node 1 stay free: fewer than 3 cores are left there",
    )


def test_each_choice_has_its_reason(sockets):
    worker = plan(sockets, PlanOptions("numa")).workers[1]
    assert (worker.nodes, worker.threads, worker.memory_nbytes) == ((1,), 4, 32 * GIB)
    assert worker.transports == ("ring", "tcp")
    assert worker.env == {}
    assert worker.reasons == {
        "cpus": "those of a NUMA node",
        "nodes": "the node of its CPUs; preferred, not bound: a full node costs speed, not the process",
        "threads": "one for each core: the threads of a core share its units",
        "memory": "all of its NUMA node's",
        "nic": "no RDMA device; no network device is up: "
        "tcp takes the device of the worker's address, so none is named",
        "transports": "weft's ring on this host; tcp to other hosts",
    }


def test_what_slurm_withholds(tmp_path):
    """A job with three cores of one socket and a limit of memory, as cgroups and affinity tell it."""
    topology = discovery.read(two_sockets(tmp_path, allowed="1-3,9-11", mems="0"))
    topology = dataclasses.replace(topology, allowed=dataclasses.replace(topology.allowed, memory_nbytes=6 * GIB))
    made = plan(topology, PlanOptions("1"))
    assert cpus_of(made) == ["1,9", "2,10", "3,11"]
    assert {worker.memory_nbytes for worker in made.workers} == {2 * GIB}
    assert made.notes[0] == "CPUs: 1-3,9-11 of 0-15, by affinity"
    made = plan(topology, PlanOptions("numa"))
    assert cpus_of(made) == ["1-3,9-11"]
    assert made.workers[0].reasons["cpus"] == "those of a NUMA node, but for 0,8, which may not be used"
    assert made.notes[-1] == "numa1 gets no worker: none of its CPUs 4-7,12-15 may be used"


def test_memory_on_a_node_that_is_not_allowed_is_not_asked_for(tmp_path):
    made = plan(discovery.read(two_sockets(tmp_path, mems="0")), PlanOptions("numa"))
    assert [worker.nodes for worker in made.workers] == [(0,), ()]
    assert made.workers[1].reasons["nodes"] == "node 1 may not be used"
    assert [worker.memory_nbytes for worker in made.workers] == [16 * GIB, 16 * GIB], "the two share node 0's"
    assert made.workers[0].reasons["memory"] == "1/2 of the NUMA nodes' that may be used"


def test_a_quota_of_cpu_time_bounds_threads(sockets):
    topology = dataclasses.replace(sockets, allowed=Allowed(tuple(range(16)), (0, 1), cpu_quota=5.0))
    workers = plan(topology, PlanOptions("numa")).workers
    assert [worker.threads for worker in workers] == [2, 2]
    assert workers[0].reasons["threads"] == "the quota of 5 CPUs over 2 workers, rounded down"


def test_a_quota_for_fewer_workers_than_places_leaves_places_free(sockets):
    topology = dataclasses.replace(sockets, allowed=Allowed(tuple(range(16)), (0, 1), cpu_quota=2.5))
    made = plan(topology, PlanOptions("l3"))
    assert [worker.threads for worker in made.workers] == [1, 1]
    assert made.notes[-1] == "2 of 4 places are left free: the CPU quota allows no more; --workers overrides it"
    assert len(plan(topology, PlanOptions("l3", workers=4)).workers) == 4
    assert len(plan(dataclasses.replace(topology, allowed=Allowed((0,), (0,), 0.5)), PlanOptions("1")).workers) == 1


def test_what_is_asked_for_wins(sockets):
    made = plan(sockets, PlanOptions("l3", workers=3, threads=7, memory_nbytes=123))
    assert [(worker.threads, worker.memory_nbytes) for worker in made.workers] == [(7, 123)] * 3
    assert {worker.reasons["memory"] for worker in made.workers} == {"asked for"}
    assert made.notes[-1] == "1 of 4 places are left free: fewer workers were requested"


def test_more_memory_than_the_machine_has_is_said(sockets):
    has = dataclasses.replace(sockets, memory_nbytes=24 * GIB)
    made = plan(has, PlanOptions("l3", memory_nbytes=99 << 40))
    assert {worker.reasons["memory"] for worker in made.workers} == {"asked for; this machine has 24 GiB"}


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (PlanOptions("gpu"), "no GPU found"),
        (PlanOptions("5"), "no place for a worker: CPUs 0-3,8-11 of NUMA node 0 stay free"),
        (PlanOptions("0"), "gpu, numa, l3 or a number of cores"),
        (PlanOptions("socket"), "gpu, numa, l3 or a number of cores"),
        (PlanOptions("²"), "gpu, numa, l3 or a number of cores"),
        (PlanOptions("numa", workers=3), "3 workers, but only 2 fit, one per numa: ask for fewer"),
    ],
)
def test_what_cannot_be_is_refused(sockets, request_, why):
    with pytest.raises(weft.InvalidParamError, match=r"^plan") as caught:
        plan(sockets, request_)
    assert why in str(caught.value)


def test_no_l3_is_said(tmp_path):
    with pytest.raises(weft.InvalidParamError, match="no L3 cache"):
        plan(discovery.read(two_sockets(tmp_path, l3=False)), PlanOptions("l3"))


def test_dgx_1_by_its_matrix():
    """The lists that were pinned by hand for it left out CPU 79, and gave GPU2 a NIC of the other socket."""
    made = plan(described(matrices.DGX_1), PlanOptions("gpu"))
    assert cpus_of(made) == ["0-19,40-59"] * 4 + ["20-39,60-79"] * 4
    assert [worker.nic for worker in made.workers] == ["ib0", "ib0", "ib2", "ib2", "ib1", "ib1", "ib3", "ib3"]
    assert made.workers[2].env == {"CUDA_VISIBLE_DEVICES": "2,3,4,5,6,7,0,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert made.workers[4].reasons["cpus"] == "beside its GPU; GPU4, GPU5, GPU6, GPU7 share them"
    assert {worker.threads for worker in made.workers} == {1}


def test_a_matrix_plans_gpus_only():
    with pytest.raises(weft.InvalidParamError, match="shows CPUs only by GPU"):
        plan(described(matrices.ND40), PlanOptions("numa"))


def test_h100_by_its_matrix():
    made = plan(described(matrices.H100), PlanOptions("gpu"))
    assert [worker.nic for worker in made.workers] == ["mlx5_0", "mlx5_0", "mlx5_bond_0", "mlx5_bond_0"]
    assert [worker.nodes for worker in made.workers] == [(0,), (0,), (1,), (1,)]


def test_cuda_visible_devices_restricts_and_orders(sockets):
    topology = with_gpus(sockets, *(Gpu(f"GPU{i}", i, uuid=f"GPU-{i}", node=0, cpus=(0, 1)) for i in range(4)))
    made = plan(topology, PlanOptions("gpu", gpus=("3", "GPU-1")))
    assert [worker.env["CUDA_VISIBLE_DEVICES"] for worker in made.workers] == ["3,GPU-1", "GPU-1,3"]
    made = plan(topology, PlanOptions("gpu", gpus=("2", "NoDevFiles", "0")))
    assert [worker.env["CUDA_VISIBLE_DEVICES"] for worker in made.workers] == ["2"]
    with pytest.raises(weft.InvalidParamError, match="names '7', which is not here"):
        plan(topology, PlanOptions("gpu", gpus=("7",)))


def test_uuids_and_their_beginnings(sockets):
    topology = with_gpus(sockets, *(Gpu(f"GPU{i}", i, uuid=f"GPU-{i}a7c-41", node=0) for i in range(2)))
    assert [w.gpu for w in plan(topology, PlanOptions("gpu", gpus=("GPU-1a7c", "0"))).workers] == ["GPU-1a7c", "0"]
    with pytest.raises(weft.InvalidParamError, match="names 'GPU-9', which is not here"):
        plan(topology, PlanOptions("gpu", gpus=("GPU-9",)))
    with pytest.raises(weft.InvalidParamError, match="names 'GPU-9', and UUIDs need nvidia-ml-py"):
        plan(with_gpus(sockets, Gpu("GPU0", 0, node=0)), PlanOptions("gpu", gpus=("GPU-9",)))


def test_a_worker_for_each_mig_instance_and_no_cuda_ipc(sockets):
    topology = with_gpus(sockets, Gpu("GPU0", 0, node=0, mig=("MIG-a", "MIG-b")), Gpu("GPU1", 1, node=1))
    first, second, whole = plan(topology, PlanOptions("gpu")).workers
    assert [w.env["CUDA_VISIBLE_DEVICES"] for w in (first, second, whole)] == ["MIG-a", "MIG-b", "1"]
    assert first.transports == ("posix", "cuda_copy", "tcp")
    assert "cuda_ipc" in whole.transports
    assert cpus_of(plan(topology, PlanOptions("gpu", gpus=("MIG-b",)))) == ["0-3,8-11"]


def test_a_gpu_whose_cpus_may_not_be_used_gets_the_others(tmp_path):
    topology = with_gpus(discovery.read(two_sockets(tmp_path, allowed="4-5")), Gpu("GPU0", 0, node=0, cpus=(0, 1)))
    made = plan(topology, PlanOptions("gpu"))
    assert cpus_of(made) == ["4-5"]
    assert made.workers[0].reasons["cpus"] == "none of those beside GPU0 (0-1) may be used: all that may"


def test_the_nearest_rdma_device_that_is_up(tmp_path):
    two_sockets(tmp_path)
    trees.rdma(tmp_path, "mlx5_0", "pci0000:00/0000:01:00.0", node=0, ports=[("1: DOWN", "10 Gb/sec")])
    trees.rdma(tmp_path, "mlx5_1", "pci0000:00/0000:02:00.0", node=0, ports=[("1: DOWN", ""), ("4: ACTIVE", "")])
    trees.rdma(tmp_path, "mlx5_2", "pci0000:80/0000:81:00.0", node=1)
    trees.netdev(tmp_path, "eth0", "pci0000:00/0000:03:00.0")
    topology = discovery.read(tmp_path)
    made = plan(topology, PlanOptions("numa"))
    assert [worker.env["UCX_NET_DEVICES"] for worker in made.workers] == ["mlx5_1:2,eth0", "mlx5_2:1,eth0"]
    assert made.workers[0].reasons["nic"] == "the nearest that is up (same NUMA); beside it eth0 for tcp"
    assert made.workers[0].transports == ("ring", "rc", "tcp")
    made = plan(topology, PlanOptions("numa", interface="ib7", towards="eth1"))
    assert made.workers[1].env["UCX_NET_DEVICES"] == "mlx5_2:1,ib7"


def test_tcp_beside_rdma_keeps_to_the_way_to_the_scheduler(tmp_path):
    """UCX's tcp would listen on every device that is named."""
    two_sockets(tmp_path)
    trees.rdma(tmp_path, "mlx5_0", "pci0000:00/0000:01:00.0", node=0)
    for i in range(2):
        trees.netdev(tmp_path, f"eth{i}", f"pci0000:00/0000:02:00.{i}")
    topology = discovery.read(tmp_path)
    assert plan(topology, PlanOptions("numa")).workers[0].env == {"UCX_NET_DEVICES": "mlx5_0:1,eth0,eth1"}
    worker = plan(topology, PlanOptions("numa", towards="eth1")).workers[0]
    assert worker.env == {"UCX_NET_DEVICES": "mlx5_0:1,eth1"}
    assert worker.reasons["nic"].endswith("; beside it eth1 for tcp, the way to the scheduler")
    assert worker.interface is None


def test_workers_share_equally_near_nics(tmp_path):
    two_sockets(tmp_path)
    for i in range(2):
        trees.rdma(tmp_path, f"mlx5_{i}", f"pci0000:00/0000:0{i}:00.0", node=0)
    workers = plan(discovery.read(tmp_path), PlanOptions("1")).workers
    assert [worker.nic for worker in workers] == ["mlx5_0", "mlx5_1"] * 4


def test_rdma_devices_of_one_network(tmp_path):
    """A worker with RoCE would not reach one with InfiniBand, though it lies nearer."""
    two_sockets(tmp_path)
    trees.rdma(tmp_path, "mlx5_0", "pci0000:00/0000:01:00.0", node=0)
    trees.rdma(tmp_path, "mlx5_1", "pci0000:80/0000:81:00.0", node=1, layer="Ethernet")
    made = plan(discovery.read(tmp_path), PlanOptions("numa"))
    assert [worker.nic for worker in made.workers] == ["mlx5_0", "mlx5_0"]
    assert made.notes == ("mlx5_1 (RoCE) gets no worker: one with it would not reach those with InfiniBand",)


def test_amazons_devices_have_a_transport_of_their_own(tmp_path):
    two_sockets(tmp_path)
    trees.rdma(tmp_path, "rdmap0s6", "pci0000:00/0000:00:06.0", node=0, layer="Unspecified", driver="efa")
    worker = plan(discovery.read(tmp_path), PlanOptions("numa")).workers[0]
    assert worker.env == {"UCX_NET_DEVICES": "rdmap0s6:1"}
    assert worker.transports == ("ring", "srd", "tcp")


def test_what_ucx_does_not_use_is_not_named(tmp_path):
    two_sockets(tmp_path)
    trees.rdma(tmp_path, "irdma0", "pci0000:00/0000:00:06.0", node=0, layer="Ethernet", kind="4: RNIC")
    worker = plan(discovery.read(tmp_path), PlanOptions("numa")).workers[0]
    assert (worker.nic, worker.env, worker.transports) == (None, {}, ("ring", "tcp"))


def test_tcp_has_the_bond_and_not_what_is_in_it(tmp_path):
    two_sockets(tmp_path)
    trees.rdma(tmp_path, "mlx5_0", "pci0000:00/0000:01:00.0", node=0)
    for i in range(2):
        trees.netdev(tmp_path, f"eth{i}", f"pci0000:00/0000:02:00.{i}")
        (tmp_path / f"sys/class/net/eth{i}/master").symlink_to("../bond0")
    net = "sys/class/net/bond0"
    trees.write(tmp_path, {f"{net}/operstate": "up", f"{net}/uevent": "DEVTYPE=bond\nINTERFACE=bond0"})
    worker = plan(discovery.read(tmp_path), PlanOptions("numa")).workers[0]
    assert worker.env == {"UCX_NET_DEVICES": "mlx5_0:1,bond0"}


def test_no_nic_is_named_when_none_is_up(tmp_path):
    two_sockets(tmp_path)
    trees.rdma(tmp_path, "mlx5_0", "pci0000:00/0000:01:00.0", node=0, ports=[("1: DOWN", "10 Gb/sec")])
    worker = plan(discovery.read(tmp_path), PlanOptions("numa")).workers[0]
    assert (worker.nic, worker.env) == (None, {})
    assert worker.reasons["nic"].startswith("no RDMA port is up (mlx5_0); no network device is up: ")


@given(st.sets(st.integers(0, 15), min_size=1), st.integers(1, 5))
def test_workers_never_overlap_nor_leave_what_is_allowed(tmp_path_factory, allowed, cores):
    topology = _sockets(tmp_path_factory, allowed)
    try:
        made = plan(topology, PlanOptions(str(cores)))
    except weft.InvalidParamError:
        return
    given_out = [cpu for worker in made.workers for cpu in worker.cpus]
    assert len(given_out) == len(set(given_out))
    assert set(given_out) <= allowed
    for worker in made.workers:
        assert len({cpu % 8 for cpu in worker.cpus}) == cores == worker.threads
        assert len({cpu % 8 // 4 for cpu in worker.cpus}) == 1


def _sockets(tmp_path_factory, allowed, made=[]):  # noqa: B006 - the tree is written once
    if not made:
        made.append(discovery.read(two_sockets(tmp_path_factory.mktemp("sockets"))))
    return dataclasses.replace(made[0], allowed=Allowed(tuple(sorted(allowed)), (0, 1)))


@pytest.mark.parametrize("number", [0, -2, "2", 1.5])
@pytest.mark.parametrize("what", ["workers", "threads"])
def test_numbers_that_are_none_are_refused(what, number, tmp_path):
    machine = discovery.read(two_sockets(tmp_path))
    with pytest.raises(weft.InvalidParamError, match=f"{number!r} {what}: at least 1 is needed"):
        plan(machine, PlanOptions("numa", **{what: number}))
