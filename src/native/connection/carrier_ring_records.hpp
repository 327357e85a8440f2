// SPDX-License-Identifier: BSD-3-Clause
// The heads of the records between two RingCarriers. The reader copies a head before it looks at it, because the writer
// may still be changing it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

/// Head of `begin` and `announce`; the message's header follows. Its `nbytes` of data come in pieces.
struct Opening {
    uint64_t id, nbytes;
};

/// Head of a `piece` in the sender's area. With `inline_note`, the record instead has the id, and the bytes themselves.
struct AreaPiece {
    uint64_t id;
    uint32_t offset, nbytes;
};
constexpr uint32_t inline_note = 1;

inline void append(std::vector<std::byte> &to, const void *data, size_t nbytes) {
    auto *bytes = static_cast<const std::byte *>(data);
    to.insert(to.end(), bytes, bytes + nbytes);
}
template <typename T>
    requires std::is_trivially_copyable_v<T>
void append(std::vector<std::byte> &to, const T &value) {
    append(to, &value, sizeof value);
}
