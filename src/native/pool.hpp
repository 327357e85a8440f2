// SPDX-License-Identifier: BSD-3-Clause
// Where messages land: warm, aligned memory that is used again.
//
// A fresh page costs 3-6x the copy into it (4 KiB pages, KVM guest), so blocks go back to a pool instead of to
// the kernel. From 64 KiB up a block is whole pages of a memfd segment, so that a later step can hand it to
// another process or register the segment once; below, plain aligned memory from the C library.
// A block lives as long as the Python object that exports it: NumPy drops the buffer export at once and keeps
// only the exporter.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ucx.hpp"

struct Segment;

/// Owns one block of pool memory; `segment` is null for memory of the C library.
struct Block {
    uint8_t *data = nullptr;
    size_t nbytes = 0;
    Segment *segment = nullptr;

    Block() = default;
    Block(const Block &) = delete;
    Block &operator=(const Block &) = delete;
    Block(Block &&other) noexcept { *this = static_cast<Block &&>(other); }
    Block &operator=(Block &&other) noexcept;
    ~Block() { release(); }
    void release() noexcept;
};

namespace Pool {

constexpr size_t page_threshold = 64 * 1024;
constexpr size_t segment_size = 64 * 1024 * 1024;

struct Statistics {
    size_t live, idle, mapped, segments, cap;
};

/// A block of `nbytes`; its `data` is null when there is no memory. Any thread, no Python.
Block allocate(size_t nbytes) noexcept;
/// The most bytes of touched, unused memory that are kept; what exceeds it goes back to the kernel.
void set_cap(size_t nbytes) noexcept;
Statistics statistics() noexcept;
/// A child sees the parent's blocks as they are, copy-on-write, and never allocates from them.
void after_fork_in_child() noexcept;

/// Wrap `block` in a Python exporter and return a writable memoryview of it.
nb::object view(Block &&block);
void define(nb::module_ &m);

}  // namespace Pool
