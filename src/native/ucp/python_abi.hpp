// SPDX-License-Identifier: BSD-3-Clause
// The parts of CPython that weft uses beyond the stable ABI, and replacements within it, for wheels that serve every
// CPython from 3.12 on. A build for one CPython uses the structures and macros, which are faster.
#pragma once

#include <nanobind/nanobind.h>

#include <cstring>
#include <string>
#include <utility>

namespace nb = nanobind;

#ifdef Py_LIMITED_API

// As fast as other calls of this kind, but checked.
#define PyTuple_GET_SIZE PyTuple_Size
#define PyTuple_GET_ITEM PyTuple_GetItem
#define PyTuple_SET_ITEM PyTuple_SetItem
#define PyList_GET_SIZE PyList_Size
#define PyList_GET_ITEM PyList_GetItem
#define PyList_SET_ITEM PyList_SetItem

inline PyObject *PyObject_CallOneArg(PyObject *function, PyObject *argument) {
    return PyObject_Vectorcall(function, &argument, 1, nullptr);
}

/// An object's type name, for messages: without module for Python classes, with module for others.
inline std::string type_name_of(nb::handle object) {
    const bool of_python = PyType_GetFlags(Py_TYPE(object.ptr())) & Py_TPFLAGS_HEAPTYPE;
    nb::object name = of_python ? object.type().attr("__name__") : nb::inst_name(object);
    const auto text = nb::cast<std::string>(name);
    return text.rfind("builtins.", 0) == 0 ? text.substr(9) : text;
}

/// The object behind a memoryview; borrowed from the view. Null, with no exception set, if unknown.
inline PyObject *shown_by(PyObject *view) noexcept {
    static PyObject *name = PyUnicode_InternFromString("obj");
    PyObject *object = PyObject_GetAttr(view, name);
    if (!object) PyErr_Clear();
    Py_XDECREF(object);
    return object;
}

/// Whether a memoryview has one reference, not even a weak one beside it, and nothing else shows what it shows. A part
/// of it refers to neither of them, but to the managed buffer, which only its garbage collection visits.
inline bool is_let_go(PyObject *view) noexcept {
    auto *type = reinterpret_cast<PyObject *>(Py_TYPE(view));
    static const Py_ssize_t weak = PyLong_AsSsize_t(PyObject_GetAttrString(type, "__weakrefoffset__"));
    const auto visit_all = reinterpret_cast<traverseproc>(PyType_GetSlot(Py_TYPE(view), Py_tp_traverse));
    PyObject *managed = nullptr;
    visit_all(view, [](PyObject *object, void *to) { return *static_cast<PyObject **>(to) = object, 0; }, &managed);
    PyObject *object = shown_by(view);
    return Py_REFCNT(view) == 1 && !*reinterpret_cast<PyObject **>(reinterpret_cast<char *>(view) + weak) &&
           Py_REFCNT(managed) == 1 && object && Py_REFCNT(object) == 1;
}

/// The format of a memoryview's items, as the struct module writes it.
inline std::string format_of(PyObject *view) {
    return nb::cast<std::string>(nb::handle(view).attr("format"));
}

inline bool is_numpy_array(PyObject *object) noexcept {
    static PyObject *type = nullptr;  // kept for the lifetime of the process once NumPy is imported
    if (!type) {
        nb::object name = nb::steal(PyUnicode_InternFromString("numpy"));
        nb::object module = nb::steal(PyImport_GetModule(name.ptr()));
        if (module.is_valid()) type = PyObject_GetAttrString(module.ptr(), "ndarray");
        PyErr_Clear();  // NumPy is missing, or is being imported
    }
    return type && reinterpret_cast<PyObject *>(Py_TYPE(object)) == type;
}

/// Clear the weak references to an object that is put aside.
inline void clear_weak_references(PyObject *self) noexcept {
    PyObject_ClearWeakRefs(self);
}

/// Take an item out of a list without other references; returns a new reference.
inline PyObject *take_item(PyObject *list, Py_ssize_t index) noexcept {
    PyObject *item = Py_NewRef(PyList_GetItem(list, index));
    PyList_SetItem(list, index, Py_NewRef(Py_None));
    return item;
}

inline nb::object copy_context() {
    static PyObject *copy = nb::module_::import_("contextvars").attr("copy_context").inc_ref().ptr();
    return nb::handle(copy)();
}

#else

inline std::string type_name_of(nb::handle object) {
    return Py_TYPE(object.ptr())->tp_name;
}

inline PyObject *shown_by(PyObject *view) noexcept {
    return PyMemoryView_GET_BUFFER(view)->obj;
}

/// Whether a memoryview has one reference, not even a weak one beside it, and nothing else shows what it shows.
inline bool is_let_go(PyObject *view) noexcept {
    const auto *v = reinterpret_cast<PyMemoryViewObject *>(view);
    return Py_REFCNT(view) == 1 && !(v->flags & _Py_MEMORYVIEW_RELEASED) && !v->exports && !v->weakreflist &&
           v->mbuf->exports == 1 && Py_REFCNT(v->view.obj) == 1;
}

inline const char *format_of(PyObject *view) noexcept {
    const char *format = PyMemoryView_GET_BUFFER(view)->format;
    return format ? format : "";
}

inline bool is_numpy_array(PyObject *object) noexcept {
    return std::strcmp(Py_TYPE(object)->tp_name, "numpy.ndarray") == 0;
}

inline void clear_weak_references(PyObject *self) noexcept {
    const Py_ssize_t weak = Py_TYPE(self)->tp_weaklistoffset;
    if (*reinterpret_cast<PyObject **>(reinterpret_cast<char *>(self) + weak)) PyObject_ClearWeakRefs(self);
}

inline PyObject *take_item(PyObject *list, Py_ssize_t index) noexcept {
    return std::exchange(reinterpret_cast<PyListObject *>(list)->ob_item[index], nullptr);
}

inline nb::object copy_context() {
    return nb::steal(PyContext_CopyCurrent());
}

#endif
