# SPDX-License-Identifier: BSD-3-Clause
"""Whether messages would leave this host unencrypted, and the policy for it: ``payload`` of :func:`weft.connect`."""

from __future__ import annotations

from typing import Any, Literal

from weft.errors import EncryptionError, InvalidParamError

#: Policies for messages that would leave the host unencrypted, the strictest first. The stricter side decides.
EncryptionPolicy = Literal["refuse", "tls", "clear"]
POLICIES: tuple[EncryptionPolicy, ...] = ("refuse", "tls", "clear")
#: UCX's transports within one host, by the names that ``UCX_TLS`` uses.
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
    """Tell whether a value of ``UCX_TLS`` gives links on this host no network transport; None is unset."""
    return tls is None or _MEMORY_TLS.issuperset(tls.split(","))


def policy_of(tls: object, payload: EncryptionPolicy) -> EncryptionPolicy | None:
    """Validate a ``payload`` argument; return None without TLS (`tls` is None), where there is no choice.

    Raises
    ------
    InvalidParamError
        The policy does not exist, or needs TLS; `tls` is no SSLContext.
    """
    if tls is not None and not hasattr(tls, "wrap_bio"):
        raise InvalidParamError(f"ssl={tls!r} is not an ssl.SSLContext")
    if payload not in POLICIES:
        raise InvalidParamError(f"payload {payload!r} is not one of {', '.join(POLICIES)}")
    if tls is None and payload == "tls":
        raise InvalidParamError("payload 'tls' needs TLS: pass an ssl.SSLContext as `ssl`")
    return None if tls is None else payload


def over_tls(policy: EncryptionPolicy | None, hello: dict[str, Any], stays: bool, what: str) -> bool:
    """Tell whether messages go over the TLS socket. Both sides decide this from the same facts.

    `stays` is true if both are on one host, and this side's transports stay within it.

    Raises
    ------
    EncryptionError
        Messages would leave the host unencrypted, and a side does not allow it.
    """
    if policy is None or (stays and hello.get("memory_only") is True):
        return False
    told = hello.get("payload")
    strictest = min([policy, *(known for known in POLICIES if known == told)], key=POLICIES.index)
    if strictest == "refuse":
        whose = "this" if policy == "refuse" else "the other"
        raise EncryptionError(
            f"{what}: the processes share no memory, so UCX would send the messages over the network unencrypted, and"
            f" {whose} side refuses that; payload='tls' (Dask: weft.encrypted-payload: tls) on both sides sends them"
            " over the TLS socket"
        )
    return strictest == "tls"
