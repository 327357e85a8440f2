# SPDX-License-Identifier: BSD-3-Clause
"""A topology and a plan as text: tables and a tree, drawn by rich."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from weft._units import format_nbytes
from weft.topo import cpulist
from weft.topo.interconnect import Interconnect, InterconnectClass
from weft.topo.model import KINDS, Cpu, Gpu, Nic, Topology
from weft.topo.plan import Plan

_STYLES = {
    InterconnectClass.SELF: "dim",
    InterconnectClass.NVLINK: "bold green",
    InterconnectClass.PIX: "green",
    InterconnectClass.PXB: "cyan",
    InterconnectClass.PHB: "cyan",
    InterconnectClass.NODE: "yellow",
    InterconnectClass.SYS: "red",
}


def topology(topology: Topology) -> RenderableType:
    """Draw the machine as a tree, then the interconnects between its devices and their assumed bandwidth."""
    parts: list[RenderableType] = [_tree(topology)]
    if topology.allowed and topology.allowed.why:
        parts += ["", "withheld from this process:", *map(_indented, topology.allowed.why)]
    # Ethernet is not reached past the CPU, and a card's network device lies where its RDMA device does
    names = [*(gpu.name for gpu in topology.gpus), *(nic.name for nic in topology.nics if _direct(nic))]
    if len(names) > 1:
        kinds = {interconnect for a, b, interconnect in topology.interconnects if {a, b} <= {*names}}
        parts += ["", _matrix(topology, names), "", _priors(kinds)]
    return Group(*parts, "", Text("read: " + "; ".join(topology.source), style="dim"))


def plan(made: Plan) -> RenderableType:
    """Show the layout, then each reason with its workers, and the parts that are not used."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), title="workers", title_justify="left")
    named = any(worker.interface for worker in made.workers)
    for heading in ("worker", "place", "CPUs", "node", "threads", "memory", "GPU", "NIC", *["interface"] * named):
        table.add_column(heading, overflow="fold")
    for worker in made.workers:
        table.add_row(
            worker.name,
            worker.place,
            cpulist.join(worker.cpus) or "any",
            cpulist.join(worker.nodes) or "-",
            str(worker.threads),
            _limit(worker.memory_nbytes),
            worker.gpu or "-",
            worker.nic or "-",
            *[worker.interface or "-"] * named,
        )
    parts: list[RenderableType] = [table]
    if any(worker.env for worker in made.workers):
        parts += ["environment:", *map(_indented, _environment(made))]
    parts += ["why:", *map(_indented, _reasons(made))]
    if made.notes:
        parts += ["left out:", *map(_indented, made.notes)]
    return Group(*(Text(part) if isinstance(part, str) else part for part in parts))


def _indented(line: str) -> Padding:
    return Padding(Text(line), (0, 0, 0, 2), expand=False)


def _environment(made: Plan) -> Iterator[str]:
    """Write variables, once for all workers where they are the same."""
    first = made.workers[0].env
    shared = {name: value for name, value in first.items() if all(w.env.get(name) == value for w in made.workers)}
    for worker in made.workers:
        if own := [f"{name}={value}" for name, value in worker.env.items() if name not in shared]:
            yield f"{worker.name}: {' '.join(own)}"
    if shared:
        yield f"each: {' '.join(f'{name}={value}' for name, value in sorted(shared.items()))}"


def _reasons(made: Plan) -> Iterator[str]:
    for choice in made.workers[0].reasons if made.workers else ():
        by_reason: dict[str, list[int]] = {}
        for worker in made.workers:
            if choice in worker.reasons:
                by_reason.setdefault(worker.reasons[choice], []).append(int(worker.name))
        for reason, names in by_reason.items():
            who = "" if len(names) == len(made.workers) else f" of {cpulist.join(names)}"
            yield f"{choice}{who}: {reason}"


def _tree(topology: Topology) -> Tree:
    tree = Tree(Text(_headline(topology), style="bold"))
    devices: list[Gpu | Nic] = [*topology.gpus, *_cards(topology)]
    if not topology.nodes:
        _by_cpus(topology, tree)
        return tree
    for socket in sorted({cpu.socket for cpu in topology.cpus}):
        branch = tree.add(f"socket {socket}")
        for node in topology.nodes:
            cpus = [cpu for cpu in topology.cpus if cpu.node == node.id and cpu.socket == socket]
            if not cpus:
                continue
            twig = branch.add(f"NUMA node {node.id}  {_memory(node.memory_nbytes)}")
            _add(
                twig,
                (
                    *_caches(cpus),
                    *(_device(topology, device) for device in devices if device.node == node.id),
                ),
            )
    for node in topology.nodes:
        if not node.cpus:
            _add(tree, [Text(f"NUMA node {node.id}  {_memory(node.memory_nbytes)}, without CPUs")])
    _add(tree, (_device(topology, device) for device in devices if device.node is None))
    return tree


def _direct(nic: Nic) -> bool:
    return nic.rdma or nic.kind == "unknown"


def _cards(topology: Topology) -> list[Nic]:
    """List NICs without the network devices that sit on an RDMA device."""
    below = {name for nic in topology.nics if nic.name not in nic.netdevs for name in nic.netdevs}
    return [nic for nic in topology.nics if nic.name not in below]


def _by_cpus(topology: Topology, tree: Tree) -> None:
    """Draw a machine known from nvidia-smi alone: GPUs by their nearest CPUs, NICs with their nearest GPU."""
    groups: dict[tuple[int, ...], list[Gpu | Nic]] = {}
    for gpu in topology.gpus:
        groups.setdefault(gpu.cpus, []).append(gpu)
    for nic in topology.nics:
        near = {
            gpu: interconnect
            for gpu in topology.gpus
            if (interconnect := topology.between(gpu.name, nic.name)) is not None
        }
        groups[min(near, key=lambda gpu: near[gpu]).cpus].append(nic)
    for cpus, members in groups.items():
        title = f"CPUs {cpulist.join(cpus)}" if cpus else "CPUs not told"
        _add(tree.add(title), (_device(topology, device) for device in members))


def _add(branch: Tree, leaves: Iterable[Text]) -> None:
    for leaf in leaves:
        branch.add(leaf)


def _headline(topology: Topology) -> str:
    counts: list[str] = []
    if topology.cpus:
        may = f"{len(topology.allowed.cpus)} of " if topology.allowed else ""
        counts.append(f"{may}{len(topology.cpus)} CPUs")
        counts.append(_count(len({cpu.core for cpu in topology.cpus}), "core"))
    if topology.memory_nbytes:
        counts.append(_memory(topology.memory_nbytes))
    return ", ".join([*counts, _count(len(topology.gpus), "GPU"), _count(len(_cards(topology)), "NIC")])


def _count(n: int, what: str) -> str:
    return f"{n or 'no'} {what}{'' if n == 1 else 's'}"


def _caches(cpus: Sequence[Cpu]) -> Iterator[Text]:
    groups: dict[int | None, list[Cpu]] = {}
    for cpu in cpus:
        groups.setdefault(cpu.l3, []).append(cpu)
    for l3, members in groups.items():
        cores = _count(len({cpu.core for cpu in members}), "core")
        name = "L3" if l3 is not None else "L3 not told"
        yield Text(f"{name}  CPUs {cpulist.join(cpu.id for cpu in members)} ({cores})")


def _device(topology: Topology, device: Gpu | Nic) -> Text:
    if isinstance(device, Nic):
        on_it = [nic for nic in topology.nics if nic.name in device.netdevs and nic.name != device.name]
        said = "; ".join([_state(device), *(f"{nic.name} {_ports(nic)}" for nic in on_it)])
        return Text(device.name, style="bold").append(f"  {said}", style="not bold")
    line = Text(device.name, style="bold")
    if device.model:
        line.append(f"  {device.model}, {_memory(device.memory_nbytes)}", style="not bold")
    if device.mig:
        line.append(f", {_count(len(device.mig), 'MIG instance')}", style="not bold")
    near: dict[Interconnect, list[str]] = {}
    for a, b, interconnect in topology.interconnects:
        if device.name in (a, b):
            near.setdefault(interconnect, []).append(b if a == device.name else a)
    nics = {nic.name for nic in topology.nics if _direct(nic)}
    closest = min((interconnect for interconnect, names in near.items() if nics & {*names}), default=None)
    for interconnect in sorted(near):
        names = [
            n
            for n in near[interconnect]
            if (n in nics and interconnect == closest) or interconnect.kind is InterconnectClass.NVLINK
        ]
        if names:
            named = "all others" if 3 <= len(names) == len(topology.gpus) - 1 else " ".join(names)
            line.append("  ").append(f"{interconnect} ", _STYLES.get(interconnect.kind, "")).append(
                named, style="not bold"
            )
    return line


def _state(nic: Nic) -> str:
    if not nic.ports:
        return "state not told"
    return f"{KINDS.get(nic.kind, nic.kind)}, {_ports(nic)}"


def _ports(nic: Nic) -> str:
    states: list[str] = []
    for port in nic.ports:
        name = f"port {port.number} " if port.number is not None else ""
        rate = f" {port.rate_bps / 1e9:g} Gb/s" if port.rate_bps and port.up else ""
        states.append(f"{name}{port.state}{rate}")
    return ", ".join([*states, *([f"in {nic.master}"] if nic.master else [])])


def _matrix(topology: Topology, names: list[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), title="interconnects", title_justify="left")
    table.add_column("")
    for name in names:
        table.add_column(name, justify="center", no_wrap=True)
    for name in names:
        row = [
            Interconnect(InterconnectClass.SELF) if other == name else topology.between(name, other) for other in names
        ]
        table.add_row(Text(name, style="bold"), *(_cell(interconnect) for interconnect in row))
    return table


def _cell(interconnect: Interconnect | None) -> Text:
    return Text(str(interconnect or ""), style=_STYLES.get(interconnect.kind, "") if interconnect else "")


def _priors(kinds: set[Interconnect]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), title="assumed until measured", title_justify="left")
    for heading in ("interconnect", "GB/s", "from"):
        table.add_column(heading)
    for interconnect in sorted(kinds):
        if known := interconnect.prior():
            table.add_row(_cell(interconnect), f"{known.bandwidth_Bps / 1e9:g}", known.source)
    return table


def _memory(nbytes: int | None) -> str:
    return "memory not told" if nbytes is None else format_nbytes(nbytes)


def _limit(nbytes: int | None) -> str:
    if nbytes is None:
        return "-"
    return _memory(nbytes) if nbytes else "no limit"
