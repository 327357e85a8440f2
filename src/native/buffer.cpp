// SPDX-License-Identifier: BSD-3-Clause
#include "buffer.hpp"

void refuse_strided(nb::handle object, const char *op) {
    raise("NotContiguousError",
          std::string(op) + ": the " + Py_TYPE(object.ptr())->tp_name +
              " is not contiguous; pass a copy, e.g. numpy.ascontiguousarray(x) or x.contiguous()",
          op);
}

void refuse_read_only(nb::handle object, const char *op) {
    raise("ReadOnlyError",
          std::string(op) + ": the destination (" + Py_TYPE(object.ptr())->tp_name +
              ") is read-only; use a bytearray or a writable array",
          op);
}

// The buffer protocol said no. Ask again with the weakest demands: either they show which demand was not met, or the
// object does not offer its memory in this way at all (CuPy's arrays have the protocol, and refuse it).
static void acquire_otherwise(Buffer &buffer, nb::handle object, bool writable, const char *op, uint64_t memory_types) {
    nb::python_error refusal;
    Py_buffer view;
    if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_FULL_RO) == 0) {
        const bool contiguous = PyBuffer_IsContiguous(&view, 'A'), readonly = view.readonly;
        PyBuffer_Release(&view);
        if (!contiguous) refuse_strided(object, op);
        if (writable && readonly) refuse_read_only(object, op);
        throw refusal;
    }
    PyErr_Clear();
    if (acquire_array(buffer, object, writable, op, memory_types)) return;
    if (PyObject_CheckBuffer(object.ptr())) throw refusal;
    PyErr_Format(PyExc_TypeError,
                 "%s: %s offers no memory: neither the buffer protocol, nor __dlpack__, nor __cuda_array_interface__",
                 op, Py_TYPE(object.ptr())->tp_name);
    throw nb::python_error();
}

bool Buffer::acquire(nb::handle object, bool writable, const char *op, uint64_t memory_types) {
    int flags = PyBUF_ANY_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object.ptr(), &view, flags) == 0) [[likely]]
        return view.obj != object.ptr();  // bytes, bytearray, memoryview, NumPy: the same
    view.obj = nullptr;
    acquire_otherwise(*this, object, writable, op, memory_types);
    return true;
}
