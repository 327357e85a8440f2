# SPDX-License-Identifier: BSD-3-Clause
"""Where to place workers: a pure function of a topology and options, with a reason for each choice.

Nothing is read, set or started here. The CPUs of a worker are neighbours: first the places (those near a GPU, a NUMA
node, an L3 group, some cores) are cut out of the part that may be used; the rest follows from the place.

Two choices that others make differently:

- GPUs beside the same CPUs share them, as with dask-cuda: such a worker computes on its GPU, and threads that
  feed different GPUs seldom work at once. No other workers share CPUs.
- Memory is *preferred* on the node, not bound to it: a full node then costs speed, and does not kill the process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from weft._units import format_nbytes
from weft.errors import InvalidParamError
from weft.topo import cpulist, network
from weft.topo.model import Cpu, Gpu, Topology
from weft.topo.options import PlanOptions, is_device


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """One worker of a plan.

    If `cpus` is empty, the worker is not bound; if `nodes` is empty, the kernel's memory policy does not change.
    `memory_nbytes` is 0 without a limit, and None if the machine's memory is not known. `interface` is the network
    device of the worker's address, if one was requested. `transports` has weft's ring, and those that UCX can choose
    from. `env` has the variables for the worker's environment, and `reasons` one entry for each choice.
    """

    name: str
    place: str
    cpus: tuple[int, ...]
    nodes: tuple[int, ...]
    threads: int
    memory_nbytes: int | None
    gpu: str | None
    nic: str | None
    transports: tuple[str, ...]
    env: Mapping[str, str]
    reasons: Mapping[str, str]
    interface: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The workers, and notes on the parts of the machine that are not used, with the reasons."""

    workers: tuple[WorkerPlan, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Place:
    name: str
    cpus: tuple[int, ...]
    node: int | None
    why: str
    gpu: Gpu | None = None
    device: str | None = None  # the device that CUDA numbers first


def plan(topology: Topology, options: PlanOptions) -> Plan:
    """Plan the workers for `topology`. A pure function: it reads, sets and starts nothing.

    Parameters
    ----------
    topology : Topology
        From :func:`weft.topo.discovery.read`.
    options : PlanOptions

    Returns
    -------
    Plan

    Raises
    ------
    InvalidParamError
        The machine has no such places, or none that this process may use.
    """
    refuse_place(options.per)
    for what, number in (("workers", options.workers), ("threads", options.threads)):
        whole = isinstance(number, int)  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
        if number is not None and not (whole and number > 0):
            raise InvalidParamError(f"plan: {number!r} {what}: at least 1 is needed")
    notes = list(topology.allowed.why) if topology.allowed else []
    if options.per == "gpu":
        places = _gpu_places(topology, options)
    elif not topology.cpus:
        why = "the kernel's list of CPUs cannot be read (/sys/devices/system/cpu)"
        if topology.gpus:
            why = "the text of nvidia-smi shows CPUs only by GPU: plan per gpu"
        raise InvalidParamError(f"plan per {options.per}: {why}")
    elif options.per in ("numa", "l3"):
        places = _whole_places(topology, options.per, notes)
    else:
        places = _core_places(topology, int(options.per), notes)
    if not places:
        what = "; ".join(notes) or "none there"
        raise InvalidParamError(f"plan per {options.per}: no place for a worker: {what}")
    quota = topology.allowed.cpu_quota if topology.allowed else None
    if options.workers is None and options.per != "gpu" and quota is not None and quota < len(places):
        fed = max(1, int(quota))
        if fed < len(places):
            notes.append(
                f"{len(places) - fed} of {len(places)} places are left free: "
                "the CPU quota allows no more; --workers overrides it"
            )
        places = places[:fed]
    elif options.workers is not None and options.workers < len(places):
        notes.append(
            f"{len(places) - options.workers} of {len(places)} places are left free: fewer workers were requested"
        )
        places = places[: options.workers]
    elif options.workers is not None and options.workers > len(places):
        fit = f"only {len(places)} {'fits' if len(places) == 1 else 'fit'}"
        per = str(options.per)
        per = f"{per} core{'s' * (per != '1')}" if per.isdecimal() else per
        raise InvalidParamError(f"plan: {options.workers} workers, but {fit}, one per {per}: ask for fewer")
    notes += network.left_out(topology)
    nics = network.choose(topology, [(place.gpu.name if place.gpu else None, place.node) for place in places])
    interfaces = network.interfaces(topology, options.interface, nics, [place.node for place in places])
    workers = [_worker(topology, options, places, i, nics[i], interfaces[i]) for i in range(len(places))]
    return Plan(tuple(workers), tuple(notes))


def refuse_place(per: str | int) -> None:
    """Raise for what is no place for a worker on any machine.

    Raises
    ------
    InvalidParamError
        `per` is none of ``gpu``, ``numa`` and ``l3``, and no number from 1 up.
    """
    if per not in ("gpu", "numa", "l3") and not (str(per).isdecimal() and int(per)):
        raise InvalidParamError(f"plan per {per!r}: write gpu, numa, l3 or a number of cores")


def _usable(topology: Topology) -> list[Cpu]:
    may = set(topology.allowed.cpus) if topology.allowed else {cpu.id for cpu in topology.cpus}
    return [cpu for cpu in topology.cpus if cpu.id in may]


def _gpu_places(topology: Topology, options: PlanOptions) -> list[_Place]:
    if not topology.gpus:
        raise InvalidParamError("plan per gpu: no GPU found; plan per numa, l3 or a number of cores")
    may = {cpu.id for cpu in _usable(topology)}
    places: list[_Place] = []
    for gpu, device in _devices(topology.gpus, options.gpus):
        near = gpu.cpus or tuple(cpu.id for cpu in topology.cpus if cpu.node == gpu.node)
        cpus = tuple(cpu for cpu in near if cpu in may) if topology.cpus else near
        why = "beside its GPU" + _sharing(gpu, topology.gpus)
        if near and not cpus:
            cpus, why = (
                tuple(sorted(may)),
                f"none of those beside {gpu.name} ({cpulist.join(near)}) may be used: all that may",
            )
        elif not near:
            cpus, why = tuple(sorted(may)), f"the CPUs nearest to {gpu.name} are not known: all that may be used"
        elif len(cpus) < len(near):
            why += f"; {cpulist.join(set(near) - set(cpus))} may not be used"
        places.append(_Place(gpu.name, cpus, gpu.node, why, gpu, device))
    return places


def _sharing(gpu: Gpu, gpus: tuple[Gpu, ...]) -> str:
    names = [other.name for other in gpus if other.cpus == gpu.cpus]
    return f"; {', '.join(names)} share them" if len(names) > 1 or len(gpu.mig) > 1 else ""


def _devices(gpus: tuple[Gpu, ...], wanted: tuple[str, ...] | None) -> Iterator[tuple[Gpu, str]]:
    """List the GPUs, or their MIG instances, with CUDA's name for each."""
    all_of = [(gpu, device) for gpu in gpus for device in (gpu.mig or (str(gpu.index),))]
    if wanted is None:
        yield from all_of
        return
    for name in wanted:
        if not is_device(name):
            return
        found = [(g, device) for g, device in all_of if name in (device, str(g.index)) or _begins(g.uuid, name)]
        if not found:
            why = "which is not here" if name.isdecimal() or all_of[0][0].uuid else "and UUIDs need nvidia-ml-py"
            raise InvalidParamError(f"plan per gpu: CUDA_VISIBLE_DEVICES names {name!r}, {why}")
        yield from ((g, device if g.mig else name) for g, device in found)


def _begins(uuid: str | None, name: str) -> bool:
    return uuid is not None and name.startswith("GPU-") and uuid.startswith(name)


def _whole_places(topology: Topology, per: str, notes: list[str]) -> list[_Place]:
    """Use whole NUMA nodes or L3 groups."""
    groups: dict[int, list[Cpu]] = {}
    places: list[_Place] = []
    for cpu in topology.cpus:
        key = cpu.node if per == "numa" else cpu.l3
        if key is None:
            raise InvalidParamError(
                "plan per l3: the kernel shows no L3 cache here; plan per numa or a number of cores"
            )
        groups.setdefault(key, []).append(cpu)
    may = {cpu.id for cpu in _usable(topology)}
    for i, (key, cpus) in enumerate(sorted(groups.items())):
        name = f"numa{key}" if per == "numa" else f"l3-{i}"
        ids = tuple(cpu.id for cpu in cpus)
        left = tuple(cpu for cpu in ids if cpu in may)
        if not left:
            notes.append(f"{name} gets no worker: none of its CPUs {cpulist.join(ids)} may be used")
            continue
        what = "those of a NUMA node" if per == "numa" else "those that share an L3"
        why = what if left == ids else f"{what}, but for {cpulist.join(set(ids) - set(left))}, which may not be used"
        places.append(_Place(name, left, cpus[0].node, why))
    return places


def _core_places(topology: Topology, cores: int, notes: list[str]) -> list[_Place]:
    """Cut groups of `cores` whole cores out of each NUMA node, along its L3 groups."""
    nodes: dict[int, dict[int, list[Cpu]]] = {}
    for cpu in sorted(_usable(topology), key=lambda c: (c.node, c.l3 or 0, c.core, c.id)):
        nodes.setdefault(cpu.node, {}).setdefault(cpu.core, []).append(cpu)
    places: list[_Place] = []
    for node, by_core in nodes.items():
        bunches = list(by_core.values())
        for first in range(0, len(bunches) - cores + 1, cores):
            taken = [cpu for bunch in bunches[first : first + cores] for cpu in bunch]
            together = len({cpu.l3 for cpu in taken}) == 1 and taken[0].l3 is not None
            why = f"{cores} {'core' if cores == 1 else 'cores'} of a NUMA node" + ", of one L3" * together
            places.append(_Place(f"cores{len(places)}", tuple(sorted(cpu.id for cpu in taken)), node, why))
        if rest := bunches[len(bunches) - len(bunches) % cores :]:
            idle = cpulist.join(cpu.id for bunch in rest for cpu in bunch)
            notes.append(f"CPUs {idle} of NUMA node {node} stay free: fewer than {cores} cores are left there")
    return places


def _worker(
    topology: Topology, options: PlanOptions, places: list[_Place], i: int, nic: network.Choice, interface: str | None
) -> WorkerPlan:
    place = places[i]
    reasons = {"cpus": place.why}
    nodes, reasons["nodes"] = _nodes(topology, place)
    threads, reasons["threads"] = _threads(topology, options, place, len(places))
    memory, reasons["memory"] = _memory(topology, options, place, places)
    env: dict[str, str] = {}
    if place.gpu:
        devices, reasons["gpu"] = _visible(places, i)
        env["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    ports, reasons["nic"] = nic.net_devices(interface, options.towards)
    if ports:
        env["UCX_NET_DEVICES"] = ",".join(ports)
    rdma = nic.nic.kind if nic.nic and ports else None
    transports, reasons["transports"] = _transports(place, rdma, sees_gpus=bool(topology.gpus))
    name, device = nic.name, place.device
    if interface != options.interface:
        reasons["interface"] = f"of those that begin with {options.interface}, the nearest that is up"
    return WorkerPlan(
        str(i), place.name, place.cpus, nodes, threads, memory, device, name, transports, env, reasons, interface
    )


def _nodes(topology: Topology, place: _Place) -> tuple[tuple[int, ...], str]:
    with_memory = [node.id for node in topology.nodes if node.memory_nbytes]
    if place.node is None:
        return (), "the NUMA node is not known"
    if topology.nodes and len(with_memory) <= 1:
        return (), "one NUMA node has all the memory: nothing to choose"
    if topology.allowed and place.node not in topology.allowed.nodes:
        return (), f"node {place.node} may not be used"
    if topology.nodes and place.node not in with_memory:
        return (), f"node {place.node} has no memory of its own"
    return (place.node,), "the node of its CPUs; preferred, not bound: a full node costs speed, not the process"


def _threads(topology: Topology, options: PlanOptions, place: _Place, workers: int) -> tuple[int, str]:
    if options.threads is not None:
        return options.threads, "asked for"
    if place.gpu:
        return 1, "one: its work runs on the GPU"
    cores = len({cpu.core for cpu in topology.cpus if cpu.id in place.cpus})
    quota = topology.allowed.cpu_quota if topology.allowed else None
    if quota is not None and quota / workers < cores:
        over = f" over {workers} workers" if workers > 1 else ""
        least = ", but at least 1" if quota < workers else ""
        return max(1, int(quota / workers)), f"the quota of {quota:g} CPUs{over}, rounded down{least}"
    if len(place.cpus) <= cores:
        return cores, "one for each core"
    return cores, "one for each core: the threads of a core share its units"


def _memory(topology: Topology, options: PlanOptions, place: _Place, places: list[_Place]) -> tuple[int | None, str]:
    if options.memory_nbytes is not None:
        why, have = "asked for", topology.memory_nbytes
        if have is not None and options.memory_nbytes > have:
            why += f"; this machine has {format_nbytes(have)}"
        return options.memory_nbytes, why
    memory = {node.id: node.memory_nbytes or 0 for node in topology.nodes}
    usable = memory.keys() & set(topology.allowed.nodes if topology.allowed else ()) or memory.keys()
    have = memory.get(place.node if place.node is not None else -1)
    shares: list[tuple[int, str]] = []
    if any(other.node in memory.keys() - usable for other in places):
        total = sum(memory[node] for node in usable)
        shares.append((total // len(places), f"{_share(len(places))} of the NUMA nodes' that may be used"))
    elif have:
        beside = sum(other.node == place.node for other in places)
        shares.append((have // beside, f"{_share(beside)} of its NUMA node's"))
    elif topology.memory_nbytes:
        shares.append((topology.memory_nbytes // len(places), f"{_share(len(places))} of the machine's"))
    if topology.allowed and topology.allowed.memory_nbytes:
        limit = topology.allowed.memory_nbytes
        shares.append((limit // len(places), f"{_share(len(places))} of the limit by {topology.allowed.memory_by}"))
    return min(shares) if shares else (None, "the size of the memory is not known")


def _share(workers: int) -> str:
    return "all" if workers == 1 else f"1/{workers}"


def _visible(places: list[_Place], i: int) -> tuple[list[str], str]:
    """Rotate the whole GPUs, so that each worker's own is its device 0."""
    if _instance(places[i]):
        return [places[i].device or ""], "its instance alone: CUDA takes one MIG instance for each process"
    turned = [p.device or "" for p in places[i:] + places[:i] if not _instance(p)]
    return turned, "its own first, the others after it, so that peers' memory can be reached"


def _instance(place: _Place) -> bool:
    return place.gpu is not None and bool(place.gpu.mig)


def _transports(place: _Place, rdma: str | None, *, sees_gpus: bool) -> tuple[tuple[str, ...], str]:
    names, why = ["ring"], ["weft's ring on this host"]
    if sees_gpus:  # then UCX carries messages within the host, too
        names, why = ["posix"], ["posix on this host"]
    if place.gpu:
        names.append("cuda_copy")
        why.append("cuda_copy to and from the GPU")
        if _instance(place):
            why.append("no cuda_ipc: MIG instances cannot share memory by it")
        else:
            names.append("cuda_ipc")
            why.append("cuda_ipc between GPUs")
    if rdma == "efa":
        names.append("srd")
        why.append("srd over the NIC, where UCX is 1.19 or newer and was built with EFA")
    elif rdma:
        names.append("rc")
        why.append("rc over the NIC, where UCX was built with verbs")
    return (*names, "tcp"), "; ".join([*why, "tcp to other hosts"])
