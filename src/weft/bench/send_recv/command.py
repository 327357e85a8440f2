# SPDX-License-Identifier: BSD-3-Clause
"""``weft bench send-recv``: the round trip that ``ucp.benchmarks.send_recv`` and ``ucxx.benchmarks.send_recv`` time.

It takes their options, so that their command lines run with the program's name changed, and prints the same lines.
What an option asks for that weft has no use for is said in a note. The server runs in a process of its own, the
client in this one; ``--server-only`` and ``--client-only`` put them on two hosts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Iterator
from typing import Any

import weft
from weft import _options
from weft._options import port, timeout
from weft._reachable import why_unreachable
from weft._units import format_nbytes
from weft.bench.common.child import end_with_parent
from weft.bench.send_recv import loops
from weft.topo import discovery

DESCRIPTION = """
Time round trips as send_recv of ucx-py and UCXX does, with the same options and the same output. The server runs in a
process of its own, or on another host with --server-only there and --client-only here. A note names the options that
have no effect here.
"""
EXAMPLES = (
    "weft bench send-recv --n-bytes 100MB --reuse-alloc",
    "weft bench send-recv --client-only --server-address 10.0.0.2 --port 13337",
)

#: By the names that ucx-py and UCXX have for theirs: what carries the messages, and whether it awaits.
BACKENDS = {
    **dict.fromkeys(("weft-async", "ucp-async", "ucxx-async"), ("weft", True)),
    **dict.fromkeys(("weft-core", "ucp-core", "ucxx-core"), ("weft", False)),
    "asyncio": ("streams", True),
    "tornado": ("streams", True),
    "socket": ("socket", False),
}
UNITS = {
    "": 1,
    "b": 1,
    "k": 10**3,
    "kb": 10**3,
    "m": 10**6,
    "mb": 10**6,
    "g": 10**9,
    "gb": 10**9,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}
START_S = 60.0
CHILD = "import sys; from weft.bench.send_recv.command import serve; serve(sys.argv[1])"


def parse_bytes(text: str) -> int:
    """Read a size as Dask does: ``128MiB``, ``10 Mb``, ``1e6``; units in either case, a number alone is bytes."""
    match = re.fullmatch(r"([0-9_.]+(?:e[0-9]+)?) *([a-z]*)", text.strip().lower())
    with contextlib.suppress(ValueError, KeyError, OverflowError):
        if match and (nbytes := int(float(match[1]) * UNITS[match[2]])) > 0:
            return nbytes
    raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 8, 10MB or 128MiB")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what :func:`run` reads."""
    add = parser.add_argument
    add(
        "-n",
        "--n-bytes",
        type=parse_bytes,
        default="10 MB",
        metavar="BYTES",
        help="size of a message (default: %(default)s)",
    )
    add("--n-iter", type=int, default=10, metavar="N", help="round trips (default: %(default)s)")
    add(
        "--n-warmup-iter",
        type=int,
        default=10,
        metavar="N",
        help="round trips before the timed ones (default: %(default)s)",
    )
    add("-x", "--n-buffers", type=int, default=1, metavar="N", help="messages in each direction (default: %(default)s)")
    add(
        "-o",
        "--object_type",
        "--object-type",
        choices=loops.KINDS,
        default="numpy",
        help="kind of buffer (default: %(default)s)",
    )
    add("--reuse-alloc", action="store_true", help="receive into the same memory each time")
    add(
        "-b",
        "--server-cpu-affinity",
        type=int,
        default=-1,
        metavar="N",
        help="core to pin the server to (default: -1, none)",
    )
    add(
        "-c",
        "--client-cpu-affinity",
        type=int,
        default=-1,
        metavar="N",
        help="core to pin the client to (default: -1, none)",
    )
    add("-d", "--server-dev", type=int, default=0, metavar="N", help="the server's GPU (default: %(default)s)")
    add("-e", "--client-dev", type=int, default=0, metavar="N", help="the client's GPU (default: %(default)s)")
    add(
        "-s",
        "--server-address",
        metavar="IP",
        help="where the server listens (default: 127.0.0.1; every address with --server-only)",
    )
    add("-p", "--port", type=port, metavar="N", help="the server's port (default: any that is free)")
    add("--server-only", action="store_true", help="run the server, for a client elsewhere")
    add("--client-only", action="store_true", help="run the client; needs --server-address and --port")
    add("--enable-am", action="store_true", help="active messages in place of tagged ones")
    backends = f"what sends: {', '.join(BACKENDS)}; those of ucx-py and UCXX mean weft's (default: %(default)s)"
    add("-l", "--backend", choices=tuple(BACKENDS), default="weft-async", help=backends, metavar="NAME")
    add("--rndv-thresh", metavar="BYTES", help="UCX_RNDV_THRESH for this run (default: UCX's)")
    add("--no-detailed-report", action="store_true", help="do not list single round trips")
    add("--timeout", type=timeout, default=300.0, metavar="S", help="seconds for the whole run (default: %(default)g)")
    _options.add_json(parser)
    for name, options in _WITHOUT_MEANING.items():
        add(*name.split(), dest=name.split()[-1].strip("-").replace("-", "_"), help=argparse.SUPPRESS, **options)


#: Accepted, and told of: option -> what argparse is told. The notes are in `_notes`.
_WITHOUT_MEANING: dict[str, dict[str, Any]] = {
    "-v --verbose": {"action": "store_true"},
    "--cuda-profile": {"action": "store_true"},
    "--rmm-init-pool-size": {},
    "--rmm-managed-memory": {"action": "store_true"},
    "--report-gil-contention": {"action": "store_true"},
    "--delay-progress": {"action": "store_true"},
    "--max-outstanding": {},
    "--progress-mode": {},
    "--asyncio-wait": {"action": "store_true"},
    "--no-progress": {"action": "store_true"},
    "--error-handling": {"action": argparse.BooleanOptionalAction, "default": True},
}


def _notes(args: argparse.Namespace) -> Iterator[str]:
    """Say which options that were given change nothing here, and why."""
    progress = "weft progresses while it waits and sleeps otherwise"
    whys = {
        "cuda_profile": "run the whole command under the profiler",
        "rmm_init_pool_size": "RMM is used as it is configured",
        "rmm_managed_memory": "RMM is used as it is configured",
        "report_gil_contention": "not measured",
        "delay_progress": progress,
        "max_outstanding": progress,
        "progress_mode": progress,
        "asyncio_wait": progress,
        "no_progress": progress,
    }
    for name, why in whys.items():
        if getattr(args, name):
            yield f"--{name.replace('_', '-')} is ignored: {why}"
    if not args.error_handling:
        yield "--no-error-handling is ignored: weft always reports a lost peer"
    if args.backend == "tornado":
        yield "--backend tornado runs asyncio's streams, which Tornado's run on"
    if BACKENDS[args.backend][0] != "weft" and args.enable_am:
        yield f"--enable-am is ignored: {args.backend} sends no active messages"


def _parameters(args: argparse.Namespace) -> loops.Parameters:
    over, _ = BACKENDS[args.backend]
    api = "am" if args.enable_am and over == "weft" else "tag"
    return loops.Parameters(over, api, args.n_bytes, args.n_buffers, args.n_iter + args.n_warmup_iter)


def run(args: argparse.Namespace) -> int:
    """Run what was asked for and print the report.

    Returns
    -------
    int
        0; 1 if it failed, 2 if the options do not go together, 130 if it was interrupted.
    """
    for note in _notes(args):
        print(f"note: {note}", file=sys.stderr)
    try:
        _refuse(args)
        with _within(args.timeout):
            if args.server_only:
                _serve(args)
                return 0
            with contextlib.ExitStack() as stack:
                if not args.client_only:
                    args.port = stack.enter_context(_server(args))
                _say(args, f"Client connects to {args.server_address}:{args.port}")
                result = _client(args)
    except (weft.Error, OSError) as error:
        unusable = isinstance(error, weft.InvalidParamError)
        print(f"weft bench send-recv: {'' if unusable else f'{type(error).__name__}: '}{error}", file=sys.stderr)
        return 2 if unusable else 1
    except MemoryError:
        print(f"weft bench send-recv: NoMemoryError: {_memory(args)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("weft bench send-recv: interrupted", file=sys.stderr)
        return 130
    from weft.bench.send_recv import table  # weft.compat, which it uses, takes 0.1 s to import

    try:
        with _options.written(args.json, table.record(args, _parameters(args), result)) as text:
            if text:
                table.show(args, _parameters(args), result)
    except weft.Error as error:
        print(f"weft bench send-recv: {error}", file=sys.stderr)
        return 1
    return 0


def _say(args: argparse.Namespace, line: str) -> None:
    print(line, flush=True, file=sys.stderr if args.json == _options.STDOUT else sys.stdout)


def _refuse(args: argparse.Namespace) -> None:
    """Settle the address; raise for what cannot be run."""
    if args.server_only:
        _options.refuse_unused("the client reports", json=args.json, no_detailed_report=args.no_detailed_report)
    if args.json == _options.STDOUT:
        _options.refuse_unused("JSON has no report", no_detailed_report=args.no_detailed_report)
    if args.client_only and (args.server_only or not (args.server_address and args.port)):
        raise weft.InvalidParamError("--client-only needs --server-address and --port, and no --server-only")
    if min(args.n_iter, args.n_buffers) < 1 or args.n_warmup_iter < 0:
        raise weft.InvalidParamError("--n-iter and --n-buffers must be above 0, --n-warmup-iter 0 or more")
    if args.n_buffers > 1 and BACKENDS[args.backend][0] != "weft":
        raise weft.InvalidParamError(f"--n-buffers above 1 needs a backend of weft's, not {args.backend}")
    have = discovery.read(environ=os.environ).usable_nbytes
    if args.object_type == "numpy" and have is not None and _least_nbytes(args) > have:
        raise weft.NoMemoryError(_memory(args))
    usable = os.sched_getaffinity(0)
    for name, core in (("server", args.server_cpu_affinity), ("client", args.client_cpu_affinity)):
        if core >= 0 and core not in usable:
            cores = ", ".join(map(str, sorted(usable)))
            raise weft.InvalidParamError(f"--{name}-cpu-affinity {core}: this process may use the cores {cores}")
    if args.server_address is None:
        args.server_address = "0.0.0.0" if args.server_only else "127.0.0.1"  # noqa: S104  on two hosts that is the point
    if not args.server_only:
        loops.objects(args.object_type, 1, args.client_dev)


def _least_nbytes(args: argparse.Namespace) -> int:
    """Return what the ends that run here take: what the client sends, and what each of them receives."""
    return int(args.n_bytes) * int(args.n_buffers) * (1 if args.server_only else 2 if args.client_only else 3)


def _memory(args: argparse.Namespace) -> str:
    have = discovery.read(environ=os.environ).usable_nbytes
    here = "unknown" if have is None else format_nbytes(have)
    return f"--n-bytes {args.n_bytes}: takes {format_nbytes(_least_nbytes(args))}, where this process may use {here}"


@contextlib.contextmanager
def _within(seconds: float) -> Generator[None]:
    """Interrupt whatever this process waits for after `seconds`."""

    def over(_signal: int, _frame: object) -> None:
        raise weft.TimedOutError(f"send-recv: did not finish within {seconds:g} s; raise --timeout")

    before = signal.signal(signal.SIGALRM, over)
    # and once a second from then on: a callback of asyncio's loop swallows what is raised in it
    left = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *left)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _server(args: argparse.Namespace) -> Generator[int]:
    """Start a server in a process of its own; yield its port, and end it."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, json.dumps(vars(args), default=str)],
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is this process's matter
    )
    assert process.stdout is not None

    def ended(_signal: int, _frame: object) -> None:
        if process.poll():
            raise weft.PeerLostError(f"send-recv: the server ended with status {process.returncode}; see above")

    before = signal.signal(signal.SIGCHLD, ended)
    try:
        ready, _, _ = select.select([process.stdout], [], [], START_S)
        line = process.stdout.readline().decode() if ready else ""
        if not line:
            raise weft.PeerLostError("send-recv: the server did not start; what it printed is above")
        _say(args, line.rstrip())
        yield int(line.rsplit(":", 1)[1])
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
    finally:
        signal.signal(signal.SIGCHLD, before)
        process.kill()
        process.wait()
        process.stdout.close()


def serve(options: str) -> None:
    """Run the server that :func:`run` started, with its options as JSON."""
    args = argparse.Namespace(**json.loads(options))
    # whatever ends the parent ends this; who finds it gone already has no one to tell the port, which is an error, too
    end_with_parent()
    try:
        with _within(args.timeout):
            _serve(args)
    except ConnectionError:
        sys.exit(1)  # the client is the parent, and says why it went
    except (weft.Error, OSError) as error:
        sys.exit(f"server: {type(error).__name__}: {error}")
    except MemoryError:
        sys.exit(f"server: NoMemoryError: {_memory(args)}")


def _serve(args: argparse.Namespace) -> None:
    with socket.create_server((args.server_address, args.port or 0)) as listener:
        print(f"Server runs at {args.server_address}:{listener.getsockname()[1]}", flush=True)
        sock, _ = listener.accept()
    with sock:
        _exchange(args, sock, client=False)


def _client(args: argparse.Namespace) -> loops.Result:
    try:
        sock = socket.create_connection((args.server_address, args.port), timeout=args.timeout)
    except OSError as error:
        if isinstance(error, weft.Error):  # the time is up
            raise
        why = why_unreachable(args.server_address, args.port) or str(error)
        remedy = "start the server there, by --server-only, or correct --server-address and --port"
        raise weft.UnreachableError(f"connect to {args.server_address}:{args.port}: {why}; {remedy}") from error
    with sock:
        sock.settimeout(None)
        return _exchange(args, sock, client=True)


def _exchange(args: argparse.Namespace, sock: socket.socket, *, client: bool) -> loops.Result:
    core, device = (
        (args.client_cpu_affinity, args.client_dev) if client else (args.server_cpu_affinity, args.server_dev)
    )
    before = os.sched_getaffinity(0)
    if core >= 0:
        os.sched_setaffinity(0, {core})
    try:
        parameters, make = _parameters(args), loops.objects(args.object_type, args.n_bytes, device)
        if parameters.over == "socket":
            return loops.over_socket(sock, parameters, make, client=client, reuse=args.reuse_alloc)
        if parameters.over == "streams":
            return loops.over_streams(sock, parameters, make, client=client)
        settings = {"RNDV_THRESH": args.rndv_thresh} if args.rndv_thresh else {}
        waits = BACKENDS[args.backend][1]
        return loops.over_weft(
            sock, parameters, make, client=client, reuse=args.reuse_alloc, waits=waits, settings=settings
        )
    finally:
        os.sched_setaffinity(0, before)
