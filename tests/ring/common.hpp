// SPDX-License-Identifier: BSD-3-Clause
// What the test programs share: checks, random numbers, a link's pages, and how a side sleeps.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "ring/arena.hpp"
#include "ring/doorbell.hpp"
#include "ring/ring.hpp"

#define CHECK(condition)                                                            \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            _exit(1);                                                               \
        }                                                                           \
    } while (0)

struct Random {
    uint64_t state;
    explicit Random(uint64_t seed) : state(seed * 2 + 1) {}
    uint64_t operator()() noexcept {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return state * 0x2545f4914f6cdd1d;
    }
    uint64_t below(uint64_t n) noexcept { return (*this)() % n; }
};

inline double now_s() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return double(t.tv_sec) + double(t.tv_nsec) / 1e9;
}

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/// Write a record that the reader sees at once.
inline bool try_write(Ring::Writer &writer, Ring::Kind kind, Ring::Gather &from, size_t nbytes) noexcept {
    if (!writer.append(kind, from, nbytes)) return false;
    writer.publish();
    return true;
}

/// The byte at `offset` of the message with this number.
inline std::byte content(uint64_t number, size_t offset) {
    return std::byte((number * 131 + offset * 7 + (offset >> 8)) & 0xff);
}

inline std::vector<std::byte> make_content(uint64_t number, size_t nbytes) {
    std::vector<std::byte> bytes(nbytes);
    for (size_t i = 0; i < nbytes; ++i) bytes[i] = content(number, i);
    return bytes;
}

/// Numbered messages of which every byte is known: its number, then one of some contents of random sizes.
struct Messages {
    std::vector<std::vector<std::byte>> contents;
    explicit Messages(size_t most) {
        Random random(7);
        for (uint64_t i = 0; i < 61; ++i)
            contents.push_back(make_content(i, i == 5 ? most - 8 : random.below(i % 4 ? 200 : most - 7)));
    }
    const std::vector<std::byte> &of(uint64_t number) const { return contents[number % contents.size()]; }
    size_t nbytes(uint64_t number) const { return 8 + of(number).size(); }

    /// Whether a record that is part of this message, from `offset` on, is just that.
    bool holds(uint64_t number, size_t offset, const Ring::Record &record) const {
        std::vector<std::byte> got(record.nbytes);
        record.copy(got.data(), 0, got.size());
        if (offset + got.size() > nbytes(number)) return false;
        if (offset) return std::memcmp(got.data(), of(number).data() + offset - 8, got.size()) == 0;
        uint64_t told = 0;
        if (got.size() < 8) return false;
        std::memcpy(&told, got.data(), 8);
        return told == number && std::equal(got.begin() + 8, got.end(), of(number).begin());
    }
};

/// What of a stream of messages comes next, and in which record: whole, or begun and in pieces.
struct Place {
    uint64_t number = 0;
    size_t offset = 0;
    void advance(const Messages &messages, size_t nbytes) {
        offset += nbytes;
        if (offset < messages.nbytes(number)) return;
        ++number;
        offset = 0;
    }
};

/// As many buffers as the number says, empty ones among them.
inline std::vector<iovec> split(std::vector<std::byte> &bytes, Random &random) {
    std::vector<iovec> parts;
    size_t begin = 0;
    while (begin < bytes.size()) {
        const size_t n = random.below(3) ? random.below(bytes.size() - begin + 1) : bytes.size() - begin;
        parts.push_back({bytes.data() + begin, n});
        begin += n;
    }
    return parts;
}

/// One process's end of a link: what both tests of sleeping need.
struct End {
    Ring::Writer writer;
    Ring::Reader reader;
    Ring::Bell bell;
    Ring::Doorbell doorbell;
    size_t link;
    int fd;
    uint64_t sleeps = 0, bytes_written = 0;

    struct Shared {
        Ring::Pages rings[2], bits[2], states[2];
        int fds[2];
    };

    static Shared make(Ring::Arena &arena, size_t ring_nbytes) {
        Shared shared;
        CHECK(arena.open() == 0);
        for (int i = 0; i < 2; ++i) {
            CHECK(arena.carve(ring_nbytes, shared.rings[i]) == 0);
            CHECK(arena.carve(Ring::page_nbytes(), shared.bits[i]) == 0);
            CHECK(arena.carve(Ring::page_nbytes(), shared.states[i]) == 0);
        }
        CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, shared.fds) == 0);
        return shared;
    }

    /// Both processes are forks of one here, so its mappings may be passed on.
    static void pass_on(const Shared &shared) {
        for (int i = 0; i < 2; ++i)
            for (const Ring::Pages &pages : {shared.rings[i], shared.bits[i], shared.states[i]})
                CHECK(madvise(pages.data, pages.nbytes, MADV_DOFORK) == 0);
    }

    End(const Shared &shared, int side, size_t link)
        : writer(shared.rings[1 - side].data, shared.rings[1 - side].nbytes),
          reader(shared.rings[side].data, shared.rings[side].nbytes),
          bell(shared.bits[1 - side].data, shared.states[1 - side].data, link),
          doorbell(shared.bits[side].data, shared.states[side].data),
          link(link),
          fd(shared.fds[side]) {
        doorbell.add(link);
    }

    void ring() {
        if (!bell.ring()) return;
        ++bytes_written;
        const ssize_t n = send(fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        CHECK(n == 1 || errno == EAGAIN);
    }

    /// Whether there may be something: the link rang or is attended to.
    bool looks() {
        for (size_t word = 0; word < doorbell.words(); ++word) doorbell.take(word);
        return doorbell.attends(link);
    }

    /// As a worker would: dismiss, say so, look again, sleep. `peeks` tells whether there is something.
    template <typename Peeks>
    void sleep(Peeks peeks) {
        doorbell.dismiss(link);
        if (peeks()) {
            doorbell.attend(link);
            return;
        }
        doorbell.fall_asleep();
        if (looks()) {
            doorbell.wake_up();
            return;
        }
        ++sleeps;
        pollfd waits{fd, POLLIN, 0};
        int n;
        while ((n = poll(&waits, 1, 5000)) < 0) CHECK(errno == EINTR);
        CHECK(n == 1);  // else a wake-up was lost
        char bytes[64];
        CHECK(recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0);
        doorbell.wake_up();
        doorbell.attend(link);
    }
};
