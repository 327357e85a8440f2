// SPDX-License-Identifier: BSD-3-Clause
// Copies of messages.
//
// glibc copies 2 KiB to 512 KiB by `rep movsb`, and AMD's Zen 3 runs that at 2.9 GB/s in place of 40 to 90 where the
// target's place in its page is 1 to 32 bytes after the source's. That is the usual place of an array of malloc's (16
// bytes into a page) beside a block of the pool, or one in 128 in the ring. In pieces of 2 KiB, memcpy uses vectors,
// which are as fast there as `rep movsb` is elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

inline void copy_bytes(void *to, const void *from, size_t nbytes) noexcept {
    constexpr size_t piece = 2048, page = 4096, close = 64;
    constexpr size_t most = 1024 * 1024;  // `rep movsb` ends at 512 KiB, the size of Zen 3's L2 cache
    auto *target = static_cast<std::byte *>(to);
    auto *source = static_cast<const std::byte *>(from);
    const size_t after = (reinterpret_cast<uintptr_t>(target) - reinterpret_cast<uintptr_t>(source)) % page;
    if (nbytes > piece && nbytes <= most && after && after < close) [[unlikely]]
        for (; nbytes > piece; nbytes -= piece, target += piece, source += piece) std::memcpy(target, source, piece);
    std::memcpy(target, source, nbytes);
}
