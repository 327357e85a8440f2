# SPDX-License-Identifier: BSD-3-Clause
"""The settings that weft reads from Dask's configuration; ``weft.yaml`` beside this file has the keys and defaults.

``weft-schema.yaml`` describes each key and its values. ``weft.claim-ucx`` is read in ``weft._claim_scheme``, which runs
before these defaults are loaded.
"""

from __future__ import annotations

import difflib
import logging
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

logger = logging.getLogger("weft")

DEFAULTS = yaml.safe_load(Path(__file__).with_name("weft.yaml").read_text())

# If the value is not a mapping (DASK_WEFT__UCX=tcp), Dask silently replaces it with the default; `ucx` reports it.
_given = dask.config.get("weft.ucx", None)
dask.config.update_defaults(DEFAULTS)
if _given is not None and not isinstance(_given, Mapping):
    dask.config.set({"weft.ucx": _given})


def _get(key: str) -> Any:
    # a program may have cleared Dask's configuration, including the defaults
    return dask.config.get(f"weft.{key}", DEFAULTS["weft"][key])


def check() -> None:
    """Read every key, so that invalid values are reported when a process begins to listen; warn of unknown keys.

    Raises
    ------
    InvalidParamError
        A value is invalid; the message names the key.
    """
    flags = (lend, arrays_in_pool, shards_in_memory, send_at_once, device, rmm)
    for read in (*flags, ucx, encrypted_payload, links, cluster):
        read()
    given = dask.config.get("weft", None)
    section: Mapping[Any, Any] = cast("Any", given) if isinstance(given, Mapping) else {}
    for key in section:
        if (name := str(key).replace("_", "-")) not in DEFAULTS["weft"]:
            near: list[str] = difflib.get_close_matches(name, list(DEFAULTS["weft"]), 1)
            hint = f"did you mean weft.{near[0]}?" if near else f"weft has {', '.join(DEFAULTS['weft'])}"
            logger.warning("weft.%s in Dask's configuration has no effect; %s", name, hint)


def _flag(key: str) -> bool:
    return flag(key, _get(key))


def lend() -> bool:
    """Whether results may be lent to workers of the same host instead of copied."""
    return _flag("lend")


def arrays_in_pool() -> bool:
    """Whether NumPy arrays made by tasks are allocated where other workers can read them."""
    return _flag("arrays-in-pool")


def shards_in_memory() -> bool:
    """Whether a worker keeps received P2P shards in memory while there is room."""
    return _flag("shards-in-memory")


def send_at_once() -> bool:
    """Whether small messages are sent without waiting for others to send with them."""
    return _flag("send-at-once")


def device() -> bool:
    """Whether this process receives device memory as device memory."""
    return _flag("device")


def rmm() -> bool:
    """Whether RMM allocates the device memory for received data."""
    return _flag("rmm")


def ucx() -> dict[str, str]:
    """Return UCX's settings for Dask's connections.

    Dask reads ``DASK_WEFT__UCX__NET_DEVICES`` as ``net-devices`` or ``net_devices``, and converts values to Python's.
    """
    settings: Mapping[str, Any] = _get("ucx") or {}
    if not isinstance(settings, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] # from the user
        raise InvalidParamError(
            f"weft.ucx: {settings!r} is not a mapping of UCX settings; name one, as in DASK_WEFT__UCX__TLS={settings}"
        )
    return _of_distributed_ucxx() | {_name(name): _text(value) for name, value in settings.items() if value is not None}


def _of_distributed_ucxx() -> dict[str, str]:
    """Return ``distributed-ucxx.environment``, or the older ``distributed.comm.ucx.environment``.

    As in distributed-ucxx, ``UCX_*`` environment variables override it. Its flags (``tcp``, ``infiniband``, ...) are
    ignored: weft detects these itself.
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
    """Return the policy for TLS connections whose messages would leave the host unencrypted."""
    given = _get("encrypted-payload")
    for payload in POLICIES:
        if given == payload:
            return payload
    raise InvalidParamError(f"weft.encrypted-payload: {given!r} is not one of {', '.join(POLICIES)}")


def links() -> LinksMode:
    """Return what to do about links: ``learn``, ``observe`` or ``off``. YAML reads ``off`` as false."""
    given = _get("links")
    for mode in LINKS:
        if given == mode or (given is False and mode == "off"):
            return mode
    raise InvalidParamError(f"weft.links: {given!r} is not one of {', '.join(LINKS)}")


def cluster() -> str | None:
    """Return the name under which learned links are saved; None: they are not saved."""
    given = _get("cluster")
    if given is not None and (not isinstance(given, str) or not 0 < len(given) <= 100):
        raise InvalidParamError(f"weft.cluster: {given!r} is not a name of 1 to 100 characters")
    return given


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "y" if value else "n"
    return ",".join(map(str, value)) if value.__class__ in (list, tuple) else str(value)
