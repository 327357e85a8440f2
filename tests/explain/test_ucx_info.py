# SPDX-License-Identifier: BSD-3-Clause
"""What UCX's own tool prints, and what is made of it when it does not."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft._load import Library
from weft.explain import ucx_info
from weft.explain.ucx_info import Found

PRINTED = """
# Memory domain: tcp
#      Transport: tcp
#         Device: eth0
#           Type: network
#       error handling: peer failure, ep_check, keepalive
#
#      Transport: tcp
#         Device: lo
#       error handling: peer failure, ep_check, keepalive
#
# Connection manager: tcp
# Memory domain: sysv
#      Transport: sysv
#         Device: memory
#       error handling: none
"""


def test_each_transport_once_with_all_its_devices():
    assert ucx_info.transports(PRINTED) == {
        "tcp": Found(("eth0", "lo"), frozenset({"peer failure", "ep_check", "keepalive"})),
        "sysv": Found(("memory",), frozenset()),
    }


@settings(max_examples=50)
@given(st.lists(st.one_of(st.text("#: \tTransportDevice"), st.sampled_from(PRINTED.splitlines()))).map("\n".join))
def test_any_text_is_borne(text):
    assert all(name for name in ucx_info.transports(text))


def tool(folder, script):
    (folder / "bin").mkdir()
    (folder / "bin" / "ucx_info").write_text(script)
    (folder / "bin" / "ucx_info").chmod(0o755)
    return Library(str(folder / "lib" / "libucp.so"), (1, 22, 0), "path")


def test_it_sees_the_settings_but_no_limits(tmp_path, monkeypatch):
    monkeypatch.setenv("UCX_TLS", "tcp")
    library = tool(tmp_path, '#!/bin/sh\necho "$1 $UCX_TLS $UCX_MM_ERROR_HANDLING $LD_LIBRARY_PATH"\n')
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    assert ucx_info.ask(library, {"MM_ERROR_HANDLING": "y"}) == f"-d  y {tmp_path / 'lib'}\n"


@pytest.mark.parametrize("script", ["#!/bin/sh\nexit 1\n", "#!/bin/sh\nprintf '\\377\\n'\n", "no program"])
def test_a_tool_that_fails_has_said_nothing(script, tmp_path):
    assert ucx_info.ask(tool(tmp_path, script)) is None


def test_no_tool(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ucx_info.ask(Library(str(tmp_path / "lib" / "libucp.so"), (1, 22, 0), "path")) is None
