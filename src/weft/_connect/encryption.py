# SPDX-License-Identifier: BSD-3-Clause
"""Whether messages would leave this host unencrypted, and what then: ``payload`` of :func:`weft.connect`."""

from __future__ import annotations

from typing import Any, Literal

from weft.errors import EncryptionError, InvalidParamError

#: What to do with messages that would leave the host unencrypted, the strictest first. The stricter side decides.
EncryptionPolicy = Literal["refuse", "tls", "clear"]
POLICIES: tuple[EncryptionPolicy, ...] = ("refuse", "tls", "clear")
#: UCX's transports that reach no further than this host, by the names that ``UCX_TLS`` takes.
_MEMORY_TLS = frozenset(
    (
        "posix",
        "self",
        "sysv",
        "cma",
        "knem",
        "xpmem",
        "mm",
        "shm",
        "sm",
        "cuda_copy",
        "cuda_ipc",
        "gdr_copy",
        "rocm_copy",
    )
)


def memory_only(tls: str | None) -> bool:
    """Tell whether what ``UCX_TLS`` says, if anything, leaves links on this host without a network transport."""
    return tls is None or _MEMORY_TLS.issuperset(tls.split(","))


def policy_of(tls: object, payload: EncryptionPolicy) -> EncryptionPolicy | None:
    """Check what a caller gave as ``payload``; None without TLS (`tls` is None), where there is no choice.

    Raises
    ------
    InvalidParamError
        There is no such policy, or no TLS to carry it out.
    """
    if payload not in POLICIES:
        raise InvalidParamError(f"payload {payload!r}: it is one of {', '.join(POLICIES)}")
    if tls is None and payload == "tls":
        raise InvalidParamError("payload 'tls': needs TLS, so give an ssl.SSLContext as `ssl`")
    return None if tls is None else payload


def over_tls(policy: EncryptionPolicy | None, hello: dict[str, Any], stays: bool, what: str) -> bool:
    """Tell whether messages go over the TLS socket. Both sides ask this of the same facts.

    `stays` is true if they are on one host, and this side's transports lead nowhere else.

    Raises
    ------
    EncryptionError
        They would leave the host unencrypted, and a side does not allow it.
    """
    if policy is None or (stays and hello.get("memory_only") is True):
        return False
    told = hello.get("payload")
    strictest = min([policy, *(known for known in POLICIES if known == told)], key=POLICIES.index)
    if strictest == "refuse":
        whose = "this" if policy == "refuse" else "the other"
        raise EncryptionError(
            f"{what}: no shared memory leads there, so UCX would send the messages over the network unencrypted, and"
            f" {whose} side refuses that; payload='tls' (Dask: weft.encrypted-payload: tls) on both sides has them go"
            " over the TLS socket"
        )
    return strictest == "tls"
