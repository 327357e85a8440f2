// SPDX-License-Identifier: BSD-3-Clause
// What the rings of one worker's links have in common: the doorbell, which tells those that were written to, the area
// that large messages are read from, and the arena that all of these pages are of.
//
// A turn looks at the rings of the links that are attended to; a link that has been silent for `patience` looks at all
// of them is attended to no more until its bell rings. So idle links cost nothing.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "progress/worker.hpp"
#include "ring/arena.hpp"
#include "ring/doorbell.hpp"

/// A link's end that Rings looks after.
struct RingEnd {
    size_t index = 0;           // of the link, in the doorbell
    unsigned silent_turns = 0;  // since something came

    /// Take some of what has come; return how many records.
    virtual unsigned receive() noexcept = 0;
    /// Send what there is room for; return how many records.
    virtual unsigned send_more() noexcept = 0;
    virtual bool has_unsent() const noexcept = 0;
    /// Before sleep: whether there is room by now. If not, the other side will ring when it has made some.
    virtual bool finds_room() noexcept = 0;
    /// Take back the pieces of the area that the other side has read.
    virtual void collect() noexcept = 0;

  protected:
    ~RingEnd() = default;
};

/// The process's arena: all its workers' pages are carved out of it.
struct SharedArena {
    std::mutex mutex;
    Ring::Arena arena;
    uint64_t id = 0;  // random

    /// The one of this process, made by the first who needs it; gone with the last. Null: `error` is the errno.
    static std::shared_ptr<SharedArena> of_process(int &error) noexcept;
};

/// Memory of the sender's, from which receivers copy the pieces of a message. All links of a worker share it.
struct Area {
    static constexpr size_t piece_nbytes = 8 << 10, pieces = 32, nbytes = pieces * piece_nbytes;
    static constexpr size_t most_for_one = 24;  // pieces that a link whose other side does not read may keep

    std::byte *data = nullptr;
    uint32_t free = UINT32_MAX;  // a bit for each piece
    static_assert(pieces == 32);

    /// A piece that nobody reads, the lowest, which is the likeliest to be in a cache; -1: there is none.
    int take() noexcept;
    void put_back(int piece) noexcept { free |= uint32_t(1) << piece; }
};

/// Owns the doorbell's pages and the area.
struct Rings : Poller {
    static constexpr size_t ring_nbytes = 16 << 10;
    static constexpr size_t patience = 16'384;

    Worker *worker;
    std::shared_ptr<SharedArena> arena;
    Ring::Pages bits, state;
    std::shared_ptr<Ring::Pages> area_pages;  // somebody may read them when this is gone
    std::unique_ptr<Ring::Doorbell> doorbell;
    Area area;
    std::vector<RingEnd *> links;                    // by their index
    std::vector<RingEnd *> attended;                 // looked at in each turn
    std::vector<RingEnd *> waiting;                  // with something to send, for room
    std::array<std::byte, ring_nbytes * 4> scratch;  // for a record that goes around the end of its ring

    /// The worker's, made when it is first asked for.
    static std::shared_ptr<Rings> of(Worker &worker);
    explicit Rings(Worker *worker);
    ~Rings() override;

    Ring::Pages carve(size_t nbytes);
    void free(const Ring::Pages &pages) noexcept;
    size_t add(RingEnd *link);
    void remove(RingEnd *link) noexcept;
    void attend(RingEnd *link) noexcept;
    /// To be called in each turn until it has nothing left to send.
    void wait_for_room(RingEnd *link) noexcept;
    /// Take back the pieces that have been read.
    void collect() noexcept;

    unsigned turn() noexcept override;
    bool arm() noexcept override;
    void wake_up() noexcept override { doorbell->wake_up(); }
    size_t looked_at() const noexcept override { return attended.size(); }

  private:
    void take_rung() noexcept;
};
