# SPDX-License-Identifier: BSD-3-Clause
"""UCX's own descriptions of its settings and of a context, as text, through ctypes.

The native core exposes no handles, so these functions make a context (and worker) of their own with the same settings,
and destroy it at once.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Generator, Mapping

import weft

_FEATURES = 1 | 2 | 16 | 32 | 64  # tag, rma, wakeup, stream, active messages: as in ucx-py


def _library() -> ctypes.CDLL:
    return ctypes.CDLL(weft.ucx_library().path)


def _printed(call: Callable[[ctypes.c_void_p], object]) -> str:
    """Return what `call` writes to a C stream."""
    c = ctypes.CDLL(None)
    c.open_memstream.restype = ctypes.c_void_p
    text, nbytes = ctypes.c_void_p(), ctypes.c_size_t()
    stream = ctypes.c_void_p(c.open_memstream(ctypes.byref(text), ctypes.byref(nbytes)))
    if not stream:
        raise MemoryError("open_memstream")
    try:
        call(stream)
    finally:
        c.fclose(stream)
    try:
        return ctypes.string_at(text, nbytes.value).decode(errors="replace")
    finally:
        c.free(text)


@contextlib.contextmanager
def _config(settings: Mapping[str, str]) -> Generator[tuple[ctypes.CDLL, ctypes.c_void_p]]:
    ucp = _library()
    config = ctypes.c_void_p()
    _check(ucp.ucp_config_read(None, None, ctypes.byref(config)), "ucp_config_read")
    try:
        for name, value in settings.items():
            _check(ucp.ucp_config_modify(config, name.encode(), value.encode()), f"ucp_config_modify {name}={value}")
        yield ucp, config
    finally:
        ucp.ucp_config_release(config)


@contextlib.contextmanager
def _context(settings: Mapping[str, str]) -> Generator[tuple[ctypes.CDLL, ctypes.c_void_p]]:
    # The first word is the field mask.
    parameters = (ctypes.c_uint64 * 64)(1, _FEATURES)
    context = ctypes.c_void_p()
    with _config(settings) as (ucp, config):
        _check(ucp.ucp_init_version(1, 16, parameters, config, ctypes.byref(context)), "ucp_init")
    try:
        yield ucp, context
    finally:
        ucp.ucp_cleanup(context)


def _check(status: int, what: str) -> None:
    if status:
        raise weft.Error(f"{what}: status {status}", status=status, op=what)


def config(settings: Mapping[str, str]) -> dict[str, str]:
    """Return every UCP setting without its prefix: from `settings`, else the environment, else UCX's defaults."""
    with _config(settings) as (ucp, handle):
        text = _printed(lambda stream: ucp.ucp_config_print(handle, stream, None, 1))
    lines = (line.partition("=") for line in text.splitlines() if line.startswith("UCX_"))
    return {name.removeprefix("UCX_"): value for name, _, value in lines}


def context_text(settings: Mapping[str, str]) -> str:
    """Return ``ucp_context_print_info`` of a context with these settings."""
    with _context(settings) as (ucp, handle):
        return _printed(lambda stream: ucp.ucp_context_print_info(handle, stream))


def worker_text(settings: Mapping[str, str]) -> str:
    """Return ``ucp_worker_print_info`` of a worker with these settings."""
    with _context(settings) as (ucp, handle):
        worker = ctypes.c_void_p()
        _check(ucp.ucp_worker_create(handle, (ctypes.c_uint64 * 64)(), ctypes.byref(worker)), "ucp_worker_create")
        try:
            return _printed(lambda stream: ucp.ucp_worker_print_info(worker, stream))
        finally:
            ucp.ucp_worker_destroy(worker)
