// SPDX-License-Identifier: BSD-3-Clause
// How a process learns which of its many rings were written to, without checking all of them, and how it sleeps.
//
// Each process has one doorbell, two pages that all its senders map: a bit for each link, which senders write, and a
// counter of sleeps, which they can only read, so that a broken sender cannot hide from others that the receiver
// sleeps. A set bit means "the receiver will look at this ring". It stays set as long as the receiver looks at that
// ring in each turn (it *attends* to the link), so in busy times senders only read it, and nobody writes the shared
// cache line. Links that are silent for a while are dismissed: their bits are cleared. A turn costs one word for each
// 64 links, and a look at each attended ring; idle links cost nothing.
//
//     sender                               receiver, to dismiss              receiver, to sleep
//     S1  store head (Ring::Writer)        D1  clear the bit                 Z1  sleeps becomes odd
//     S2  load the bit; set it if clear    D2  look at the ring              Z2  load all words of bits
//     S3  load sleeps; if odd, write a byte                                  Z3  look at the rings attended to
//         to the link's socket                                               Z4  sleep on the sockets
//
// All of these are seq_cst, so each execution has a single order of them that all threads agree on. If S2 saw the bit
// set that D1 clears, S1 comes before D2, which then sees the record; otherwise the sender sets the bit again. If S3
// saw an even number, S1 and S2 come before Z1; then either Z2 sees the bit, or the link is attended and Z3 sees the
// record. Otherwise there is a byte in the socket, and Z4 returns at once. A sender writes one byte per sleep; the
// counter shows whether it has.
//
// Waiting for room works the same way: `Writer::want` takes S1's place, and so does the reader's new cursor when it
// rings back. So a side that waits for room checks for it (`want`) together with its ring in D2 and Z3.
//
// Trust. Anybody can write the bits: a bit set for no reason costs one look at a ring, if the link exists; a bit
// cleared for no reason delays that link's message until its sender writes again or the receiver looks again. The
// receiver never takes an index from these pages, only the bits of links that it knows.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace Ring {

/// Number of links: as many as the smallest page has bits.
constexpr size_t max_links = 4096 * 8, max_words = max_links / 64;

struct DoorbellBits {
    std::atomic<uint64_t> words[max_words];
};
struct DoorbellState {
    std::atomic<uint64_t> sleeps;  // how often the receiver fell asleep or woke up: odd while it sleeps
};
static_assert(sizeof(DoorbellBits) == 4096 && std::atomic<uint64_t>::is_always_lock_free);

/// A sender's view of the receiver's doorbell, for one link. Owns no pages.
class Bell {
  public:
    Bell(void *bits, const void *state, size_t link) noexcept
        : word(&static_cast<DoorbellBits *>(bits)->words[link / 64]),
          state(static_cast<const DoorbellState *>(state)),
          bit(uint64_t(1) << link % 64) {}

    /// Tell the receiver to look; call it after storing the data. True: it sleeps, so write a byte to the link's
    /// socket; a full socket wakes it as well.
    bool ring() noexcept {
        if (!(word->load(std::memory_order_seq_cst) & bit)) word->fetch_or(bit, std::memory_order_seq_cst);
        const uint64_t sleeps = state->sleeps.load(std::memory_order_seq_cst);
        if (sleeps % 2 == 0 || sleeps == woken) return false;
        woken = sleeps;
        return true;
    }

  private:
    std::atomic<uint64_t> *word;
    const DoorbellState *state;
    uint64_t bit, woken = 0;
};

/// The receiver's side: one for each process. Owns no pages: they start zeroed and outlive it. One thread at a time.
class Doorbell {
  public:
    Doorbell(void *bits, void *state) noexcept
        : bits(static_cast<DoorbellBits *>(bits)), state(static_cast<DoorbellState *>(state)) {}

    /// Number of words with links.
    size_t words() const noexcept { return used; }

    /// Add a link, attended: its sender may have rung already.
    void add(size_t link) noexcept {
        known[link / 64] |= uint64_t(1) << link % 64;
        attend(link);
        if (used <= link / 64) used = link / 64 + 1;
    }
    void remove(size_t link) noexcept {
        known[link / 64] &= ~(uint64_t(1) << link % 64);
        attended[link / 64] &= known[link / 64];
    }

    /// Return and attend the links of this word that rang and were not attended, one bit each.
    uint64_t take(size_t word) noexcept {
        const uint64_t rang = bits->words[word].load(std::memory_order_seq_cst) & known[word] & ~attended[word];
        attended[word] |= rang;
        return rang;
    }
    /// Look at this link's ring in each turn from now on, as after a byte over its socket.
    void attend(size_t link) noexcept {
        const uint64_t bit = uint64_t(1) << link % 64;
        attended[link / 64] |= bit;
        bits->words[link / 64].fetch_or(bit, std::memory_order_seq_cst);
    }
    /// Stop attending to it. Look at its ring once more afterwards: an earlier record may have rung for nothing.
    void dismiss(size_t link) noexcept {
        const uint64_t bit = uint64_t(1) << link % 64;
        attended[link / 64] &= ~bit;
        bits->words[link / 64].fetch_and(~bit, std::memory_order_seq_cst);
    }
    bool attends(size_t link) const noexcept { return attended[link / 64] >> link % 64 & 1; }

    /// Call `take` for all words and look at all attended rings before actually sleeping. If called again without
    /// `wake_up`, a sender that has written a byte writes another.
    void fall_asleep() noexcept { state->sleeps.store(sleeps += 1 + sleeps % 2, std::memory_order_seq_cst); }
    void wake_up() noexcept {
        if (sleeps % 2) state->sleeps.store(++sleeps, std::memory_order_seq_cst);
    }

  private:
    DoorbellBits *bits;
    DoorbellState *state;
    uint64_t sleeps = 0;
    size_t used = 0;
    uint64_t known[max_words] = {}, attended[max_words] = {};
};

}  // namespace Ring
