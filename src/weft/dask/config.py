# SPDX-License-Identifier: BSD-3-Clause
"""What weft reads from Dask's configuration: ``weft.yaml`` beside this file has the keys and their defaults.

``weft-schema.yaml`` says what each means and may be. ``weft.claim-ucx`` is not read here but in ``weft._claim_scheme``,
which runs before these defaults are loaded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

import dask.config
import yaml

from weft._claim_scheme import flag
from weft._connect.encryption import POLICIES, EncryptionPolicy
from weft.errors import InvalidParamError

LinksMode = Literal["learn", "observe", "off"]
LINKS: tuple[LinksMode, ...] = ("learn", "observe", "off")

DEFAULTS = yaml.safe_load(Path(__file__).with_name("weft.yaml").read_text())

# Dask puts the default, a mapping, in place of what is none, as DASK_WEFT__UCX=tcp, without a word: `ucx` tells.
_given = dask.config.get("weft.ucx", None)
dask.config.update_defaults(DEFAULTS)
if _given is not None and not isinstance(_given, Mapping):
    dask.config.set({"weft.ucx": _given})


def _get(key: str) -> Any:
    # a program may have cleared Dask's configuration, defaults and all
    return dask.config.get(f"weft.{key}", DEFAULTS["weft"][key])


def check() -> None:
    """Read every key, so that what cannot be meant is said when a process begins to listen.

    Raises
    ------
    InvalidParamError
        Which key, and what it was given.
    """
    for read in (lend, arrays_in_pool, shards_in_memory, device, rmm, ucx, encrypted_payload, links, cluster):
        read()


def _flag(key: str) -> bool:
    return flag(key, _get(key))


def lend() -> bool:
    """Whether results may be lent to workers of this host rather than copied."""
    return _flag("lend")


def arrays_in_pool() -> bool:
    """Whether NumPy arrays that tasks make are born where other workers can read them."""
    return _flag("arrays-in-pool")


def shards_in_memory() -> bool:
    """Whether a worker keeps what P2P's shuffles send to it in memory while there is room."""
    return _flag("shards-in-memory")


def device() -> bool:
    """Whether this process takes device memory as such."""
    return _flag("device")


def rmm() -> bool:
    """Whether RMM allocates what device memory is received into."""
    return _flag("rmm")


def ucx() -> dict[str, str]:
    """Return UCX's settings for Dask's connections.

    Dask writes ``DASK_WEFT__UCX__NET_DEVICES`` as ``net-devices`` or ``net_devices``, and turns values into Python's.
    """
    settings: Mapping[str, Any] = _get("ucx") or {}
    if not isinstance(settings, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] # from the user
        raise InvalidParamError(
            f"weft.ucx: {settings!r} is not a mapping of UCX settings; name one, as in DASK_WEFT__UCX__TLS={settings}"
        )
    return _of_distributed_ucxx() | {_name(name): _text(value) for name, value in settings.items()}


def _of_distributed_ucxx() -> dict[str, str]:
    """Return what ``distributed-ucxx.environment`` says, and older ``distributed.comm.ucx.environment``.

    The environment's own ``UCX_*`` win over it, as there. Its flags (``tcp``, ``infiniband``, ...) say what weft finds
    out by itself.
    """
    given: Any = dask.config.get("distributed-ucxx.environment", None) or dask.config.get(
        "distributed.comm.ucx.environment", {}
    )
    if not isinstance(given, Mapping):
        raise InvalidParamError(f"distributed-ucxx.environment: {given!r} is not a mapping of UCX settings")
    told = {_name(name): _text(value) for name, value in cast("Mapping[str, Any]", given).items()}
    return {name: value for name, value in told.items() if f"UCX_{name}" not in os.environ}


def _name(name: str) -> str:
    return name.upper().replace("-", "_")


def encrypted_payload() -> EncryptionPolicy:
    """Return what to do, with TLS, where messages would leave the host unencrypted."""
    given = _get("encrypted-payload")
    for payload in POLICIES:
        if given == payload:
            return payload
    raise InvalidParamError(f"weft.encrypted-payload: {given!r} is none of {', '.join(POLICIES)}")


def links() -> LinksMode:
    """Return what is done about links: ``learn``, ``observe`` or ``off``. YAML reads ``off`` as false."""
    given = _get("links")
    for mode in LINKS:
        if given == mode or (given is False and mode == "off"):
            return mode
    raise InvalidParamError(f"weft.links: {given!r} is none of {', '.join(LINKS)}")


def cluster() -> str | None:
    """Return the name under which what is learned of links is kept; None: it is not."""
    given = _get("cluster")
    if given is not None and (not isinstance(given, str) or not 0 < len(given) <= 100):
        raise InvalidParamError(f"weft.cluster: {given!r} is no name of 1 to 100 characters")
    return given


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "y" if value else "n"
    return ",".join(map(str, value)) if value.__class__ in (list, tuple) else str(value)
