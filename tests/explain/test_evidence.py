# SPDX-License-Identifier: BSD-3-Clause
"""What is read from a machine, here one of a few files, and from two processes' accounts of where they are."""

import pytest

from weft._load import Library
from weft.explain import evidence

HERE = {"host": "a", "boot": "1", "net": "net:[1]", "ipc": "ipc:[1]", "pid": "pid:[1]", "uid": "0"}


def test_a_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("UCX_MODULE_DIR", raising=False)
    files = [
        "lib/ucx/libuct_cma.so.0",
        "lib/ucx/libuct_ib_mlx5.so",
        "lib/ucx/libucm_cuda.so",
        "sys/class/infiniband/mlx5_0/ports",
        "dev/kfd",
        "proc/sys/kernel/yama/ptrace_scope",
    ]
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("1\n")
    library = Library(str(tmp_path / "lib" / "libucp.so"), (1, 20, 1), "path")
    assert evidence.read(library, {}, tmp_path) == evidence.Evidence(
        folders="ucx beside libucp",
        modules=frozenset({"cma", "ib_mlx5"}),
        reported=None,
        infiniband=("mlx5_0",),
        nodes=frozenset({"/dev/kfd"}),
        ptrace_scope="1",
        ucx=(1, 20, 1),
    )


def test_an_empty_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("UCX_MODULE_DIR", "/elsewhere")
    seen = evidence.read(Library(str(tmp_path / "libucp.so"), (1, 22, 0), "path"), {}, tmp_path)
    assert (seen.modules, seen.infiniband, seen.nodes, seen.ptrace_scope) == (frozenset(), (), frozenset(), "")
    assert seen.folders == "ucx beside libucp or /elsewhere"


def test_this_process():
    told = evidence.location()
    assert set(told) == set(HERE)
    assert told["net"].startswith("net:[")


@pytest.mark.parametrize(
    ("there", "own", "said"),
    [
        ({}, False, "none of this host's"),
        ({}, True, "this host's own: another user"),
        ({"boot": 7, "host": "\x1b[2J" + "b" * 99}, False, f"another host, [2J{'b' * 60}: its"),
        ({"boot": 7}, False, "another host, ?"),
        ({**HERE, "boot": "2", "host": "b"}, False, "another host, b: its boot id differs"),
        ({**HERE, "net": "net:[2]", "ipc": "ipc:[2]"}, False, "another net namespace, another ipc namespace"),
        ({**HERE, "uid": "1000"}, True, "another user (1000, here 0)"),
        (HERE, True, "is unknown"),
    ],
)
def test_why_two_processes_are_apart(there, own, said):
    assert said in evidence.apart(HERE, there, own_address=own)
