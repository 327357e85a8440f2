// SPDX-License-Identifier: BSD-3-Clause
// The memory of a small message: a single allocation, which becomes the Python object that exports it.
//
// A block of the pool costs an aligned allocation, and a Python object in addition. This is memory of the C library
// with room for an object's head before the bytes. It is allocated in progress, without Python, and becomes an object
// when a view is requested. Making and dropping the objects of a view takes 70 ns, so recent views are kept, and one
// that its user has dropped shows the next message of the same length.
#pragma once

#include "ucp/ucx.hpp"

/// Owns itself: plain memory until it becomes an object, which is then owned by its references.
struct SmallBlock {
    static constexpr size_t most_nbytes = 4096;  // larger messages use blocks of the pool

    PyObject head;  // has no type until it is an object
    size_t nbytes;
    PyObject *shown;   // an unused memoryview: the block is already an object, owned by it
    SmallBlock *next;  // while it is cached

    /// Null if out of memory. Any thread, no Python.
    static SmallBlock *allocate(size_t nbytes) noexcept;
    /// Only while there is no view of it.
    static void release(SmallBlock *block) noexcept;
    uint8_t *data() noexcept;
    /// Make it an object, and return a writable memoryview that owns it.
    nb::object view();
    /// Take it back out of its memoryview; null, with nothing changed, if anything else shows or has it.
    static SmallBlock *reclaim(PyObject *&view) noexcept;
    /// Let the next `count` blocks, if they have the last one's length, be those whose views are unused. Python code
    /// may run.
    static void reuse(size_t count) noexcept;
    /// Create the type of these objects.
    static void define();
};
