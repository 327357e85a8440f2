// SPDX-License-Identifier: BSD-3-Clause
#include "buffer.hpp"

namespace {

// Ask again with the weakest demands, only to learn which demand was not met.
[[noreturn]] void explain(nb::handle object, bool writable, const char *op) {
    Py_buffer view;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_FULL_RO) != 0) {
        PyErr_Clear();
        PyErr_Restore(type, value, trace);
        throw nb::python_error();
    }
    bool contiguous = PyBuffer_IsContiguous(&view, 'A');
    bool readonly = view.readonly;
    PyBuffer_Release(&view);
    std::string kind = Py_TYPE(object.ptr())->tp_name;
    if (!contiguous || (writable && readonly)) {
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(trace);
    }
    if (!contiguous)
        raise("NotContiguousError",
              std::string(op) + ": the " + kind + " is not contiguous; pass a copy, e.g. numpy.ascontiguousarray(x)",
              op);
    if (writable && readonly)
        raise("ReadOnlyError",
              std::string(op) + ": the destination (" + kind + ") is read-only; use a bytearray or a writable array",
              op);
    PyErr_Restore(type, value, trace);
    throw nb::python_error();
}

}  // namespace

void Buffer::acquire(nb::handle object, bool writable, const char *op) {
    int flags = PyBUF_ANY_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object.ptr(), &view, flags) != 0) {
        view.obj = nullptr;
        explain(object, writable, op);
    }
}
