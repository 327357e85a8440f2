# SPDX-License-Identifier: BSD-3-Clause
"""Several buffers as one message: a table with the small buffers first, then each large one in its own memory.

The first segment is ``count, threshold, place, entry * count`` as little-endian 64-bit integers, followed by the small
buffers, each padded to 16 B; the large buffers follow as segments. Small buffers are copied on arrival: one that
outlives the message must not keep all of it alive. If more buffers are large than a header lists, the largest are
segments, and of equal ones the first. An entry is a size. For a buffer on a CUDA device it also encodes
the device and the library that owns the memory; such a buffer is sent separately, numbered from `place`, into whatever
memory the receiver allocates.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from weft import _native
from weft.errors import HandshakeError, InvalidParamError, NotContiguousError

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: A buffer of this size or more is a segment of its own: it is sent in place, and received into a block of whole
#: pages.
LARGE_NBYTES = 64 * 1024
#: The most segments that one header can list in addition to the first.
MAX_LARGE = 512
_PAD = 16
_TABLE = struct.Struct("<3Q")

#: The library that owns a device buffer's memory, so that the receiver can allocate with the same; sent as an index.
LIBRARIES = ("", "cupy", "numba", "torch", "rmm")
_ON_DEVICE, _LIBRARY_SHIFT, _DEVICE_SHIFT = 1 << 63, 56, 48
_SIZE_MASK = (1 << _DEVICE_SHIFT) - 1
#: These types are always in host memory, so they are not inspected.
HOST = (memoryview, bytes, bytearray)
#: DLPack's device types for CUDA memory and CUDA managed memory.
CUDA, CUDA_MANAGED = 2, 13

Message = memoryview | tuple[memoryview, ...]


class Packed(NamedTuple):
    """A message ready to send: the first segment, the large ones, and the device buffers to be sent separately.

    `nbytes` is the size of all buffers; `on_device` says whether any is on a device, even an empty one.
    """

    first: Buffer
    large: list[Buffer]
    placed: list[Any]
    nbytes: int
    on_device: bool


class DeviceBuffer(NamedTuple):
    """The table's entry for a buffer that is sent separately. `number` is None if it is empty."""

    number: int | None
    nbytes: int
    device: int
    library: str


def device_of(buffer: Any) -> int | None:
    """Return the index of the CUDA device that holds `buffer`; None if it is not on one."""
    if hasattr(buffer, "__dlpack_device__"):
        kind, index = buffer.__dlpack_device__()
        return int(index) if kind in (CUDA, CUDA_MANAGED) else None
    interface = getattr(buffer, "__cuda_array_interface__", None)
    if interface is None:
        return None
    address = interface["data"][0]
    return _native.cuda_device(address) if address else 0


def pack(buffers: Sequence[Any], place: int) -> Packed:
    """Arrange `buffers` for sending; `place` is the next free number for a device buffer.

    This is a single loop: a Python call for each buffer would dominate the cost of a message with many.
    """
    views: list[memoryview] = []
    entries: list[int] = []
    placed: list[Any] = []
    nbytes, n_large, on_device = 0, 0, False
    for buffer in buffers:
        device = None if type(buffer) in HOST else device_of(buffer)
        if device is not None:
            on_device = True
            entries.append(_entry(buffer, device))
            nbytes += buffer.nbytes
            if buffer.nbytes:
                placed.append(buffer)
            continue
        try:
            view = memoryview(buffer)
        except ValueError:
            view = _view(buffer, "send_frames")
        if "O" in view.format:
            _refuse_objects(view, "send_frames")
        if not view.c_contiguous:
            view = in_memory_order(view, "send_frames")
        size = view.nbytes
        views.append(view)
        entries.append(size)
        nbytes += size
        n_large += size >= LARGE_NBYTES
    threshold = LARGE_NBYTES
    if n_large > MAX_LARGE:
        threshold = sorted((view.nbytes for view in views), reverse=True)[MAX_LARGE - 1]
    ties = n_large if n_large < MAX_LARGE else _ties((view.nbytes for view in views), threshold)
    parts: list[Buffer] = [_TABLE.pack(len(entries), threshold, place), struct.pack(f"<{len(entries)}Q", *entries)]
    large: list[Buffer] = []
    offset = _TABLE.size + 8 * len(entries)
    for view in views:
        size = view.nbytes
        if size > threshold or (size == threshold and ties):
            ties -= size == threshold
            large.append(view)
            continue
        parts += [b"\0" * (-offset % _PAD), view]
        offset += -offset % _PAD + size
    return Packed(b"".join(parts), large, placed, nbytes, on_device)


def _view(buffer: Any, op: str = "send") -> memoryview:
    try:
        return memoryview(buffer)
    except ValueError:
        # NumPy has no format for some of its types, as for dates: their bytes are sent, as from all other memory.
        dtype = getattr(buffer, "dtype", None)
        if dtype is None:
            raise
        if dtype.hasobject:
            raise _holds_objects(buffer, op) from None
        return memoryview(buffer.view(f"V{dtype.itemsize}"))


def _refuse_objects(view: memoryview, op: str = "send") -> None:
    # a format has field names between colons
    if any("O" in codes for codes in view.format.split(":")[::2]):
        raise _holds_objects(view.obj, op)


def _holds_objects(buffer: object, op: str) -> InvalidParamError:
    return InvalidParamError(
        f"{op}: the {type(buffer).__name__} holds Python objects, whose pointers are valid only in this process; send "
        "them pickled, with send_obj",
        op=op,
    )


def in_memory_order(buffer: Any, op: str = "send") -> memoryview:
    """View the bytes of a C- or Fortran-contiguous buffer in memory order."""
    import pickle  # lazy: it would slow down weft's import

    try:
        view = _view(buffer, op)
        _refuse_objects(view, op)
        return pickle.PickleBuffer(view).raw()
    except BufferError:
        remedy = (
            "a contiguous array, and copy from it when the operation has ended"
            if op == "recv_into"
            else "a copy, e.g. numpy.ascontiguousarray(x) or x.contiguous()"
        )
        text = f"{op}: the {type(buffer).__name__} is not contiguous; pass {remedy}"
        raise NotContiguousError(text, op=op) from None


def _entry(buffer: Any, device: int) -> int:
    top = type(buffer).__module__.partition(".")[0]
    library = LIBRARIES.index(top) if top in LIBRARIES else 0
    nbytes = int(buffer.nbytes)
    if nbytes > _SIZE_MASK or not 0 <= device < 256:
        raise InvalidParamError(
            f"send_frames: {nbytes} B on device {device} are more than a message's table can describe"
        )
    return _ON_DEVICE | library << _LIBRARY_SHIFT | device << _DEVICE_SHIFT | nbytes


def _ties(sizes: Iterable[int], threshold: int) -> int:
    """Count how many buffers of exactly the threshold's size, the first ones, a full header lists as large."""
    return MAX_LARGE - sum(size > threshold for size in sizes)


def unpack(message: Message) -> tuple[list[Any], list[int]]:
    """Return the buffers of a message made by :func:`pack`, writable and aligned.

    Buffers that are sent separately are returned as a :class:`DeviceBuffer`; the second list has their indices.
    """
    first, large = (message, ()) if isinstance(message, memoryview) else (message[0], message[1:])
    try:
        count, threshold, place = _TABLE.unpack_from(first)
        if count > first.nbytes // 8:
            raise ValueError(f"a table of {count} buffers in {first.nbytes} B")
        entries = struct.unpack_from(f"<{count}Q", first, _TABLE.size)
        ties = count if len(large) < MAX_LARGE else _ties((e for e in entries if not e & _ON_DEVICE), threshold)
        rest = iter(large)
        out: list[Any] = []
        elsewhere: list[int] = []
        offset = _TABLE.size + 8 * count
        for size in entries:
            if size & _ON_DEVICE:
                elsewhere.append(len(out))
                out.append(_device_buffer(size, place))
                place += bool(size & _SIZE_MASK)
                continue
            if size > threshold or (size == threshold and ties > 0):
                ties -= size == threshold
                out.append(next(rest))
                continue
            offset += -offset % _PAD
            if offset + size > first.nbytes:
                raise ValueError("the table does not fit the message")
            out.append(bytearray(first[offset : offset + size]))
            offset += size
    except (struct.error, ValueError, StopIteration) as e:
        raise HandshakeError(
            f"recv_frames or recv_obj: the message was not sent by send_frames or send_obj ({e}); use recv"
        ) from None
    return out, elsewhere


def _device_buffer(entry: int, number: int) -> DeviceBuffer:
    library = entry >> _LIBRARY_SHIFT & 0x7F
    if library >= len(LIBRARIES):
        raise ValueError(f"unknown memory library {library}")
    nbytes = entry & _SIZE_MASK
    return DeviceBuffer(number if nbytes else None, nbytes, entry >> _DEVICE_SHIFT & 0xFF, LIBRARIES[library])
