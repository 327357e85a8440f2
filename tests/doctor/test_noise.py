# SPDX-License-Identifier: BSD-3-Clause
"""No check raises, whatever the files hold and whatever is missing; none of them writes."""

import dataclasses
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.machines import hosts

from weft.doctor import ucx
from weft.doctor.checks import examine
from weft.doctor.machine import Machine

#: What the kernel's formats are made of, so that noise gets past the first look.
WORDS = st.sampled_from(
    ["[", "]", ":", " ", "\n", "0", "9" * 30, "-1", "1-", ",", "/", "\0", "unlimited", "cgroup2", " - ", "²", "\x1b[1m"]
)
NOISE = st.one_of(
    st.binary(max_size=40), st.lists(WORDS, max_size=12).map("".join).map(str.encode), st.just(b"9" * 4400)
)
CHECKED = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module", params=["nd40", "container"])
def whole(request, tmp_path_factory):
    made = hosts.ALL[request.param](tmp_path_factory.mktemp(request.param))
    # those that no other machine here would make it read
    for name in ("etc/hosts", "etc/modules", "proc/net/tcp", "etc/ufw/ufw.conf", "proc/self/maps", "etc/waagent.conf"):
        path = made.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return made


def files_of(machine):
    found = (os.path.join(folder, name) for folder, _, names in os.walk(machine.root) for name in names)
    return sorted(path for path in found if not os.path.islink(path))


@CHECKED
@given(data=st.data())
def test_noise_in_the_files(whole, data):
    paths = files_of(whole)
    spoiled = data.draw(st.lists(st.sampled_from(paths), min_size=1, max_size=8, unique=True))
    before = {}
    for path in spoiled:
        with open(path, "rb") as file:
            before[path] = file.read()
        with open(path, "wb") as file:
            file.write(data.draw(NOISE))
    said = data.draw(
        st.dictionaries(st.sampled_from([*whole.commands, ucx.ASK_SETTINGS, "nft list ruleset"]), st.text())
    )
    environ = {
        **whole.environ,
        "UCX_TLS": data.draw(st.text(max_size=9)),
        "UCX_NET_DEVICES": data.draw(st.text(max_size=9)),
    }
    try:
        # a copy: what a machine has read it keeps
        found = examine(dataclasses.replace(whole, commands=said, environ=environ), port=8786)
    finally:
        for path, text in before.items():
            with open(path, "wb") as file:
                file.write(text)
    for finding in found.values():
        assert finding.what.isprintable()
        assert all(line.isprintable() for line in finding.evidence)


def test_nothing_at_all(tmp_path):
    found = examine(Machine(tmp_path), port=1)
    assert all(finding.evidence for finding in found.values())


def test_folders_in_place_of_files(tmp_path):
    for name in (
        "proc/self/limits",
        "proc/self/status",
        "proc/meminfo",
        "etc/hosts",
        "proc/net/tcp",
        "etc/ld.so.cache",
    ):
        (tmp_path / name).mkdir(parents=True)
    examine(Machine(tmp_path), port=1)


def test_nothing_is_written(whole):
    before = {path: os.stat(path).st_mtime_ns for path in files_of(whole)}
    examine(dataclasses.replace(whole), port=8786)
    assert {path: os.stat(path).st_mtime_ns for path in files_of(whole)} == before
