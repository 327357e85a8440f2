// SPDX-License-Identifier: BSD-3-Clause
// How one process learns which of its many rings were written to, without looking at all of them, and how it sleeps.
//
// Each process has one doorbell, two pages that all its senders map: a bit for each link, which they write, and a count
// of sleeps, which they can only read, so that a broken one cannot hide from the others that the receiver sleeps. A
// set bit means "the receiver will look at this ring". It stays set for as long as the receiver looks at that ring in
// each turn (it *attends* to the link), so in busy times senders only read it, and nobody writes the shared line.
// Links that have been silent for a while are dismissed: their bits are cleared. A turn costs a word for each 64 links,
// and a look at each ring attended to; idle links cost nothing.
//
//     sender                               receiver, to dismiss              receiver, to sleep
//     S1  store head (Ring::Writer)        D1  clear the bit                 Z1  sleeps becomes odd
//     S2  load the bit; set it if clear    D2  look at the ring              Z2  load all words of bits
//     S3  load sleeps; if odd, write a byte                                  Z3  look at the rings attended to
//         to the link's socket                                               Z4  sleep on the sockets
//
// All of these are seq_cst, so each execution has one order of them that all threads agree on. If S2 saw the bit set
// that D1 clears, S1 comes before D2, which sees the record; else the sender sets it again. If S3 saw an even number,
// S1 and S2 come before Z1; then either Z2 sees the bit or the link is attended to and Z3 sees the record. Else there
// is a byte in the socket, and Z4 does not last. A sender writes one byte in each sleep, as the number tells it that it
// did.
//
// Waiting for room goes the same way: `Writer::want` stands in S1's place, and the reader's new cursor when it rings
// back. So whoever waits for room looks for it (`want`) beside its ring in D2 and Z3.
//
// Trust. The bits are anybody's: one that is set for no reason costs a look at a ring, if there is such a link, and one
// that is cleared for no reason delays that link's message until its sender next writes or the receiver next looks. The
// receiver never takes an index from these pages, only the bits of links that it knows.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace Ring {

/// As many links as the smallest page has bits.
constexpr size_t max_links = 4096 * 8, max_words = max_links / 64;

struct DoorbellBits {
    std::atomic<uint64_t> words[max_words];
};
struct DoorbellState {
    std::atomic<uint64_t> sleeps;  // how often the receiver fell asleep or woke up: odd while it sleeps
};
static_assert(sizeof(DoorbellBits) == 4096 && std::atomic<uint64_t>::is_always_lock_free);

/// One link's view of the receiver's doorbell: the sender's side. Owns no pages.
class Bell {
  public:
    Bell(void *bits, const void *state, size_t link) noexcept
        : word(&static_cast<DoorbellBits *>(bits)->words[link / 64]),
          state(static_cast<const DoorbellState *>(state)),
          bit(uint64_t(1) << link % 64) {}

    /// Tell the receiver to look, after what it is to see was stored. True: it sleeps, and a byte has to be written to
    /// the link's socket; a full socket wakes it as well.
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

/// The receiver's side: one for each process. Owns no pages: they begin zeroed and outlive it. One thread at a time.
class Doorbell {
  public:
    Doorbell(void *bits, void *state) noexcept
        : bits(static_cast<DoorbellBits *>(bits)), state(static_cast<DoorbellState *>(state)) {}

    /// Words that have links.
    size_t words() const noexcept { return used; }

    /// A link begins, attended to: its sender may have rung already.
    void add(size_t link) noexcept {
        known[link / 64] |= uint64_t(1) << link % 64;
        attend(link);
        if (used <= link / 64) used = link / 64 + 1;
    }
    void remove(size_t link) noexcept {
        known[link / 64] &= ~(uint64_t(1) << link % 64);
        attended[link / 64] &= known[link / 64];
    }

    /// The links of this word that rang and were not attended to, one bit each; from now on they are.
    uint64_t take(size_t word) noexcept {
        const uint64_t rang = bits->words[word].load(std::memory_order_seq_cst) & known[word] & ~attended[word];
        attended[word] |= rang;
        return rang;
    }
    /// Look at this link's ring in each turn from now on, as when a byte came over its socket.
    void attend(size_t link) noexcept {
        const uint64_t bit = uint64_t(1) << link % 64;
        attended[link / 64] |= bit;
        bits->words[link / 64].fetch_or(bit, std::memory_order_seq_cst);
    }
    /// Attend to it no more. Its ring must be looked at once after this: what was written before rang for nobody.
    void dismiss(size_t link) noexcept {
        const uint64_t bit = uint64_t(1) << link % 64;
        attended[link / 64] &= ~bit;
        bits->words[link / 64].fetch_and(~bit, std::memory_order_seq_cst);
    }
    bool attends(size_t link) const noexcept { return attended[link / 64] >> link % 64 & 1; }

    /// To be followed by `take` of all words and a look at all rings attended to, and only then by sleep.
    /// Again without `wake_up` before: who has written a byte writes another.
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
