// SPDX-License-Identifier: BSD-3-Clause
#include "shared/small_block.hpp"

#include <atomic>
#include <cstdlib>
#include <new>
#include <utility>

namespace {

constexpr size_t alignment = 64;
// The C library keeps what was freed at hand up to about a KiB. Of what is larger one is kept here.
constexpr size_t at_hand = 1024 - sizeof(SmallBlock) - alignment;
constexpr size_t whole = sizeof(SmallBlock) + alignment + SmallBlock::most_nbytes;
std::atomic<SmallBlock *> spare{nullptr};
PyTypeObject *type;

SmallBlock *block_of(PyObject *self) noexcept {
    return reinterpret_cast<SmallBlock *>(self);
}

int getbuffer(PyObject *self, Py_buffer *view, int flags) {
    return PyBuffer_FillInfo(view, self, block_of(self)->data(), Py_ssize_t(block_of(self)->nbytes), 0, flags);
}

void dealloc(PyObject *self) {
    SmallBlock::release(block_of(self));
    Py_DECREF(type);
}

PyObject *nbytes(PyObject *self, void *) {
    return PyLong_FromSize_t(block_of(self)->nbytes);
}

PyObject *address(PyObject *self, void *) {
    return PyLong_FromVoidPtr(block_of(self)->data());
}

PyObject *no(PyObject *, void *) {
    return Py_NewRef(Py_False);
}

PyGetSetDef attributes[] = {{"nbytes", nbytes, nullptr, nullptr, nullptr},
                            {"address", address, nullptr, nullptr, nullptr},
                            {"pooled", no, nullptr, nullptr, nullptr},
                            {"lent", no, nullptr, nullptr, nullptr},
                            {}};

constexpr const char *doc = "Memory of a small message; `memoryview(block)` is writable and keeps it.";

}  // namespace

SmallBlock *SmallBlock::allocate(size_t nbytes) noexcept {
    void *memory = nbytes > at_hand ? spare.exchange(nullptr) : nullptr;
    if (!memory) memory = std::malloc(nbytes > at_hand ? whole : sizeof(SmallBlock) + alignment + nbytes);
    return memory ? new (memory) SmallBlock{{}, nbytes} : nullptr;
}

void SmallBlock::release(SmallBlock *block) noexcept {
    if (block && block->nbytes > at_hand) block = spare.exchange(block);
    std::free(block);
}

uint8_t *SmallBlock::data() noexcept {
    const auto end = reinterpret_cast<uintptr_t>(this + 1);
    return reinterpret_cast<uint8_t *>((end + alignment - 1) & ~(alignment - 1));
}

nb::object SmallBlock::view() {
    PyObject *object = PyObject_Init(&head, type);
    nb::object view = nb::steal(PyMemoryView_FromObject(object));
    Py_DECREF(object);
    if (!view.is_valid()) throw nb::python_error();
    return view;
}

SmallBlock *SmallBlock::reclaim(PyObject *&view) noexcept {
    PyObject *object = shown_by(view);
    if (Py_REFCNT(view) != 1 || !object || Py_TYPE(object) != type || Py_REFCNT(object) != 1) return nullptr;
    Py_INCREF(object);
    Py_CLEAR(view);
    Py_DECREF(type);
    const size_t nbytes = block_of(object)->nbytes;
    return new (object) SmallBlock{{}, nbytes};
}

void SmallBlock::define() {
    static PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void *>(dealloc)},
                                  {Py_bf_getbuffer, reinterpret_cast<void *>(getbuffer)},
                                  {Py_tp_getset, attributes},
                                  {Py_tp_doc, const_cast<char *>(doc)},
                                  {0, nullptr}};
    static PyType_Spec spec{"weft._native.SmallBlock", sizeof(SmallBlock), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
    nb::object made = nb::steal(PyType_FromSpec(&spec));
    if (!made.is_valid()) throw nb::python_error();
    type = reinterpret_cast<PyTypeObject *>(made.release().ptr());
}
