# SPDX-License-Identifier: BSD-3-Clause
"""UCXX's core over weft, except for what needs C++: context, worker, endpoint, listener, requests.

It is the asyncio interface for programs without a loop: each thread has a loop here, and ``progress()`` runs one turn
of it. There are no streams, no progress thread (a worker belongs to its thread) and no pointers to C++ objects.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from weft.compat._core import describe
from weft.compat._core.address import UCXAddress
from weft.compat._core.context import ApplicationContext
from weft.compat._core.process import get_ucx_version
from weft.compat.ucxx._lib.pointers import no_pointer
from weft.compat.ucxx._lib.tag import TagProbeResult, UCXXTag, UCXXTagMask, UCXXTagMaskFull
from weft.compat.ucxx._lib.worker import Feature, UCXRequest, UCXWorker, run
from weft.compat.ucxx._lib_async.endpoint import Endpoint
from weft.compat.ucxx._lib_async.listener import Listener
from weft.compat.ucxx.exceptions import *  # noqa: F403
from weft.compat.ucxx.exceptions import UCXError, UCXInvalidParamError, UCXUnsupportedError

_CONNECT_TIMEOUT_S = 60.0


class _Context(ApplicationContext[Endpoint, Listener]):
    endpoint_type = Endpoint
    listener_type = Listener


class UCXContext:
    """A UCP context.

    Parameters
    ----------
    config_dict : mapping of str to str, optional
        UCX settings without ``UCX_``.
    feature_flags : iterable of Feature
        Checked at each transfer.
    """

    def __init__(
        self,
        config_dict: Mapping[str, str] | None = None,
        feature_flags: Iterable[Feature] = (Feature.TAG, Feature.WAKEUP, Feature.STREAM, Feature.AM, Feature.RMA),
    ) -> None:
        self._options = dict(config_dict or {})
        self.feature_flags = functools.reduce(lambda flags, feature: flags | feature.value, feature_flags, 0)
        self._context = self.make()

    def make(self) -> _Context:
        """Make a context for a worker; each worker has its own."""
        return _Context(self._options, _CONNECT_TIMEOUT_S)

    @property
    def config(self) -> dict[str, str]:
        """Every setting."""
        return describe.config(self._context.settings)

    @property
    def cuda_support(self) -> bool:
        """Whether UCX may use its GPU transports."""
        return self._context.cuda_support

    @property
    def info(self) -> str:
        """UCX's description of the context."""
        return describe.context_text(self._context.settings)

    @property
    def ucxx_ptr(self) -> int:
        """Not supported; raises UCXUnsupportedError."""
        raise no_pointer("Context")


UCXBufferRequests = UCXRequest


class UCXEndpoint:
    """A connection, made by :meth:`create`, :meth:`create_from_worker_address` or a :class:`UCXListener`."""

    def __init__(self, worker: UCXWorker | None = None, endpoint: Endpoint | None = None) -> None:
        if worker is None or endpoint is None:
            raise TypeError("UCXEndpoint cannot be instantiated directly.")
        self._worker = worker
        self._endpoint = endpoint
        self._connection = endpoint.connection

    @classmethod
    def create(cls, worker: UCXWorker, ip_address: str, port: int, endpoint_error_handling: bool) -> UCXEndpoint:
        """Connect to a listener; returns once connected, after 60 s at most."""
        made = run(worker.context.create_endpoint(ip_address, port, endpoint_error_handling))
        return cls(worker, made)

    @classmethod
    def create_from_worker_address(
        cls, worker: UCXWorker, address: UCXAddress, endpoint_error_handling: bool
    ) -> UCXEndpoint:
        """Connect to a worker."""
        made = run(worker.context.create_endpoint_from_worker_address(address, endpoint_error_handling))
        return cls(worker, made)

    @classmethod
    def create_from_conn_request(
        cls, listener: UCXListener, conn_request: int, endpoint_error_handling: bool
    ) -> UCXEndpoint:
        """Return the endpoint of a connection request that a listener's function received."""
        return listener.create_endpoint_from_conn_request(conn_request, endpoint_error_handling)

    @property
    def handle(self) -> int:
        """The address of the ``ucp_ep_h``, which all connections to the same process share."""
        return self._connection.wire.endpoint.handle

    @property
    def worker_handle(self) -> int:
        """The address of the ``ucp_worker_h``."""
        return self._worker.handle

    @property
    def ucxx_ptr(self) -> int:
        """Not supported; raises UCXUnsupportedError."""
        raise no_pointer("Endpoint")

    @property
    def ucxx_worker_ptr(self) -> int:
        """Not supported; raises UCXUnsupportedError."""
        raise no_pointer("Worker")

    @property
    def alive(self) -> bool:
        """Whether neither side has ended the connection."""
        return self._endpoint.alive

    def close(self) -> None:
        """Close at once."""
        self._endpoint.abort()

    def close_blocking(self, period: int = 0, max_attempts: int = 1) -> None:
        """Close at once; the arguments have no effect."""
        self._endpoint.abort()

    def raise_on_error(self) -> None:
        """Raise the error that ended the connection, if the peer ended it."""
        self._connection.raise_on_error()

    def set_close_callback(
        self,
        cb_func: Callable[..., object],
        cb_args: Sequence[Any] | None = None,
        cb_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Set a function to call once, with these arguments, when either side ends the connection."""
        self._endpoint.set_close_callback(cb_func, cb_args, cb_kwargs)

    def remove_close_callback(self) -> None:
        """Remove the close callback."""
        self._endpoint.set_close_callback(lambda: None)

    def am_probe(self) -> bool:
        """Whether an active message can be received now."""
        return self._connection.am_probe()

    def am_send(self, arr: Any) -> UCXRequest:
        """Send an active message."""
        self._worker.need(Feature.AM)
        return UCXRequest(self._worker, self._endpoint.am_send(arr))

    def am_recv(self) -> UCXRequest:
        """Receive an active message; it is then in :attr:`UCXRequest.recv_buffer`."""
        self._worker.need(Feature.AM)
        return UCXRequest(self._worker, self._endpoint.am_recv())

    def stream_send(self, arr: Any) -> UCXRequest:
        """Not supported: connections share a UCX endpoint, and thus its stream. Raises UCXUnsupportedError."""
        self._worker.need(Feature.STREAM)
        raise UCXUnsupportedError("weft's ucxx has no streams: use tags or active messages")

    stream_recv = stream_send

    def tag_send(self, arr: Any, tag: UCXXTag) -> UCXRequest:
        """Send a message with this tag."""
        self._worker.need(Feature.TAG)
        return UCXRequest(self._worker, self._endpoint.send(arr, tag, force_tag=True))

    def tag_recv(self, arr: Any, tag: UCXXTag, tag_mask: UCXXTagMask = UCXXTagMaskFull) -> UCXRequest:
        """Receive a message with this tag."""
        self._worker.need(Feature.TAG)
        return UCXRequest(self._worker, self._endpoint.recv(arr, tag, force_tag=True, mask=int(tag_mask)))

    def tag_recv_with_handle(self, arr: Any, probe_result: TagProbeResult) -> UCXRequest:
        """Receive the message that a probe removed from the queue."""
        return UCXRequest(self._worker, self._endpoint.recv_with_handle(arr, probe_result))

    def tag_send_multi(self, arrays: Sequence[Any], tag: UCXXTag) -> UCXRequest:
        """Send several buffers as one message."""
        self._worker.need(Feature.TAG)
        return UCXRequest(self._worker, self._endpoint.send_multi(tuple(arrays), tag, force_tag=True))

    def tag_recv_multi(self, tag: UCXXTag, tag_mask: UCXXTagMask = UCXXTagMaskFull) -> UCXRequest:
        """Receive several buffers; they are then in :attr:`UCXRequest.py_buffers`."""
        self._worker.need(Feature.TAG)
        return UCXRequest(self._worker, self._endpoint.recv_multi(tag, force_tag=True))


UCXWorker.endpoint_type = UCXEndpoint


class UCXListener:
    """Accepts connections; made by :meth:`create`. It stops listening when it is deleted."""

    def __init__(self, worker: UCXWorker, serve: Callable[[UCXListener, Endpoint], None], port: int) -> None:
        self._worker = worker
        self._requests: dict[int, Endpoint] = {}
        self._numbers = itertools.count(1)

        async def listen() -> Listener:
            return cast("Listener", worker.context.create_listener(functools.partial(serve, self), port))

        self._listener = cast("Listener", run(listen()))

    @classmethod
    def create(
        cls,
        worker: UCXWorker,
        port: int,
        cb_func: Callable[..., object],
        cb_args: Sequence[Any] | None = None,
        cb_kwargs: Mapping[str, Any] | None = None,
        deliver_endpoint: bool = False,
    ) -> UCXListener:
        """Listen, and call `cb_func` in :meth:`UCXWorker.progress` for each new connection.

        Its first argument is a number for :meth:`create_endpoint_from_conn_request`, or with `deliver_endpoint` the
        endpoint; `cb_args` and `cb_kwargs` follow.
        """

        def serve(listener: UCXListener, endpoint: Endpoint) -> None:
            first: Any = UCXEndpoint(worker, endpoint) if deliver_endpoint else next(listener._numbers)
            if not deliver_endpoint:
                listener._requests[first] = endpoint
            cb_func(first, *(cb_args or ()), **(cb_kwargs or {}))

        return cls(worker, serve, port)

    def create_endpoint_from_conn_request(self, conn_request: int, endpoint_error_handling: bool) -> UCXEndpoint:
        """Return the endpoint of the connection request with this number."""
        if conn_request not in self._requests:
            raise UCXInvalidParamError(f"{conn_request} is not a connection request of this listener")
        return UCXEndpoint(self._worker, self._requests.pop(conn_request))

    @property
    def port(self) -> int:
        """The listening port."""
        return self._listener.port

    @property
    def ip(self) -> str:
        """The bound address."""
        return self._listener.ip

    @property
    def enable_python_future(self) -> bool:
        """Its worker's setting, which has no effect."""
        return self._worker.enable_python_future

    @property
    def ucxx_ptr(self) -> int:
        """Not supported; raises UCXUnsupportedError."""
        raise no_pointer("Listener")


def get_current_options() -> dict[str, str]:
    """Return every setting that a context would have from the environment."""
    return describe.config({})


__all__ = [
    "Feature",
    "TagProbeResult",
    "UCXAddress",
    "UCXBufferRequests",
    "UCXContext",
    "UCXEndpoint",
    "UCXError",
    "UCXListener",
    "UCXRequest",
    "UCXWorker",
    "UCXXTag",
    "UCXXTagMask",
    "UCXXTagMaskFull",
    "get_current_options",
    "get_ucx_version",
]
