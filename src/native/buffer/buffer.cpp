// SPDX-License-Identifier: BSD-3-Clause
#include "buffer/buffer.hpp"

#include <string_view>

void refuse_strided(nb::handle object, bool writable, const char *op) {
    raise("NotContiguousError",
          std::string(op) + ": the " + type_name_of(object) + " is not contiguous; pass a " +
              (writable ? "contiguous array, and copy from it when the operation has ended"
                        : "copy, e.g. numpy.ascontiguousarray(x) or x.contiguous()"),
          op);
}

void refuse_read_only(nb::handle object, const char *op) {
    raise("ReadOnlyError",
          std::string(op) + ": the destination (" + type_name_of(object) +
              ") is read-only; use a bytearray or a writable array",
          op);
}

// The buffer protocol failed. Ask again with the weakest demands: either the result shows which demand was not met, or
// the object does not export its memory this way at all (CuPy's arrays have the protocol, and refuse).
static void acquire_otherwise(Buffer &buffer, nb::handle object, bool writable, const char *op, uint64_t memory_types) {
    nb::python_error refusal;
    Py_buffer view;
    if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_FULL_RO) == 0) {
        const bool contiguous = PyBuffer_IsContiguous(&view, 'A'), readonly = view.readonly;
        PyBuffer_Release(&view);
        if (!contiguous) refuse_strided(object, writable, op);
        if (writable && readonly) refuse_read_only(object, op);
        throw refusal;
    }
    PyErr_Clear();
    if (acquire_array(buffer, object, writable, op, memory_types)) return;
    if (PyObject_CheckBuffer(object.ptr())) throw refusal;
    PyErr_Format(
        PyExc_TypeError,
        "%s: %s is no buffer: it has neither the buffer protocol, nor __dlpack__, nor __cuda_array_interface__", op,
        type_name_of(object).c_str());
    throw nb::python_error();
}

// NumPy's ABI, from its ndarraytypes.h: the part that PyArray_TYPE reads in every extension built against it.
struct NumpyType {
    PyObject head;
    PyTypeObject *scalar;
    char kind, type, byteorder, flags;
    int number;
};

struct NumpyArray {
    PyObject head;
    char *data;
    int ndim;
    Py_ssize_t *shape, *strides;
    PyObject *base;
    NumpyType *type;
};

// Whether the items are NumPy's own numbers, dates or fixed-length strings.
static bool is_plain(const Py_buffer &view) noexcept {
    constexpr int object = 17, structured = 20, last = 23;
    if (!is_numpy_array(view.obj)) return false;
    const int number = reinterpret_cast<NumpyArray *>(view.obj)->type->number;
    return number <= last && number != object && number != structured;
}

// A format has field names between colons.
static bool names_objects(std::string_view format) noexcept {
    bool name = false;
    for (const char each : format) {
        if (each == ':') name = !name;
        if (each == 'O' && !name) return true;
    }
    return false;
}

// The format alone would do, but NumPy takes long to make it, and has none for dates and strings.
static bool holds_objects(const Py_buffer &view, nb::handle object) {
    if (PyMemoryView_Check(view.obj)) return names_objects(format_of(view.obj));
    nb::object type = nb::getattr(view.obj, "dtype", nb::none());
    if (nb::hasattr(type, "hasobject")) return nb::cast<bool>(nb::bool_(type.attr("hasobject")));
    Py_buffer asked;
    if (PyObject_GetBuffer(object.ptr(), &asked, PyBUF_FULL_RO) != 0) {
        if (!PyErr_ExceptionMatches(PyExc_Exception)) throw nb::python_error();
        PyErr_Clear();  // no format
        return false;
    }
    const bool found = names_objects(asked.format ? asked.format : "");
    PyBuffer_Release(&asked);
    return found;
}

static void refuse_objects(Buffer &buffer, nb::handle object, const char *op) {
    if (!holds_objects(buffer.view, object)) return;
    buffer.release();
    raise("InvalidParamError",
          std::string(op) + ": the " + type_name_of(object) +
              " holds Python objects, whose pointers are valid only in this process; send them pickled, with send_obj",
          op);
}

bool Buffer::acquire(nb::handle object, bool writable, const char *op, uint64_t memory_types) {
    int flags = PyBUF_ANY_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object.ptr(), &view, flags) == 0) [[likely]] {
        if (size_t(view.itemsize) < sizeof(PyObject *) || is_plain(view))
            return view.obj != object.ptr();  // not for bytes, bytearray, memoryview and NumPy, which return themselves
        refuse_objects(*this, object, op);
        return true;
    }
    view.obj = nullptr;
    acquire_otherwise(*this, object, writable, op, memory_types);
    return true;
}
