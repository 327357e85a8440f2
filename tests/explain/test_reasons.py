# SPDX-License-Identifier: BSD-3-Clause
"""Each reason against the evidence that it rests on, and none without."""

import dataclasses

import pytest

from weft.explain.evidence import Evidence
from weft.explain.reasons import KNOWN, Case, Setting, allows, verdicts
from weft.explain.ucx_info import Found

ERRORS = frozenset({"peer failure", "ep_check"})
REPORTED = {name: Found(("memory",), ERRORS) for name in ("self", "posix", "sysv", "cma")} | {
    "tcp": Found(("eth0", "lo"), ERRORS)
}
SEEN = Evidence("ucx beside libucp", frozenset({"cma", "cuda"}), REPORTED, (), frozenset(), "", (1, 22, 0))
BY_WEFT = {"TLS": Setting("^tcp,sysv,cma,ib", "weft for peers on this host", weft=True)}
HOST = Case(["posix/memory"], BY_WEFT, True, "", SEEN)
BY_USER = {"TLS": Setting("tcp", "the environment")}


def verdict(name, case, **evidence):
    case = dataclasses.replace(case, evidence=dataclasses.replace(case.evidence, **evidence))
    [found] = [each for each in verdicts(case) if each.transport == name]
    return found.reason, found.evidence


def test_every_transport_is_judged_and_the_used_ones_come_first():
    told = verdicts(HOST)
    assert told[0].transport == "posix"
    assert [each.transport for each in told if each.chosen] == ["posix"]
    assert {each.transport for each in told} == set(KNOWN)
    assert all(each.reason and each.evidence for each in told)


def test_a_transport_that_weft_does_not_know_is_judged_too():
    told = verdict("new", HOST, reported=REPORTED | {"new": Found(("x",), ERRORS)})
    assert told[0].startswith("unknown: UCX has it")


def test_a_module_that_is_missing():
    assert verdict("knem", HOST) == ("missing from this UCX", "no libuct_knem.so in ucx beside libucp")
    assert verdict("rc_mlx5", HOST)[1] == "no libuct_ib_mlx5.so in ucx beside libucp"


def test_before_1_18_mlx5_was_in_the_module_of_the_verbs():
    old = {"ucx": (1, 16, 0)}
    assert verdict("rc_mlx5", HOST, **old)[1] == "no libuct_ib.so in ucx beside libucp"
    assert verdict("rc_mlx5", HOST, modules=frozenset({"ib"}), **old)[0] == "no device"


def test_what_ucx_reports_has_its_module_wherever_that_lies():
    told = verdict("xpmem", HOST, reported=REPORTED | {"xpmem": Found(("memory",), ERRORS)})
    assert told[0].startswith("unknown: UCX has it")


@pytest.mark.parametrize(
    ("name", "module", "evidence"),
    [
        ("rc_verbs", "ib", "no RDMA device under /sys/class/infiniband"),
        ("cuda_ipc", "cuda", "no /dev/nvidiactl"),
        ("knem", "knem", "no /dev/knem"),
    ],
)
def test_no_device(name, module, evidence):
    assert verdict(name, HOST, modules=frozenset({module})) == ("no device", evidence)


@pytest.mark.parametrize(
    ("name", "there"), [("rc_verbs", {"infiniband": ("mlx5_0",)}), ("knem", {"nodes": frozenset({"/dev/knem"})})]
)
def test_a_device_that_ucx_does_not_take_is_unknown(name, there):
    reason, evidence = verdict(name, HOST, modules=frozenset({"ib", "knem"}), **there)
    assert reason.startswith("unknown")
    assert "ucx_info -d does not list it, though" in evidence


def test_no_permission():
    without = {name: found for name, found in REPORTED.items() if name != "cma"}
    assert verdict("cma", HOST, reported=without, ptrace_scope="2")[0] == "no permission"
    assert verdict("cma", HOST, reported=without)[0].startswith("unknown")
    assert verdict("cma", HOST, ptrace_scope="2")[0] != "no permission"  # UCX reports it all the same


@pytest.mark.parametrize(
    ("name", "reason"),
    [("tcp", "no network transport is opened"), ("sysv", "cannot tell a dead peer"), ("cma", "abort this process")],
)
def test_left_out_by_weft_on_one_host(name, reason):
    told = verdict(name, HOST)
    assert reason in told[0]
    assert told[1] == "UCX_TLS=^tcp,sysv,cma,ib, set by weft for peers on this host"


def test_left_out_by_weft_across_a_network():
    settings = {"TLS": Setting("^posix,sysv,cma", "weft for peers across the network", weft=True)}
    case = Case(["tcp/eth0"], settings, False, "it is on another host", SEEN)
    reason, evidence = verdict("posix", case)
    assert reason == "shares memory; the peer did not prove that it is here: it is on another host"
    assert evidence.startswith("UCX_TLS=^posix")


def test_excluded_by_the_user():
    case = dataclasses.replace(HOST, lanes=["tcp/lo"], settings=BY_USER)
    assert verdict("posix", case) == ("excluded by UCX_TLS", "UCX_TLS=tcp, set by the environment")


def test_devices_excluded():
    limits = {"NET_DEVICES": Setting("eth1,mlx5_0:1", "the environment")}
    reason, evidence = verdict("tcp", dataclasses.replace(HOST, settings=limits))
    assert reason == "its devices are excluded"
    assert evidence == "UCX_NET_DEVICES=eth1,mlx5_0:1, set by the environment; it has eth0, lo"


@pytest.mark.parametrize("value", ["all", "lo", "^eth0", "eth0,x"])
def test_devices_not_excluded(value):
    limits = {"NET_DEVICES": Setting(value, "the environment")}
    assert verdict("tcp", dataclasses.replace(HOST, settings=limits))[0].startswith("unknown: UCX has it")


def test_shared_memory_does_not_leave_the_host():
    case = Case(["tcp/eth0"], {}, False, "its address is none of this host's", SEEN)
    assert verdict("posix", case) == ("works within one host only", "its address is none of this host's")


def test_error_handling_that_connections_need():
    weak = REPORTED | {"sysv": Found(("memory",), frozenset({"ep_check"}))}
    reason, evidence = verdict("sysv", dataclasses.replace(HOST, settings={}), reported=weak)
    assert reason == "cannot tell that a peer was lost, as connections need"
    assert evidence == "error handling by ucx_info -d: ep_check"


def test_by_kind():
    assert verdict("self", HOST)[0] == "leads from a worker to itself only"
    cuda = verdict("cuda_copy", HOST, reported=REPORTED | {"cuda_copy": Found(("cuda",), ERRORS)})
    assert cuda[0] == "moves device memory only"


def test_without_ucx_info_nothing_is_made_up():
    case = dataclasses.replace(HOST, settings={})
    assert verdict("tcp", case, reported=None) == (
        "unknown",
        "ucx_info cannot be run: what UCX finds here is not known",
    )
    assert verdict("knem", case, reported=None)[0] == "missing from this UCX"


@pytest.mark.parametrize(
    ("tls", "allowed", "not_allowed"),
    [
        ("all", ("posix", "rc_mlx5"), ()),
        ("sm,self", ("posix", "cma", "self"), ("tcp", "rc_verbs")),
        ("rc", ("rc_mlx5", "rc_verbs"), ("ud_verbs", "tcp")),
        ("^ib,tcp", ("posix", "cuda_ipc"), ("tcp", "dc_mlx5", "srd")),
        ("tcp", ("tcp",), ("posix",)),
    ],
)
def test_allows(tls, allowed, not_allowed):
    assert all(allows(tls, name) for name in allowed)
    assert not any(allows(tls, name) for name in not_allowed)
