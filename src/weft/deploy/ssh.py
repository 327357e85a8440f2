# SPDX-License-Identifier: BSD-3-Clause
"""A script for hosts that are reached by SSH: schedulers on the first, ``weft worker`` on the others, the program here.

Dask's SSHCluster starts workers by class and cannot ask each host for its plan, so the script calls ``ssh`` itself. A
remote command gets a terminal (``-tt``): however the connection ends, its shell receives a hangup and stops the
command. The command runs in its own session; otherwise the hangup would kill its workers first.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from weft.deploy.cluster import Cluster, array
from weft.errors import InvalidParamError

# no name that ssh could read as an option, or the remote shell as more than a name
_HOST = re.compile(r"(?!-)(?:[\w.-]+@)?(?!-)[\w.:%-]+", re.ASCII)


@dataclass(frozen=True)
class Layout:
    """The hosts, and what runs on each.

    Parameters
    ----------
    hosts : tuple of str
        As ssh reads them. The first runs the schedulers, the others the workers; the first may be repeated among them.
    address : str, optional
        Of the first host, as the others reach it. By default its name.
    port : int
        Of the first scheduler; the scheduler of each further protocol gets a port that is 2 higher.
    here : str
        The interpreter on this machine, which runs the program.
    options : tuple of str
        For ssh, one word each.

    Raises
    ------
    InvalidParamError
        There are fewer than two hosts, or a name is not valid.
    """

    hosts: tuple[str, ...]
    here: str
    address: str | None = None
    port: int = 8786
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.hosts) < 2:
            raise InvalidParamError("--hosts: give the scheduler's host, then at least one for workers")
        for host in self.hosts:
            if not _HOST.fullmatch(host):
                raise InvalidParamError(f"--hosts {host!r}: not a host; write NAME or USER@NAME")
        if self.address and not _HOST.fullmatch(self.address):
            raise InvalidParamError(f"--address {self.address!r}: not a host; write a name or an IP address")

    def schedulers(self, protocols: tuple[str, ...]) -> list[str]:
        """Return the address of the scheduler of each of `protocols`; raise if the ports do not suffice."""
        name = self.address or self.hosts[0].rpartition("@")[2]
        last = self.port + 2 * (len(protocols) - 1)
        if last > 65535:
            raise InvalidParamError(
                f"--port {self.port}: the last of {len(protocols)} schedulers needs {last}; choose a lower one"
            )
        host = f"[{name}]" if ":" in name else name
        # the next port is the scheduler's dashboard, 8787
        return [f"{protocol}://{host}:{self.port + 2 * i}" for i, protocol in enumerate(protocols)]


def script(layout: Layout, cluster: Cluster) -> str:
    """Return the text for bash."""
    schedulers = layout.schedulers(cluster.protocols)
    weft = [cluster.python, "-m", "weft", "worker"]
    where = [*cluster.placing, *cluster.device]
    lines = [
        "#!/bin/bash",
        *cluster.exports(),  # before the script's own variables, which may have the same names
        f"python={shlex.quote(layout.here)}  # of this machine",
        array("hosts", layout.hosts),
        array("options", layout.options),
        array("addresses", schedulers),
        array("program", cluster.program),
        "",
        "# for the shells of the hosts",
        f"setup={shlex.quote(chr(10).join([*cluster.setup, *cluster.exports()]))}",
        f"plan={shlex.quote(shlex.join([*weft, '--plan', '--json', *where]))}",
        array("schedulers", (shlex.join(_scheduler(cluster, address)) for address in schedulers)),
        array("workers", (shlex.join([*weft, each, "--timeout", "120", *where]) for each in schedulers)),
    ]
    return "\n".join(lines) + "\n" + _REST


def _scheduler(cluster: Cluster, address: str) -> list[str]:
    protocol, _, rest = address.partition("://")
    port = rest.rpartition(":")[2]
    options = ["--protocol", protocol, "--port", port, "--dashboard-address", ":0"]
    return [cluster.python, "-m", "dask", "scheduler", *options, *cluster.device]


_REST = r"""
set -u
timeout_s=120  # for schedulers and workers to come up
folder=$(mktemp -d "${TMPDIR:-/tmp}/weft-ssh.XXXXXX") || exit 1
echo "plans and logs: $folder" >&2
ssh=(ssh -o BatchMode=yes -o ConnectTimeout=15 -o ServerAliveInterval=15 "${options[@]}")
pids=()

# start HOST COMMAND LOG
start() {
    # a signal that comes before the process id is known is passed on once it is
    local run="p= over=; trap 'over=1; kill \$p' HUP TERM; setsid $2 & p=\$!"
    run+='; [ "$over" ] && kill $p; wait $p; wait $p'
    "${ssh[@]}" -tt -- "$1" "$setup"$'\n'"$run" </dev/null >"$folder/$3.log" 2>&1 &
    pids+=("$!")
}

finish() {
    trap - EXIT
    ((${#pids[@]})) && kill "${pids[@]}" 2>/dev/null
    wait
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# Where workers would go on each host, to know how many to wait for.
for i in "${!hosts[@]}"; do
    ((i)) || continue
    "${ssh[@]}" -- "${hosts[i]}" "{ :; $setup"$'\n'"} >&2; $plan" </dev/null >"$folder/plan-$i.json" &
    pids+=("$!")
done
for pid in "${pids[@]}"; do wait "$pid" || exit 1; done
pids=()

for command in "${schedulers[@]}"; do start "${hosts[0]}" "$command" "scheduler-${#pids[@]}"; done
for i in "${!hosts[@]}"; do
    ((i)) || continue
    for command in "${workers[@]}"; do start "${hosts[i]}" "$command" "worker-$i-${#pids[@]}"; done
done

scheduler=$("$python" -m weft.deploy.ready --timeout "$timeout_s" \
    --plans "$folder"/plan-*.json --schedulers "${addresses[@]}") || exit 1
export DASK_SCHEDULER_ADDRESS=${scheduler%%,*}  # where a Client() without arguments goes
if ((${#program[@]})); then
    "${program[@]//'{scheduler}'/"$scheduler"}"
else
    echo "$scheduler"
    wait "${pids[@]}"
fi
"""
