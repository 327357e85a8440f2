// SPDX-License-Identifier: BSD-3-Clause
#include "shared/small_block.hpp"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <new>
#include <utility>

namespace {

constexpr size_t alignment = 64;
PyTypeObject *type;

// ---- memory

// The sizes of blocks, so that a freed block fits the next message.
constexpr size_t sizes[] = {128, 1024, SmallBlock::most_nbytes};
constexpr size_t most_free_nbytes = 512 << 10;  // kept per thread, of each size
constexpr size_t most_shown = 256;              // with their views
constexpr size_t most_looks_in_vain = 16;       // at views of other lengths

size_t class_of(size_t nbytes) noexcept {
    size_t i = 0;
    while (sizes[i] < nbytes) ++i;
    return i;
}

/// A thread's cache of unused blocks.
struct Kept {
    SmallBlock *free[std::size(sizes)];
    size_t free_nbytes[std::size(sizes)];
    SmallBlock *shown;  // blocks that have their views
    size_t shown_count;
    size_t wanted_nbytes;  // of the last message
    bool watched, ended;
};
thread_local constinit Kept kept{};

/// Frees the memory when its thread ends. Blocks with a view stay: Python cannot be called any more.
struct AtEnd {
    void watch() noexcept { kept.watched = true; }
    ~AtEnd() {
        kept.ended = true;
        for (SmallBlock *&list : kept.free)
            while (SmallBlock *block = list) {
                list = block->next;
                std::free(block);
            }
    }
};
thread_local AtEnd at_end;

void keep_shown(SmallBlock *block) noexcept {
    block->next = kept.shown;
    kept.shown = block;
    ++kept.shown_count;
}

SmallBlock *take_shown() noexcept {
    SmallBlock *block = kept.shown;
    kept.shown = block->next;
    --kept.shown_count;
    return block;
}

SmallBlock *block_of(PyObject *self) noexcept {
    return reinterpret_cast<SmallBlock *>(self);
}

// ---- views

#ifndef Py_LIMITED_API

/// The views made last, with a reference to each. Protected by the GIL.
struct Made {
    static constexpr size_t most = 1024;
    static constexpr size_t most_in_use = 8;  // used ones at the head, before one of them is dropped

    PyObject *views[most];
    size_t first = 0, count = 0;

    PyObject *&at(size_t i) noexcept { return views[(first + i) % most]; }
    PyObject *take() noexcept {
        PyObject *view = at(0);
        ++first;
        --count;
        return view;
    }
    void add(PyObject *view) noexcept {
        if (count == most) Py_DECREF(take());
        at(count++) = Py_NewRef(view);
    }
    void remove(PyObject *view) noexcept {
        for (size_t i = count; i-- > 0;) {
            if (at(i) != view) continue;
            for (; i + 1 < count; ++i) at(i) = at(i + 1);
            --count;
            Py_DECREF(view);
            return;
        }
    }
};
Made made;

#endif

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

constexpr const char *doc = "Memory of a small message; `memoryview(block)` is writable and keeps it alive.";

}  // namespace

SmallBlock *SmallBlock::allocate(size_t nbytes) noexcept {
    kept.wanted_nbytes = nbytes;
    if (kept.shown && kept.shown->nbytes == nbytes) return take_shown();
    const size_t i = class_of(nbytes);
    void *memory = kept.free[i];
    if (memory) {
        kept.free[i] = kept.free[i]->next;
        kept.free_nbytes[i] -= sizes[i];
    } else {
        memory = std::malloc(sizeof(SmallBlock) + alignment + sizes[i]);
    }
    return memory ? new (memory) SmallBlock{{}, nbytes, nullptr, nullptr} : nullptr;
}

void SmallBlock::release(SmallBlock *block) noexcept {
    if (!block) return;
    if (block->shown) return keep_shown(block);
    const size_t i = class_of(block->nbytes);
    if (kept.ended || kept.free_nbytes[i] >= most_free_nbytes) return std::free(block);
    if (!kept.watched) [[unlikely]]
        at_end.watch();
    block->next = kept.free[i];
    kept.free[i] = block;
    kept.free_nbytes[i] += sizes[i];
}

uint8_t *SmallBlock::data() noexcept {
    const auto end = reinterpret_cast<uintptr_t>(this + 1);
    return reinterpret_cast<uint8_t *>((end + alignment - 1) & ~(alignment - 1));
}

nb::object SmallBlock::view() {
    nb::object view = nb::steal(std::exchange(shown, nullptr));
    if (!view.is_valid()) {
        PyObject *object = PyObject_Init(&head, type);
        view = nb::steal(PyMemoryView_FromObject(object));
        Py_DECREF(object);
        if (!view.is_valid()) throw nb::python_error();
    }
#ifndef Py_LIMITED_API
    made.add(view.ptr());
#endif
    return view;
}

void SmallBlock::reuse(size_t count) noexcept {
#ifndef Py_LIMITED_API
    if (kept.shown && kept.shown->nbytes != kept.wanted_nbytes)
        while (kept.shown) Py_DECREF(std::exchange(take_shown()->shown, nullptr));
    size_t looks = std::min(count, most_shown) + most_looks_in_vain;
    for (; looks && kept.shown_count < std::min(count, most_shown) && made.count; --looks) {
        PyObject *oldest = made.at(0);
        if (Py_REFCNT(oldest) > 1) {
            if (made.count > Made::most_in_use) Py_DECREF(made.take());
            return;
        }
        made.take();
        SmallBlock *block = is_let_go(oldest) ? block_of(shown_by(oldest)) : nullptr;
        if (block && block->nbytes == kept.wanted_nbytes) {
            block->shown = oldest;
            keep_shown(block);
        } else {
            Py_DECREF(oldest);  // may run Python code, e.g. a weak reference's callback
        }
    }
    // After a burst of many, a few single ones should cycle through the same few blocks.
    looks = std::min(count, most_shown) + most_looks_in_vain;
    for (; looks && made.count > 4 * count + Made::most_in_use && Py_REFCNT(made.at(0)) == 1; --looks)
        Py_DECREF(made.take());
#else
    (void)count;
#endif
}

SmallBlock *SmallBlock::reclaim(PyObject *&view) noexcept {
#ifndef Py_LIMITED_API
    if (Py_REFCNT(view) == 2) made.remove(view);
#endif
    if (!PyMemoryView_Check(view) || !is_let_go(view)) return nullptr;
    PyObject *object = shown_by(view);
    if (Py_TYPE(object) != type) return nullptr;
    Py_INCREF(object);
    Py_CLEAR(view);
    Py_DECREF(type);
    const size_t nbytes = block_of(object)->nbytes;
    return new (object) SmallBlock{{}, nbytes, nullptr, nullptr};
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
