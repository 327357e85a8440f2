# SPDX-License-Identifier: BSD-3-Clause
"""Whether UCX patches mmap when it is loaded."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from tests.test_load import python

HOOKS = """
import ctypes, os, sys
from weft import _load
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
_load._DEVICES = sys.argv[1:]
head = lambda: ctypes.string_at(libc.mmap, 16)
before, seen = head(), os.environ.get("UCX_MEM_EVENTS")
_load.load()
assert os.environ.get("UCX_MEM_EVENTS") == seen
assert (libc.getenv(b"UCX_MEM_EVENTS") or b"").decode() == (seen or "")
print("hooked" if head() != before else "left alone")
"""


@pytest.mark.skipif(importlib.util.find_spec("libucx") is None, reason="no libucx wheel is installed")
def test_mmap_is_left_alone_where_no_device_registers_memory(tmp_path: Path) -> None:
    device, empty, bus = tmp_path / "nvidiactl", tmp_path / "empty", tmp_path / "infiniband"
    device.touch()
    empty.mkdir()
    (bus / "mlx5_0").mkdir(parents=True)
    assert python(HOOKS).strip() == "left alone"
    assert python(HOOKS, empty, tmp_path / "none").strip() == "left alone"
    assert python(HOOKS, device).strip() == "hooked"
    assert python(HOOKS, empty, bus).strip() == "hooked"
    assert python(HOOKS, UCX_MEM_EVENTS="y").strip() == "hooked"
    assert python(HOOKS, device, UCX_MEM_EVENTS="n").strip() == "left alone"


EVENTS = """
import ctypes, sys
from weft import _load
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
_load._DEVICES = ()
with _load._memory_events(sys.argv[1]):
    print(libc.getenv(b"UCX_MEM_EVENTS"))
"""


@pytest.mark.parametrize(
    ("wheels", "said"),
    [
        (["libucx_cu12-1.22.0"], b"n"),
        (["libucx_cu13-1.23.1.post2"], b"n"),
        (["libucx_cu12-2.0.0"], b"n"),
        (["libucx_cu12-1.21.0"], None),
        (["libucx_cu12-1.22.0", "libucx_cu13-1.20.1"], None),  # one folder, and either may have written it last
        (["libucxx_cu12-1.22.0"], None),
        ([], None),
    ],
)
def test_mmap_is_left_alone_only_by_a_ucx_that_bears_it(tmp_path: Path, wheels: list[str], said: bytes | None) -> None:
    """Before 1.22 a rendezvous that is given up crashes without memory events (ucp_request_memh_invalidate)."""
    file = tmp_path / "libucx" / "lib" / "libucp.so"
    file.parent.mkdir(parents=True)
    for name in wheels:
        (tmp_path / f"{name}.dist-info").mkdir()
    assert python(EVENTS, file).strip() == str(said)
    assert python(EVENTS, "libucp.so.0").strip() == "None"
