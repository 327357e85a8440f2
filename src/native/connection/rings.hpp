// SPDX-License-Identifier: BSD-3-Clause
// What the rings of a worker's links share: the doorbell, which says which of them were written to, the area through
// which large messages are sent, and the arena that contains all of these pages.
//
// Each turn looks at the rings of attended links; a link that was silent for `patience` looks in total is no longer
// attended until its bell rings. So idle links cost nothing.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "progress/worker.hpp"
#include "ring/arena.hpp"
#include "ring/doorbell.hpp"

/// A link's end, managed by Rings.
struct RingEnd {
    size_t index = 0;           // the link's index in the doorbell
    unsigned silent_turns = 0;  // since the last record

    /// Process some of the arrived records; return how many.
    virtual unsigned receive() noexcept = 0;
    /// Send what fits; return how many records.
    virtual unsigned send_more() noexcept = 0;
    /// Whether it has something to send, or watches what the other side has read, which no descriptor tells.
    virtual bool waits() const noexcept = 0;
    virtual bool watches() const noexcept = 0;
    /// Before sleep: whether there is room now. If not, the other side will ring once it has made some.
    virtual bool finds_room() noexcept = 0;
    /// Take back the area's pieces that the other side has read.
    virtual void collect() noexcept = 0;

  protected:
    ~RingEnd() = default;
};

/// The process's arena: it contains all pages of its workers.
struct SharedArena {
    std::mutex mutex;
    Ring::Arena arena;
    uint64_t id = 0;  // random

    /// This process's arena, made on first use, and freed after the last. Null: `error` is the errno.
    static std::shared_ptr<SharedArena> of_process(int &error) noexcept;
};

/// Memory of the sender, from which receivers copy the pieces of a message. All links of a worker share it. There are
/// two sizes of pieces. The large ones exceed a core's private cache on purpose: the reader gets data that the writer's
/// cache has evicted to a shared one three times as fast as data that the writer's core still holds (Zen 4: 1 MiB in
/// 38 us, through 256 KiB in 103). So pieces are used in turn, least recently used first. Small messages are better off
/// with small pieces: 16 KiB take 1.4 us through them, 2.5 through the large ones. Where the private cache holds the
/// large pieces as well, small ones are better for messages of up to four times its size, too.
struct Area {
    static constexpr size_t pieces = 32, small_nbytes = 8 << 10, large_nbytes = 32 << 10;
    static constexpr size_t nbytes_of_small = pieces * small_nbytes, nbytes = nbytes_of_small + pieces * large_nbytes;
    static constexpr size_t most_for_one = 24;  // pieces that a link may keep while its other side does not read

    /// How much of a message, its last bytes, goes through small pieces, by the size of a core's private cache; 0 is
    /// unknown.
    static constexpr size_t most_through_small(size_t cache_nbytes) noexcept {
        return cache_nbytes > pieces * large_nbytes ? 4 * cache_nbytes : 0;
    }
    /// The same on this machine.
    static size_t most_through_small() noexcept;

    /// Free pieces, in the order in which they were returned.
    struct Free {
        std::array<uint8_t, pieces> numbers;
        size_t first = 0, count = 0;

        int take() noexcept {
            if (!count) return -1;
            --count;
            return numbers[first++ % pieces];
        }
        void put_back(int number) noexcept { numbers[(first + count++) % pieces] = uint8_t(number); }
    };

    std::byte *data = nullptr;
    Free small, large;  // the numbers of the large ones follow those of the small ones

    Free &of(bool is_large) noexcept { return is_large ? large : small; }
    void put_back(int number) noexcept { of(number >= int(pieces)).put_back(number); }
    void add(bool is_large) noexcept {
        for (size_t i = 0; i < pieces; ++i) put_back(int(i + (is_large ? pieces : 0)));
    }
    static size_t nbytes_of(int number) noexcept { return number < int(pieces) ? small_nbytes : large_nbytes; }
    static size_t offset_of(int number) noexcept {
        const auto n = size_t(number);
        return n < pieces ? n * small_nbytes : nbytes_of_small + (n - pieces) * large_nbytes;
    }
};

/// Owns the doorbell's pages and the area.
struct Rings : Poller {
    static constexpr size_t ring_nbytes = 16 << 10;
    static constexpr size_t patience = 16'384;

    Worker *worker;
    std::shared_ptr<SharedArena> arena;
    Ring::Pages bits, state;
    std::shared_ptr<Ring::Pages> area_pages;  // others may still read them after this is gone
    std::unique_ptr<Ring::Doorbell> doorbell;
    Area area;
    std::vector<RingEnd *> links;                    // by index
    std::vector<RingEnd *> attended;                 // looked at in each turn
    std::vector<RingEnd *> waiting;                  // with unsent data, for room
    std::array<std::byte, ring_nbytes * 4> scratch;  // for a record that wraps around the end of its ring

    /// The worker's, made on first use.
    static std::shared_ptr<Rings> of(Worker &worker);
    explicit Rings(Worker *worker);
    ~Rings() override;

    Ring::Pages carve(size_t nbytes) { return carve(nbytes, nbytes); }
    Ring::Pages carve(size_t nbytes, size_t allocated);
    void free(const Ring::Pages &pages) noexcept;
    size_t add(RingEnd *link);
    void remove(RingEnd *link) noexcept;
    void attend(RingEnd *link) noexcept;
    /// Call its `send_more` in each turn until it no longer waits.
    void wait_for_room(RingEnd *link) noexcept;
    /// Take back the pieces that have been read.
    void collect() noexcept;
    /// Whether the next piece of an announced message, of which `left` bytes are left, is a large one. These are
    /// allocated on first use.
    bool uses_large_piece(size_t left) noexcept;

    unsigned turn() noexcept override;
    bool arm() noexcept override;
    void wake_up() noexcept override { doorbell->wake_up(); }
    size_t looked_at() const noexcept override { return attended.size(); }
    bool watches() const noexcept override;

  private:
    void take_rung() noexcept;

    bool asked_for_large = false, has_large = false;
};
