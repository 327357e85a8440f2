// SPDX-License-Identifier: BSD-3-Clause
// Exports memory as an array, and describes an array's layout, by DLPack, which has codes for the types that neither
// the buffer protocol nor the CUDA array interface can name (bfloat16 and the float8 kinds).
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <vector>

#include "buffer/buffer.hpp"
#include "buffer/device_sync.hpp"

namespace {

using Tensor = nb::ndarray<nb::ro>;

/// From Python's (code, bits, lanes).
nb::dlpack::dtype dtype_of(nb::tuple dtype) {
    return {nb::cast<uint8_t>(dtype[0]), nb::cast<uint8_t>(dtype[1]), nb::cast<uint16_t>(dtype[2])};
}

nb::tuple layout(nb::handle array) {
    nb::object device = array.attr("__dlpack_device__")();
    nb::object capsule;
    // Only the description is read, so no synchronization is needed, for which -1 stands in DLPack. JAX takes it for a
    // stream and fails (seen with 0.11.2), so whoever refuses it may synchronize.
    if (nb::cast<int>(nb::int_(device[0])) != nb::device::cpu::value) {
        nb::dict arguments;
        arguments["stream"] = -1;
        try {
            capsule = export_capsule(array, std::move(arguments));
        } catch (nb::python_error &e) {
            if (!e.matches(PyExc_Exception)) throw;
        }
    }
    if (!capsule.is_valid()) capsule = export_capsule(array, {});
    Tensor tensor;
    if (!PyCapsule_CheckExact(capsule.ptr()) || !nb::try_cast(capsule, tensor, false))
        raise("InvalidParamError", "layout: " + type_name_of(array) + " returned no tensor", "layout");
    nb::list shape, strides;
    for (size_t i = 0; i < tensor.ndim(); ++i) {
        shape.append(tensor.shape(i));
        strides.append(tensor.stride(i));
    }
    const auto type = tensor.dtype();
    return nb::make_tuple(nb::make_tuple(type.code, type.bits, type.lanes), nb::tuple(shape), nb::tuple(strides),
                          nb::make_tuple(tensor.device_type(), tensor.device_id()));
}

// Importers trust the view: strides may repeat and reorder items, but must not lead outside the memory.
void check_extent(size_t nbytes, const std::vector<size_t> &shape, const std::vector<int64_t> &strides, size_t item) {
    size_t last = 0;
    bool empty = false, bad = shape.size() != strides.size() || !item;
    for (size_t i = 0; !bad && i < shape.size(); ++i) {
        empty |= !shape[i];
        size_t reach = 0;
        bad = strides[i] < 0 || (shape[i] && __builtin_mul_overflow(shape[i] - 1, size_t(strides[i]), &reach)) ||
              __builtin_add_overflow(last, reach, &last);
    }
    if (!bad && !empty) bad = last >= nbytes / item;
    if (bad)
        raise("InvalidParamError", "view: the shape and strides exceed the memory of " + std::to_string(nbytes) + " B",
              "view");
}

nb::object view(nb::handle memory, nb::tuple dtype, const std::vector<size_t> &shape,
                const std::vector<int64_t> &strides, std::pair<int, int> device, bool writable) {
    auto held = std::make_unique<Buffer>();
    held->acquire(memory, writable, "view", ~uint64_t(0));
    const auto type = dtype_of(std::move(dtype));
    check_extent(held->nbytes(), shape, strides, size_t(type.bits) * type.lanes / 8);
    void *data = held->data();
    nb::capsule owner(held.release(), [](void *buffer) noexcept { delete static_cast<Buffer *>(buffer); });
    if (writable)
        return nb::cast(nb::ndarray<nb::array_api>(data, shape.size(), shape.data(), owner, strides.data(), type,
                                                   device.first, device.second));
    return nb::cast(nb::ndarray<nb::array_api, nb::ro>(data, shape.size(), shape.data(), owner, strides.data(), type,
                                                       device.first, device.second));
}

}  // namespace

void define_dlpack_export(nb::module_ &m) {
    // Return an array's DLPack description: type (code, bits, lanes), shape, strides in items, device (type, index).
    m.def("layout", &layout, nb::arg("array"),
          nb::sig("def layout(array: object) -> tuple[tuple[int, int, int], tuple[int, ...], tuple[int, ...], "
                  "tuple[int, int]]"));
    // Return `memory` as an array of `device`, exported by DLPack, and by the buffer protocol if that is the host.
    m.def("view", &view, nb::arg("memory"), nb::arg("dtype"), nb::arg("shape"), nb::arg("strides"), nb::arg("device"),
          nb::arg("writable"),
          nb::sig("def view(memory: typing_extensions.Buffer, dtype: tuple[int, int, int], shape: "
                  "collections.abc.Sequence[int], strides: collections.abc.Sequence[int], device: tuple[int, int], "
                  "writable: bool) -> typing.Any"));
    // Return the index of the device that the memory at `address` belongs to.
    m.def("cuda_device", &cuda_device, nb::arg("address"));
}
