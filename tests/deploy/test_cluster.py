# SPDX-License-Identifier: BSD-3-Clause
import subprocess

import pytest

from weft.deploy.cluster import Cluster, array, one_line
from weft.errors import InvalidParamError

ODD = ["", "it's", '"', "$HOME", "`id`", "$(id)", "a\nb", "*", "~", "\\", "-n", "#1", "é", "a=b; c & d | e > f"]


def test_an_array_has_its_words_whole():
    script = f'{array("words", ODD)}\nprintf "%s\\0" "${{words[@]}}"'
    assert subprocess.run(["bash", "-c", script], capture_output=True, text=True).stdout.split("\0")[:-1] == ODD


def test_variables_have_their_values_whole():
    exports = "\n".join(Cluster("python", env=tuple(f"A_{i}={word}" for i, word in enumerate(ODD))).exports())
    script = exports + "".join(f'\nprintf "%s\\0" "$A_{i}"' for i in range(len(ODD)))
    assert subprocess.run(["sh", "-c", script], capture_output=True, text=True).stdout.split("\0")[:-1] == ODD


@pytest.mark.parametrize("env", ["A", "=x", "1A=x", "A B=x", "A;id=x", "$(id)=x", "é=x", ""])
def test_what_is_no_variable_is_refused(env):
    with pytest.raises(InvalidParamError, match="write NAME=VALUE"):
        Cluster("python", env=(env,))


@pytest.mark.parametrize("value", ["a\nb", "a\r", "\x00", "\x7f", "\x1b["])
def test_one_line(value):
    assert one_line("--time", "1:00 'x'") == "1:00 'x'"
    with pytest.raises(InvalidParamError, match=r"--time .*: a control character"):
        one_line("--time", value)
