// SPDX-License-Identifier: BSD-3-Clause
#include "shared/numpy_allocator.hpp"

#include "ring/copy.hpp"
#include "ucp/forks.hpp"

namespace {

// NumPy's ABI, from its documentation of PyDataMem_Handler; the table's indices are part of the ABI since 1.22.
struct Allocator {
    void *context;
    void *(*malloc)(void *context, size_t nbytes);
    void *(*calloc)(void *context, size_t count, size_t nbytes);
    void *(*realloc)(void *context, void *data, size_t nbytes);
    void (*free)(void *context, void *data, size_t nbytes);
};

struct Handler {
    char name[127];
    uint8_t version;
    Allocator allocator;
};

constexpr int feature_version_index = 211, set_handler_index = 304, default_handler_index = 306;
constexpr unsigned first_feature_version = 14;  // NumPy 1.22
constexpr const char *handler_name = "mem_handler";
// Reading a hole of a file takes a page, while reading untouched memory of the C library takes none. A larger zeroed
// array is often a sparse one.
constexpr size_t most_zeroed = 256 * 1024 * 1024;

void **numpy_api = nullptr;
Allocator numpy_default;  // for arrays that are too small for the pool, or do not fit into it

void *pool_malloc(void *, size_t nbytes) {
    void *data = nbytes >= Pool::page_threshold ? Pool::acquire(nbytes, false, Pool::is_huge(nbytes)) : nullptr;
    return data ? data : numpy_default.malloc(numpy_default.context, nbytes);
}

void *pool_calloc(void *, size_t count, size_t nbytes) {
    size_t total;
    void *data = nullptr;
    if (!__builtin_mul_overflow(count, nbytes, &total) && total >= Pool::page_threshold && total <= most_zeroed)
        data = Pool::acquire(total, true, Pool::is_huge(total));
    return data ? data : numpy_default.calloc(numpy_default.context, count, nbytes);
}

void pool_free(void *, void *data, size_t nbytes) {
    if (!Pool::release(data)) numpy_default.free(numpy_default.context, data, nbytes);
}

// Some arrays under this handler are not in the pool, and NumPy passes no old size: the address decides.
void *pool_realloc(void *context, void *data, size_t nbytes) {
    size_t have = data ? Pool::size_of(data) : 0;
    if (!have) return numpy_default.realloc(numpy_default.context, data, nbytes);
    if (nbytes <= have && nbytes > have / 2) return data;
    void *moved = pool_malloc(context, nbytes);
    if (!moved) return nullptr;
    copy_bytes(moved, data, have < nbytes ? have : nbytes);
    Pool::release(data);
    return moved;
}

Handler handler{"weft", 1, {nullptr, pool_malloc, pool_calloc, pool_realloc, pool_free}};

nb::object import_numpy_core() {
    try {
        return nb::module_::import_("numpy._core._multiarray_umath");
    } catch (nb::python_error &) {
        return nb::module_::import_("numpy.core._multiarray_umath");  // before NumPy 2
    }
}

void find_numpy() {
    nb::object api = import_numpy_core().attr("_ARRAY_API");
    auto **table = static_cast<void **>(PyCapsule_GetPointer(api.ptr(), nullptr));
    if (!table) throw nb::python_error();
    if (reinterpret_cast<unsigned (*)()>(table[feature_version_index])() < first_feature_version)
        raise("UnsupportedError", "numpy_in_pool: arrays in shared memory need NumPy 1.22 or newer", "numpy_in_pool");
    auto *theirs = *static_cast<PyObject **>(table[default_handler_index]);
    auto *plain = static_cast<Handler *>(PyCapsule_GetPointer(theirs, handler_name));
    if (!plain) throw nb::python_error();
    numpy_default = plain->allocator;
    numpy_api = table;
}

// NumPy keeps the handler in a context variable, so this changes the calling thread's current context.
bool numpy_in_pool(bool on) {
    if (!numpy_api) find_numpy();
    watch_forks();
    static PyObject *capsule = PyCapsule_New(&handler, handler_name, nullptr);
    auto set = reinterpret_cast<PyObject *(*)(PyObject *)>(numpy_api[set_handler_index]);
    PyObject *before = set(on ? capsule : nullptr);
    if (!before) throw nb::python_error();
    bool was_on = before == capsule;
    Py_DECREF(before);
    return was_on;
}

}  // namespace

void define_numpy_allocator(nb::module_ &m) {
    // Have NumPy allocate arrays of 64 KiB and more in the pool, in this context (NumPy's context variable). Return
    // the previous setting. Existing arrays stay where they are. Source: ``PyDataMem_SetHandler``.
    m.def("numpy_in_pool", &numpy_in_pool, nb::arg("on"));
}
