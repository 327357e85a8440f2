// SPDX-License-Identifier: BSD-3-Clause
// A faster entry to a nanobind method: plain positional arguments enter here, all other calls go to the method itself.
// CPython calls its own kind of method without a dispatcher in between, which saves 10 ns a call.
#pragma once

#include "ucp/ucx.hpp"

/// Read a 64-bit integer from an exact Python int; false: let the method itself report the error.
inline bool read_u64(PyObject *value, uint64_t *out) noexcept {
    if (!PyLong_CheckExact(value)) return false;
    *out = PyLong_AsUnsignedLongLong(value);
    if (*out != UINT64_MAX || !PyErr_Occurred()) return true;
    PyErr_Clear();
    return false;
}

/// The arguments as CPython passes them.
struct Arguments {
    PyObject *self;
    PyObject *const *values;
    Py_ssize_t count;
};

/// `call` returns a new reference, or null to pass the call to the nanobind method; it may throw.
template <PyObject *(*call)(const Arguments &)>
struct Fast {
    static inline PyObject *behind = nullptr;
    static inline PyMethodDef definition{};

    static PyObject *enter(PyObject *self, PyObject *const *values, Py_ssize_t count, PyObject *names) {
        if (!names) {
            try {
                PyObject *result = call({self, values, count});
                if (result) return result;
            } catch (nb::python_error &e) {
                e.restore();
                return nullptr;
            } catch (const std::exception &e) {  // called from C: no exception may leave
                PyErr_SetString(PyExc_RuntimeError, e.what());
                return nullptr;
            }
        }
        constexpr size_t most = 16;
        const size_t total = size_t(count) + (names ? size_t(PyTuple_GET_SIZE(names)) : 0);
        if (total >= most) {
            PyErr_SetString(PyExc_TypeError, "too many arguments");
            return nullptr;
        }
        PyObject *all[most] = {self};
        for (size_t i = 0; i < total; ++i) all[i + 1] = values[i];
        return PyObject_Vectorcall(behind, all, size_t(count) + 1, names);
    }

    /// `signature` is the text after the name, as ``inspect`` reads it: "($self, buffer, tag)".
    static void install(nb::handle type, const char *name, const char *signature, const char *doc) {
        static const std::string text = std::string(name) + signature + "\n--\n\n" + doc;
        behind = type.attr(name).inc_ref().ptr();
        definition = {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void *>(&enter)),
                      METH_FASTCALL | METH_KEYWORDS, text.c_str()};
        type.attr(name) = nb::steal(PyDescr_NewMethod(reinterpret_cast<PyTypeObject *>(type.ptr()), &definition));
    }
};
