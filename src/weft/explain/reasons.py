# SPDX-License-Identifier: BSD-3-Clause
"""Why a transport is used or not: each reason is based on evidence, or is "unknown".

The checks begin with what only an installation can change (the module), then look at the machine (device, permission)
and the settings, and end with UCX's own decision. The first reason that the evidence supports is the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft.explain.evidence import Evidence
from weft.explain.ucx_info import Found


@dataclass(frozen=True, slots=True)
class Kind:
    """What a transport needs, a module beside libuct and a device, and what it reaches."""

    module: str = ""
    node: str = ""
    reach: str = "network"  # or host, itself, device memory


_RDMA = "/sys/class/infiniband"
#: The transports that Linux builds of UCX 1.16 to 1.22 may have, and what they need.
KNOWN = {
    "self": Kind(reach="itself"),
    "posix": Kind(reach="host"),
    "sysv": Kind(reach="host"),
    "cma": Kind("cma", reach="host"),
    "knem": Kind("knem", "/dev/knem", "host"),
    "xpmem": Kind("xpmem", "/dev/xpmem", "host"),
    "tcp": Kind(),
    "rc_verbs": Kind("ib", _RDMA),
    "ud_verbs": Kind("ib", _RDMA),
    "rc_mlx5": Kind("ib_mlx5", _RDMA),
    "ud_mlx5": Kind("ib_mlx5", _RDMA),
    "dc_mlx5": Kind("ib_mlx5", _RDMA),
    "srd": Kind("ib_efa", _RDMA),
    "cuda_copy": Kind("cuda", "/dev/nvidiactl", "device memory"),
    "cuda_ipc": Kind("cuda", "/dev/nvidiactl", "device memory"),
    "gdr_copy": Kind("cuda_gdrcopy", "/dev/gdrdrv", "device memory"),
    "rocm_copy": Kind("rocm", "/dev/kfd", "device memory"),
    "rocm_ipc": Kind("rocm", "/dev/kfd", "device memory"),
    "ze_copy": Kind("ze", "/dev/dri", "device memory"),
}
_SHM = ("posix", "sysv", "xpmem", "knem", "cma")
_IB = ("rc_verbs", "ud_verbs", "rc_mlx5", "ud_mlx5", "dc_mlx5", "gga_mlx5", "srd", "rc_gda")
#: The other names that a name in UCX_TLS includes.
ALIASES = {
    "mm": ("posix", "sysv", "xpmem"),
    "sm": _SHM,
    "shm": _SHM,
    "ib": _IB,
    "ud_v": ("ud_verbs",),
    "ud_x": ("ud_mlx5",),
    "ud": ("ud_mlx5", "ud_verbs"),
    "rc_v": ("rc_verbs",),
    "rc_x": ("rc_mlx5",),
    "rc": ("rc_mlx5", "rc_verbs"),
    "dc": ("dc_mlx5",),
    "dc_x": ("dc_mlx5",),
    "cuda": ("cuda_copy", "cuda_ipc", "gdr_copy"),
    "rocm": ("rocm_copy", "rocm_ipc", "rocm_gdr"),
    "ze": ("ze_copy", "ze_ipc", "ze_gdr"),
}
#: Why weft excludes some between processes of one host; across a network it excludes those that share memory.
_BY_DESIGN = {
    "sysv": "it cannot tell a dead peer",
    "cma": "a peer that is killed in mid-receive would abort this process with it",
    **dict.fromkeys(("tcp", *_IB), "on one host no network transport is opened, which would listen unauthenticated"),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """The value of one of UCX's settings, and who set it."""

    value: str
    by: str
    weft: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a transport is among the lanes, the reason, and the evidence for it."""

    transport: str
    chosen: bool
    reason: str
    evidence: str


@dataclass(frozen=True, slots=True)
class Case:
    """The input of `verdicts`: a connection and the evidence about it.

    Attributes
    ----------
    lanes : list of str
        ``transport/device`` in use.
    settings : dict of str to Setting
        Those that limit the choice: ``TLS`` and ``NET_DEVICES``; missing where UCX's default holds.
    same_host : bool
        The other process has proved that it is here.
    apart : str
        The known reason why it has not.
    evidence : Evidence
    """

    lanes: Sequence[str]
    settings: Mapping[str, Setting]
    same_host: bool
    apart: str
    evidence: Evidence


def verdicts(case: Case) -> list[Verdict]:
    """Return a verdict for every known transport, and for others that UCX reports or uses; those in use come first."""
    used = [lane.partition("/")[0] for lane in case.lanes]
    names = dict.fromkeys([*used, *KNOWN, *(case.evidence.reported or ())])
    return [_verdict(name, name in used, case) for name in names]


def _verdict(name: str, chosen: bool, case: Case) -> Verdict:
    if chosen:
        devices = ", ".join(lane.partition("/")[2] for lane in case.lanes if lane.partition("/")[0] == name)
        return Verdict(name, True, f"in use on {devices}", "the endpoint's lanes (ucp_ep_query)")
    kind = KNOWN.get(name, Kind(reach="unknown"))
    for check in (_module, _device, _purpose, _setting, _network_device, _distance, _errors):
        found = check(name, kind, case)
        if found is not None:
            return Verdict(name, False, *found)
    if case.evidence.reported is None:
        return Verdict(name, False, "unknown", "ucx_info cannot be run: what UCX finds here is not known")
    return Verdict(
        name,
        False,
        "unknown: UCX has it, may use it and took other lanes",
        "UCX gives no reason; UCX_LOG_LEVEL=trace shows its scores",
    )


def _module(name: str, kind: Kind, case: Case) -> tuple[str, str] | None:
    seen = case.evidence
    # before 1.18 the verbs' module contained mlx5
    module = "ib" if kind.module == "ib_mlx5" and seen.ucx < (1, 18) else kind.module
    if not module or module in seen.modules or name in (seen.reported or ()):
        return None
    return "missing from this UCX", f"no libuct_{module}.so in {seen.folders}"


def _device(name: str, kind: Kind, case: Case) -> tuple[str, str] | None:
    seen = case.evidence
    if seen.reported is None or name in seen.reported:
        return None
    if name == "cma" and seen.ptrace_scope not in ("", "0"):
        return "no permission", f"/proc/sys/kernel/yama/ptrace_scope is {seen.ptrace_scope}, and ucx_info lists no cma"
    if kind.node == _RDMA and not seen.infiniband:
        return "no device", f"no RDMA device under {_RDMA}"
    if kind.node and kind.node != _RDMA and kind.node not in seen.nodes:
        return "no device", f"no {kind.node}"
    there = ", ".join(seen.infiniband) if kind.node == _RDMA else kind.node
    though = f", though {there} is there" if there else ""
    return "unknown: UCX reports no device for it", f"ucx_info -d does not list it{though}"


def _purpose(_: str, kind: Kind, __: Case) -> tuple[str, str] | None:
    if kind.reach == "itself":
        return "leads from a worker to itself only", "its kind; the peer is another worker"
    if kind.reach == "device memory":
        return "moves device memory only", "its kind; this is about messages in host memory"
    return None


def _setting(name: str, kind: Kind, case: Case) -> tuple[str, str] | None:
    setting = case.settings.get("TLS")
    if setting is None or allows(setting.value, name):
        return None
    said = f"UCX_TLS={setting.value}, set by {setting.by}"
    if not setting.weft:
        return "excluded by UCX_TLS", said
    if case.same_host:
        why = _BY_DESIGN.get(name)
    else:
        why = f"shares memory; the peer did not prove that it is here: {case.apart}" if kind.reach == "host" else None
    return why or "excluded by UCX_TLS", said


def _network_device(name: str, kind: Kind, case: Case) -> tuple[str, str] | None:
    setting, found = case.settings.get("NET_DEVICES"), (case.evidence.reported or {}).get(name)
    if kind.reach != "network" or setting is None or found is None or not found.devices:
        return None
    named = setting.value.removeprefix("^").split(",")
    if setting.value == "all" or any((device in named) != setting.value.startswith("^") for device in found.devices):
        return None
    return "its devices are excluded", f"UCX_NET_DEVICES={setting.value}, set by {setting.by}; {_devices(found)}"


def _distance(_: str, kind: Kind, case: Case) -> tuple[str, str] | None:
    if kind.reach == "host" and not case.same_host:
        return "works within one host only", case.apart
    return None


def _errors(name: str, _: Kind, case: Case) -> tuple[str, str] | None:
    found = (case.evidence.reported or {}).get(name)
    if found is None or "peer failure" in found.error_handling:
        return None
    says = ", ".join(sorted(found.error_handling)) or "nothing"
    return "cannot tell that a peer was lost, as connections need", f"error handling by ucx_info -d: {says}"


def _devices(found: Found) -> str:
    return f"it has {', '.join(found.devices)}"


def allows(tls: str, transport: str) -> bool:
    """Tell whether a value of ``UCX_TLS`` lets `transport` carry data."""
    if tls == "all":
        return True
    names = tls.removeprefix("^").split(",")
    named = any(transport == name or transport in ALIASES.get(name, ()) for name in names)
    return named != tls.startswith("^")
