# SPDX-License-Identifier: BSD-3-Clause
"""Which messages go to Dask's offload thread: those with much to pickle or compress, not those that are merely large.

distributed hands every message above ``distributed.comm.offload`` to its only offload thread, to keep the event loop
free. An array of any size becomes a frame, and a frame an array, in microseconds; handing it over costs more, and two
GIL switch intervals if a task holds the GIL. A value or header of unknown kind counts with its whole size, as in
distributed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distributed.protocol import Serialize
from distributed.sizeof import safe_sizeof
from distributed.utils import nbytes

from weft.dask import patches

#: Serializer families whose buffers become objects without a copy.
_VIEWS = ("dask", "cuda")
_NUMBERS = (bool, int, float)


def write_offloads(msg: Any) -> bool:
    """Tell whether the offload thread should serialize `msg`."""
    if _is_small(msg) or not (threshold := patches.offload_threshold()):
        return False
    size = safe_sizeof(msg, default_size=-1)
    if size == -1:  # nested too deeply to tell
        return True
    return bool(size > threshold and _pickled(msg, size) > threshold)


def _is_small(msg: Any) -> bool:
    """Tell whether `msg` is a few names and numbers, like most Dask messages; ten times as fast as sizeof."""
    rest: list[Any] = [msg]
    room = 64
    while rest:
        value = rest.pop()
        kind = value.__class__
        if kind is str or kind is bytes:
            if len(value) > 1024:
                return False
        elif kind is dict or kind is list or kind is tuple:
            room -= len(value)
            if room < 0:
                return False
            rest.extend(value.values() if kind is dict else value)
        elif value is not None and kind not in _NUMBERS:
            return False
    return True


def _pickled(msg: Any, size: int) -> int:
    """Count the bytes to be pickled: in an answer to ``get_data``, by value; in any other message, all of them."""
    if msg.__class__ is not dict or msg.get("data").__class__ is not dict:
        return size
    return sum(map(_of_value, msg["data"].values()))


def _of_value(value: Any) -> int:
    value = value.data if isinstance(value, Serialize) else value
    return 0 if _is_buffers(value) else int(safe_sizeof(value))


def _is_buffers(value: Any) -> bool:
    """Whether a value is NumPy's or pandas' and has no Python objects, so that its buffers are sent in place."""
    library, dtype = type(value).__module__.partition(".")[0], getattr(value, "dtype", None)
    if library == "numpy":
        return dtype is not None and not dtype.hasobject and bool(value.flags.forc)
    if library == "pandas":
        dtypes = getattr(value, "dtypes", ()) if dtype is None else [dtype]  # a DataFrame has several
        return len(dtypes) > 0 and not any(map(_of_objects, dtypes))
    return False


def _of_objects(dtype: Any) -> bool:
    return dtype.name == "object" or getattr(dtype, "storage", None) == "python"


def read_offloads(frames: Sequence[Any], size: int) -> bool:
    """Tell whether the offload thread should deserialize `frames`, of `size` bytes in total."""
    threshold = patches.offload_threshold()
    if not threshold or size <= threshold:
        return False
    try:
        return bool(_to_unpickle(frames) > threshold)
    except Exception:  # noqa: BLE001 - no frames of Dask's: reading them says what is wrong with them
        return True


def _to_unpickle(frames: Sequence[Any]) -> int:
    """Add up the bytes that are not usable as received: pickles without their buffers, and compressed frames."""
    total = int(nbytes(frames[0]))
    for header_nbytes, header, own in patches.serialized_parts(frames):
        total += header_nbytes + _of_object(header, [nbytes(frame) for frame in own])
    return total


def _of_object(header: dict[str, Any], sizes: list[int]) -> int:
    if any(header.get("compression") or ()):
        return sum(sizes)
    if header.get("serializer") == "pickle":
        return sizes[0]
    if "pickled-obj" in header:  # the pickle is in the header, its buffers are frames
        return 0
    views = header.get("serializer") in _VIEWS and not header.get("sub-header", {}).get("pickle")
    return 0 if views else sum(sizes)
