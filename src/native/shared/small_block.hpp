// SPDX-License-Identifier: BSD-3-Clause
// The memory of a small message: one piece, which becomes the Python object that exports it.
//
// A block of the pool costs an aligned allocation, and a Python object beside it. This is memory of the C library
// with room for an object's head in front of the bytes. It is made in progress, without Python, and made an object
// when somebody asks for a view. To make and drop the objects of a view takes 70 ns, so the views that were made last
// are kept, and one that its user has let go of shows the next message of its length.
#pragma once

#include "ucp/ucx.hpp"

/// Owns itself: memory of its own until it is an object, and then what refers to that.
struct SmallBlock {
    static constexpr size_t most_nbytes = 4096;  // more go into blocks of the pool

    PyObject head;  // without a type as long as it is none
    size_t nbytes;
    PyObject *shown;   // a memoryview that nobody has: it is an object already, and owned by that
    SmallBlock *next;  // while it is kept for later

    /// Null when there is no memory. Any thread, no Python.
    static SmallBlock *allocate(size_t nbytes) noexcept;
    /// Only while nobody has a view of it.
    static void release(SmallBlock *block) noexcept;
    uint8_t *data() noexcept;
    /// Make it an object, and return a writable memoryview that owns it.
    nb::object view();
    /// Take it back out of a memoryview of it; null, and nothing done, if anybody else refers to either.
    static SmallBlock *reclaim(PyObject *&view) noexcept;
    /// Have the next `count` blocks, if they are of the last one's length, be those whose views nobody has any more.
    /// Python code may run.
    static void reuse(size_t count) noexcept;
    /// Make the type of those objects.
    static void define();
};
