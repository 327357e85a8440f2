// SPDX-License-Identifier: BSD-3-Clause
#include "buffer/device_sync.hpp"

#include <dlfcn.h>

namespace {

void *driver(const char *library, const char *op) {
    void *handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
    if (!handle)
        raise("UnsupportedError",
              std::string(op) + ": the array is in device memory, but " + library + " is not loaded", op);
    return handle;
}

template <typename F>
void resolve(void *library, const char *symbol, F &function, const char *op) {
    function = reinterpret_cast<F>(dlsym(library, symbol));
    if (!function) raise("UnsupportedError", std::string(op) + ": the GPU's driver has no " + symbol, op);
}

/// The driver's functions, declared here, so that building weft does not need CUDA's toolkit.
struct Cuda {
    static constexpr int device_ordinal = 9, is_managed = 8;  // CU_POINTER_ATTRIBUTE_*

    int (*pointer_get_attribute)(void *value, int attribute, uintptr_t address);
    int (*primary_context_retain)(void **context, int device);
    int (*primary_context_release)(int device);
    int (*context_push)(void *context);
    int (*context_pop)(void **context);
    int (*stream_synchronize)(void *stream);

    explicit Cuda(const char *op) {
        void *library = driver("libcuda.so.1", op);
        resolve(library, "cuPointerGetAttribute", pointer_get_attribute, op);
        resolve(library, "cuDevicePrimaryCtxRetain", primary_context_retain, op);
        resolve(library, "cuDevicePrimaryCtxRelease_v2", primary_context_release, op);
        resolve(library, "cuCtxPushCurrent_v2", context_push, op);
        resolve(library, "cuCtxPopCurrent_v2", context_pop, op);
        resolve(library, "cuStreamSynchronize", stream_synchronize, op);
    }
};

const Cuda &cuda(const char *op) {
    static const Cuda functions(op);
    return functions;
}

int attribute(const void *address, int which, const char *op) {
    int value = 0;
    int error = cuda(op).pointer_get_attribute(&value, which, reinterpret_cast<uintptr_t>(address));
    if (error)
        raise("InvalidParamError",
              std::string(op) + ": the address is not CUDA memory (cuPointerGetAttribute: error " +
                  std::to_string(error) + ")",
              op);
    return value;
}

void check_driver(int error, const char *what, const char *op) {
    if (error)
        raise("Error",
              std::string(op) + ": waiting for the array's producer: " + what + ": error " + std::to_string(error), op);
}

}  // namespace

int cuda_device(uintptr_t address) {
    return attribute(reinterpret_cast<void *>(address), Cuda::device_ordinal, "cuda_device");
}

bool is_cuda_managed(const void *address, const char *op) {
    return attribute(address, Cuda::is_managed, op);
}

// A stream handle is only valid in its device's context, which need not be this thread's. Callbacks on a stream take
// the GIL, so waiting with the GIL held would deadlock.
void synchronize_cuda(const void *address, uintptr_t stream, const char *op) {
    const Cuda &c = cuda(op);
    const int device = attribute(address, Cuda::device_ordinal, op);
    void *context, *popped;
    check_driver(c.primary_context_retain(&context, device), "cuDevicePrimaryCtxRetain", op);
    int error = c.context_push(context);
    if (!error) {
        nb::gil_scoped_release without_gil;
        error = c.stream_synchronize(reinterpret_cast<void *>(stream));
        c.context_pop(&popped);
    }
    c.primary_context_release(device);
    check_driver(error, "cuStreamSynchronize", op);
}

void synchronize_rocm(int device, const char *op) {
    void *library = driver("libamdhip64.so", op);
    int (*get_device)(int *), (*set_device)(int), (*stream_synchronize)(void *);
    resolve(library, "hipGetDevice", get_device, op);
    resolve(library, "hipSetDevice", set_device, op);
    resolve(library, "hipStreamSynchronize", stream_synchronize, op);
    int before = 0;
    check_driver(get_device(&before), "hipGetDevice", op);
    check_driver(set_device(device), "hipSetDevice", op);
    int error;
    {
        nb::gil_scoped_release without_gil;
        error = stream_synchronize(nullptr);
    }
    set_device(before);
    check_driver(error, "hipStreamSynchronize", op);
}
