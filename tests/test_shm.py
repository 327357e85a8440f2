# SPDX-License-Identifier: BSD-3-Clause
"""What is left in /dev/shm by processes that were killed, told from what is in use."""

import mmap
import os
from pathlib import Path

import pytest

import weft
from weft import memory


@pytest.fixture
def file():
    """A file as UCX makes it, open."""
    path = Path(memory._FOLDER) / f"{memory._PREFIX}{os.getpid():x}{os.urandom(4).hex()}"
    with path.open("xb+") as f:
        f.truncate(4096)
        yield path, f
    path.unlink(missing_ok=True)


def test_a_file_that_nobody_has_open_is_an_orphan(file):
    path, f = file
    assert path not in memory.orphans()
    mapped = mmap.mmap(f.fileno(), 4096)
    f.close()
    assert path not in memory.orphans()
    mapped.close()
    assert path in memory.orphans()


def test_a_file_that_another_process_has_open_stays(file, spawn):
    path, f = file
    child = spawn("import sys\nf = open(sys.argv[1], 'rb+')\nprint('open', flush=True)\ninput()", str(path))
    assert child.line() == "open"
    f.close()
    assert path not in memory.orphans()
    child.kill()
    assert path in memory.orphans()


def test_files_of_others_stay(file, monkeypatch):
    path, f = file
    other = path.with_name(f"not-{path.name}")
    other.touch()
    f.close()
    try:
        assert other not in memory.orphans()
        monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
        assert path not in memory.orphans()
    finally:
        other.unlink()


def test_orphans_are_removed(file):
    path, f = file
    f.close()
    assert path in memory.remove_orphans()
    assert not path.exists()


def test_a_link_is_not_followed(tmp_path):
    link = Path(memory._FOLDER) / f"{memory._PREFIX}{os.urandom(8).hex()}"
    link.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").touch()
    try:
        assert link not in memory.orphans()
    finally:
        link.unlink()


def test_a_worker_leaves_nothing(context):
    before = set(Path(memory._FOLDER).iterdir())
    worker = weft.Worker(context)
    assert [path for path in set(Path(memory._FOLDER).iterdir()) - before if path in memory.orphans()] == []
    worker.close()
    assert [path for path in set(Path(memory._FOLDER).iterdir()) - before if path in memory.orphans()] == []
