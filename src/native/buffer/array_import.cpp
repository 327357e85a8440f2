// SPDX-License-Identifier: BSD-3-Clause
// Arrays without the buffer protocol: DLPack (1.0 and earlier), and the CUDA array interface (version 3).
//
// DLPack goes first, because it says the kind of memory and whether it is writable, and because the consumer tells the
// producer which stream to synchronize with; PyTorch's CUDA array interface names no stream. Either way, the producer's
// work has finished before UCX gets the memory: UCX synchronizes with no stream.
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "buffer/buffer.hpp"
#include "buffer/device_sync.hpp"

namespace {

using Tensor = nb::ndarray<nb::ro>;

/// The requirements of an operation for an array.
struct Demand {
    nb::handle object;
    bool writable;
    const char *op;
    uint64_t memory_types;

    std::string kind() const { return type_name_of(object); }
    [[noreturn]] void refuse(const char *error, const std::string &why) const {
        raise(error, std::string(op) + ": the " + kind() + " " + why, op);
    }
};

/// DLPack's DLDeviceType, indexed by its number.
struct Device {
    const char *name;
    ucs_memory_type_t memory_type = UCS_MEMORY_TYPE_UNKNOWN;
};

Device device_of(int type) {
    switch (type) {
        case 1: return {"CPU", UCS_MEMORY_TYPE_HOST};
        case 2: return {"CUDA", UCS_MEMORY_TYPE_CUDA};
        case 3: return {"CUDA host", UCS_MEMORY_TYPE_HOST};
        case 4: return {"OpenCL"};
        case 7: return {"Vulkan"};
        case 8: return {"Metal"};
        case 9: return {"VPI"};
        case 10: return {"ROCm", UCS_MEMORY_TYPE_ROCM};
        case 11: return {"ROCm host"};
        case 13: return {"CUDA managed", UCS_MEMORY_TYPE_CUDA_MANAGED};
        case 14: return {"oneAPI"};
        case 15: return {"WebGPU"};
        case 16: return {"Hexagon"};
        case 17: return {"MAIA"};
        case 18: return {"Trainium"};
        default: return {"unknown"};
    }
}

void check_reach(const Demand &demand, ucs_memory_type_t memory_type, const std::string &device) {
    if (demand.memory_types >> memory_type & 1) return;
    std::string usable;
    for (int i = 0; i < UCS_MEMORY_TYPE_LAST; ++i)
        if (demand.memory_types >> i & 1) usable += (usable.empty() ? "" : ", ") + std::string(memory_type_name(i));
    demand.refuse("UnsupportedError", "is in " + device + " memory; UCX can use only " + usable +
                                          " memory here (see Context.memory_types); pass a copy in host memory");
}

// Also for strides in items, with a unit of 1.
bool is_contiguous(size_t nbytes, size_t ndim, const int64_t *shape, const int64_t *strides, size_t unit) {
    static_assert(sizeof(Py_ssize_t) == sizeof(int64_t));
    Py_buffer view{};
    view.len = Py_ssize_t(nbytes);
    view.itemsize = Py_ssize_t(unit);
    view.ndim = int(ndim);
    view.shape = reinterpret_cast<Py_ssize_t *>(const_cast<int64_t *>(shape));
    view.strides = reinterpret_cast<Py_ssize_t *>(const_cast<int64_t *>(strides));
    return PyBuffer_IsContiguous(&view, 'A');
}

// ---- DLPack -------------------------------------------------------------------------------------------------------

int64_t integer(nb::handle number) {
    const int64_t value = PyLong_AsLongLong(nb::int_(number).ptr());
    if (value == -1 && PyErr_Occurred()) throw nb::python_error();
    return value;
}

// The length in bytes of items of `unit` B each, at `data`.
size_t length_of(const Demand &demand, size_t ndim, const int64_t *shape, size_t unit, const void *data) {
    int64_t nbytes = int64_t(unit);
    bool possible = true;
    for (size_t i = 0; i < ndim; ++i) possible &= shape[i] >= 0 && !__builtin_mul_overflow(nbytes, shape[i], &nbytes);
    if (!possible || (nbytes && !data)) demand.refuse("InvalidParamError", "has an impossible shape or no memory");
    return size_t(nbytes);
}

// Refuses extents that nanobind must not multiply.
void check_extents(const Demand &demand, PyObject *capsule) {
    const bool versioned = PyCapsule_IsValid(capsule, "dltensor_versioned");
    const char *name = versioned ? "dltensor_versioned" : "dltensor";
    if (!PyCapsule_IsValid(capsule, name)) return;
    // The versioned struct begins with the version, two pointers, and flags.
    const size_t before = versioned ? 2 * sizeof(uint32_t) + 2 * sizeof(void *) + sizeof(uint64_t) : 0;
    const auto *managed = static_cast<const char *>(PyCapsule_GetPointer(capsule, name));
    if (versioned && *reinterpret_cast<const uint32_t *>(managed) != 1) return;  // nanobind refuses it
    const auto &tensor = *reinterpret_cast<const nb::dlpack::dltensor *>(managed + before);
    length_of(demand, size_t(std::max(tensor.ndim, 0)), tensor.shape, std::max(tensor.dtype.bits / 8, 1), managed);
}

Tensor import_tensor(const Demand &demand, nb::dict arguments) {
    nb::object capsule = export_capsule(demand.object, std::move(arguments));
    if (!PyCapsule_CheckExact(capsule.ptr())) demand.refuse("InvalidParamError", "returned no capsule from __dlpack__");
    check_extents(demand, capsule.ptr());
    nb::ndarray<> writable;
    Tensor tensor;
    // If the cast fails, the capsule still owns the tensor and releases it.
    if (demand.writable && nb::try_cast(capsule, writable, false)) return Tensor(writable);
    if (!nb::try_cast(capsule, tensor, false)) demand.refuse("InvalidParamError", "returned no tensor from __dlpack__");
    if (demand.writable) refuse_read_only(demand.object, demand.op);
    return tensor;
}

void acquire_dlpack(Buffer &buffer, const Demand &demand) {
    nb::object told = demand.object.attr("__dlpack_device__")();
    const int64_t type = integer(told[0]), id = integer(told[1]);
    const Device device = device_of(int(type));
    if (device.memory_type == UCS_MEMORY_TYPE_UNKNOWN)
        demand.refuse("UnsupportedError", "is on a device of DLPack type " + std::to_string(type) + " (" + device.name +
                                              "); pass a copy in host memory");
    check_reach(demand, device.memory_type, device.name);
    nb::dict arguments;
    if (device.memory_type != UCS_MEMORY_TYPE_HOST)
        arguments["stream"] = device.memory_type == UCS_MEMORY_TYPE_ROCM ? rocm_default_stream : cuda_default_stream;
    Tensor tensor = import_tensor(demand, std::move(arguments));
    if (tensor.device_type() != type)
        demand.refuse("InvalidParamError", "is not on the device that __dlpack_device__ names");
    const size_t item_bits = size_t(tensor.dtype().bits) * tensor.dtype().lanes;
    if (item_bits % 8)
        demand.refuse("UnsupportedError", "has items of " + std::to_string(item_bits) + " bits; pass a view of bytes");
    void *data = const_cast<void *>(tensor.data());
    const size_t nbytes = length_of(demand, tensor.ndim(), tensor.shape_ptr(), item_bits / 8, data);
    if (!is_contiguous(nbytes, tensor.ndim(), tensor.shape_ptr(), tensor.stride_ptr(), 1))
        refuse_strided(demand.object, demand.writable, demand.op);
    if (nbytes && device.memory_type != UCS_MEMORY_TYPE_HOST) {
        if (device.memory_type == UCS_MEMORY_TYPE_ROCM)
            synchronize_rocm(int(id), demand.op);
        else
            synchronize_cuda(data, cuda_default_stream, demand.op);
        buffer.memory_type = device.memory_type;
    }
    nb::capsule keeper(new Tensor(std::move(tensor)), [](void *t) noexcept { delete static_cast<Tensor *>(t); });
    buffer.view.buf = data;
    buffer.view.len = Py_ssize_t(nbytes);
    buffer.view.obj = keeper.release().ptr();
}

// ---- the CUDA array interface -------------------------------------------------------------------------------------

nb::object entry(nb::handle interface, const char *key) {
    nb::object value = nb::steal(PyMapping_GetItemString(interface.ptr(), key));
    if (value.is_valid()) return value;
    if (!PyErr_ExceptionMatches(PyExc_KeyError)) throw nb::python_error();
    PyErr_Clear();
    return nb::none();
}

std::vector<int64_t> integers(nb::handle sequence) {
    std::vector<int64_t> numbers;
    for (nb::handle number : nb::tuple(sequence)) numbers.push_back(integer(number));
    return numbers;
}

// "<f8": byte order, kind, and the item's size in bytes; other kinds count something else.
size_t item_nbytes(const Demand &demand, const std::string &typestr) {
    char *end = nullptr;
    const size_t nbytes = typestr.size() > 2 ? std::strtoul(typestr.c_str() + 2, &end, 10) : 0;
    if (!nbytes || end == typestr.c_str() + 2 || std::string("?biufcmMSV").find(typestr[1]) == std::string::npos)
        demand.refuse("UnsupportedError", "has items of type '" + typestr + "'; pass a view of bytes");
    return nbytes;
}

void acquire_cuda_array(Buffer &buffer, const Demand &demand) {
    nb::object interface = demand.object.attr("__cuda_array_interface__");
    if (!entry(interface, "mask").is_none())
        demand.refuse("UnsupportedError", "is masked; pass its data without the mask");
    const size_t unit = item_nbytes(demand, nb::cast<std::string>(nb::str(entry(interface, "typestr"))));
    const std::vector<int64_t> shape = integers(entry(interface, "shape"));
    nb::object data = entry(interface, "data");
    auto *address = reinterpret_cast<void *>(nb::cast<uintptr_t>(nb::int_(data[0])));
    const size_t nbytes = length_of(demand, shape.size(), shape.data(), unit, address);
    if (nb::object strides = entry(interface, "strides"); !strides.is_none()) {
        const std::vector<int64_t> steps = integers(strides);
        if (steps.size() != shape.size() || !is_contiguous(nbytes, shape.size(), shape.data(), steps.data(), unit))
            refuse_strided(demand.object, demand.writable, demand.op);
    }
    if (demand.writable && nb::cast<bool>(nb::bool_(data[1]))) refuse_read_only(demand.object, demand.op);
    if (nbytes) {
        check_reach(demand, UCS_MEMORY_TYPE_CUDA, "CUDA (" + std::to_string(nbytes) + " B)");
        nb::object stream = entry(interface, "stream");
        if (!stream.is_none()) synchronize_cuda(address, nb::cast<uintptr_t>(nb::int_(stream)), demand.op);
        buffer.memory_type = is_cuda_managed(address, demand.op) ? UCS_MEMORY_TYPE_CUDA_MANAGED : UCS_MEMORY_TYPE_CUDA;
    }
    buffer.view.buf = address;
    buffer.view.len = Py_ssize_t(nbytes);
    // In a tuple: releasing the export must not call the array's own bf_releasebuffer.
    buffer.view.obj = nb::make_tuple(demand.object).release().ptr();
}

}  // namespace

// If `stream` is given, the producer orders it after its work; the first call is for producers that know DLPack 1.0.
nb::object export_capsule(nb::handle object, nb::dict arguments) {
    nb::object method = object.attr("__dlpack__");
    nb::dict versioned;
    versioned.update(arguments);
    versioned["max_version"] = nb::make_tuple(1, 0);
    try {
        return method(**versioned);
    } catch (nb::python_error &e) {
        if (!e.matches(PyExc_TypeError)) throw;
    }
    return method(**arguments);
}

bool acquire_array(Buffer &buffer, nb::handle object, bool writable, const char *op, uint64_t memory_types) {
    const Demand demand{object, writable, op, memory_types};
    if (nb::hasattr(object, "__dlpack_device__"))
        acquire_dlpack(buffer, demand);
    else if (nb::hasattr(object, "__cuda_array_interface__"))
        acquire_cuda_array(buffer, demand);
    else
        return false;
    return true;
}
