# SPDX-License-Identifier: BSD-3-Clause
"""Which transports a machine has, from what UCX's tool prints."""

import pytest

import weft
from weft._load import Library
from weft.bench.sweep import transports

PRINTED = """
# Memory domain: self
#     Component: self
#      Transport: self
#         Device: memory
# Memory domain: tcp
#      Transport: tcp
#         Device: eth0
#      Transport: tcp
#         Device: lo
#      Transport: rc_verbs
#      Transport: cuda_copy
"""


def test_names_are_single_and_of_wires():
    assert transports.named(PRINTED) == ["self", "tcp", "rc_verbs"]


def test_this_machine_has_shared_memory_and_tcp():
    assert {"posix", "tcp"} <= set(transports.found(weft.ucx_library()))


@pytest.mark.parametrize("tool", [None, "#!/bin/sh\nexit 1\n", "#!/bin/sh\necho nothing\n"])
def test_without_an_answer_the_usual_ones_are_tried(tool, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    if tool:
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "ucx_info").write_text(tool)
        (tmp_path / "bin" / "ucx_info").chmod(0o755)
    library = Library(str(tmp_path / "lib" / "libucp.so"), (1, 22, 0), "path")
    assert transports.found(library) == list(transports.EVERYWHERE)


@pytest.mark.parametrize(
    ("name", "memory", "expected"),
    [
        ("posix", "reused", "posix"),
        ("all", "cuda", "all"),
        ("cma", "fresh", "cma,posix"),
        ("rc_verbs", "reused", "rc_v"),
        ("posix", "cuda", "posix,cuda_copy,cuda_ipc"),
    ],
)
def test_setting(name, memory, expected):
    assert transports.setting(name, memory) == expected
