# SPDX-License-Identifier: BSD-3-Clause
"""The script for SSH, read and run with a fake ssh that hands its last word to a shell, as a host does."""

import pytest

from weft.deploy import ssh
from weft.deploy.cluster import Cluster
from weft.errors import InvalidParamError

ODD = 'it\'s "odd" $HOME `id` #1 \\ 50%'


@pytest.mark.parametrize(
    "host",
    [
        "a b",
        "-oProxyCommand=id",
        "a;id",
        "a\nb",
        "$(id)",
        "",
        "me@",
        "a@b@c",
        "me@-oProxyCommand=id",
        "me@-x",
        "h'",
        "ssh://h",
    ],
)
def test_what_is_no_host_is_refused(host):
    with pytest.raises(InvalidParamError, match="not a host"):
        ssh.Layout(("a", host), "python")
    with pytest.raises(InvalidParamError, match="not a host" if host else "at least one"):
        ssh.Layout(("a", "b") if host else ("a",), "python", address=host)


@pytest.mark.parametrize(
    ("layout", "addresses"),
    [
        (ssh.Layout(("me@a-1.example", "b"), "python"), ["tcp://a-1.example:8786", "ucx://a-1.example:8788"]),
        (ssh.Layout(("a", "b"), "python", "10.0.0.2", 9000), ["tcp://10.0.0.2:9000", "ucx://10.0.0.2:9002"]),
        (ssh.Layout(("fe80::1%eth0", "b"), "python"), ["tcp://[fe80::1%eth0]:8786", "ucx://[fe80::1%eth0]:8788"]),
    ],
)
def test_addresses(layout, addresses):
    assert layout.schedulers(("tcp", "ucx")) == addresses


def test_shellcheck(shellcheck):
    shellcheck(ssh.script(ssh.Layout(("a", "b"), "python"), Cluster("python")))
    odd = Cluster(ODD, ("tcp", "ucx"), ("--per", ODD), ODD, (f"A={ODD}",), ("module load ucx",), (ODD, "{scheduler}"))
    shellcheck(ssh.script(ssh.Layout(("u@a", "::1"), ODD, options=("-o", ODD)), odd))


def test_words_pass_two_shells_whole(fakes):
    """Setup and environment come before every command, without a word in the plans; the status is the program's."""
    program = ("bash", "-c", 'printf "<%s>" "$@" $DASK_SCHEDULER_ADDRESS; exit 3', "x", ODD, "{scheduler}")
    cluster = Cluster(
        fakes.python, ("tcp", "ucx"), ("--per", ODD), None, (f"UCX_TLS={ODD}",), ("echo loaded",), program
    )
    done = fakes.run(ssh.script(ssh.Layout(("a", "b", "c"), fakes.python, options=("-p", "22")), cluster), 6)
    assert (done.returncode, done.stdout) == (3, f"<{ODD}><tcp://a:1,ucx://a:2><tcp://a:1>")
    calls = fakes.lines("calls")
    assert {call.partition(" UCX_TLS=")[2] for call in calls} == {ODD}
    calls = [call.partition(" UCX_TLS=")[0] for call in calls]
    placing = f"[--per][{ODD}]"
    assert calls[:2] == [f"[-m][weft][worker][--plan][--json]{placing}"] * 2
    schedulers = [call for call in calls if "scheduler" in call and "ready" not in call]
    assert sorted(schedulers) == [
        f"[-m][dask][scheduler][--protocol][{protocol}][--port][{port}][--dashboard-address][:0]"
        for protocol, port in (("tcp", 8786), ("ucx", 8788))
    ]
    workers = [call for call in calls if "[worker]" in call and "--timeout" in call]
    assert (
        sorted(workers)
        == [f"[-m][weft][worker][tcp://a:8786][--timeout][120]{placing}"] * 2
        + [f"[-m][weft][worker][ucx://a:8788][--timeout][120]{placing}"] * 2
    )
    (folder,) = fakes.folder.glob("weft-ssh.*")
    assert (folder / "plan-1.json").read_text() == '{"workers": [{}, {}]}\n'
    (ready,) = [call for call in calls if "ready" in call]
    assert f"[--plans][{folder}/plan-1.json][{folder}/plan-2.json]" in ready
    assert ready.endswith("[--schedulers][tcp://a:8786][ucx://a:8788]")
    sshs = (fakes.folder / "sshs").read_text()
    assert sshs.count("<-p><22><-tt><--><a>") == 2
    assert sshs.count("<-p><22><-tt><--><b>") == sshs.count("<-p><22><-tt><--><c>") == 2


def test_a_host_that_cannot_be_reached_ends_it(fakes):
    done = fakes.run(ssh.script(ssh.Layout(("a", "b"), fakes.python), Cluster("/missing", program=("echo", "ran"))), 0)
    assert (done.returncode, done.stdout) == (1, "")
    assert not (fakes.folder / "calls").exists()
