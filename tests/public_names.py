# SPDX-License-Identifier: BSD-3-Clause
"""What is public: the names of the modules below, and those that the reference takes from other modules."""

import importlib

#: The modules whose ``__all__`` is public.
MODULES = ["weft", "weft.compat", "weft.dask", "weft.lab", "weft.typing"]

#: Names of other modules.
OTHERS = [
    "weft._load.Library",
    "weft.connect.Connecting",
    "weft.dask.observe.pairs.Pair",
    "weft.doctor.checks.examine",
    "weft.doctor.finding.Finding",
    "weft.doctor.finding.Level",
    "weft.doctor.here.read",
    "weft.doctor.machine.Machine",
    "weft.explain.explanation.Explanation",
    "weft.memory.orphans",
    "weft.memory.remove_orphans",
    "weft.topo.discovery.read",
    "weft.topo.model.Allowed",
    "weft.topo.model.Cpu",
    "weft.topo.model.Gpu",
    "weft.topo.model.Nic",
    "weft.topo.model.NumaNode",
    "weft.topo.model.Port",
    "weft.topo.model.Topology",
    "weft.topo.options.PlanOptions",
    "weft.topo.plan.Plan",
    "weft.topo.plan.WorkerPlan",
    "weft.topo.plan.plan",
]


def public_names():
    """Give each public name with what it names."""
    for module in map(importlib.import_module, MODULES):
        for name in module.__all__:
            yield f"{module.__name__}.{name}", getattr(module, name)
    for name in OTHERS:
        module, _, name_in_it = name.rpartition(".")
        yield name, getattr(importlib.import_module(module), name_in_it)
