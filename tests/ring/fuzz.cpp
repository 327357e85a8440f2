// SPDX-License-Identifier: BSD-3-Clause
// Rings and doorbells with spoiled words, for AddressSanitizer and UBSan: the other side writes anything, anywhere, at
// any time. The ring lies in memory of just its size, so that what is read outside is seen. Nothing may crash or hang,
// and each ring ends well or with a named fault.
//     fuzz [RINGS [SEED]]
#include <atomic>
#include <memory>
#include <thread>

#include "common.hpp"

namespace {

constexpr size_t most_nbytes = 16384;

struct Free {
    void operator()(uint64_t *memory) const noexcept { free(memory); }
};

uint64_t spoiled(Random &random, size_t nbytes) {
    switch (random.below(8)) {
        case 0: return random();
        case 1: return random.below(256);
        case 2: return uint64_t(1 + random.below(4)) << 32 | random.below(2 * nbytes);  // looks like a record
        case 3: return uint64_t(1 + random.below(4)) << 32 | (nbytes - 128 - random.below(40));
        case 4: return uint64_t(random.below(6)) << 32 | uint32_t(random());
        case 5: return UINT64_MAX - random.below(64);
        case 6: return random.below(2 * nbytes) & ~uint64_t(7);  // looks like a cursor
        default: return 0;
    }
}

void spoil(uint64_t *words, size_t nbytes, Random &random) {
    const size_t count = nbytes / 8;
    for (uint64_t n = random.below(20); n; --n) {
        // Half of them where the cursor is and where records begin.
        const size_t at = random.below(2) ? random.below(count) : random.below(2) ? 0 : 16 + random.below(40);
        std::atomic_ref(words[at]).store(spoiled(random, nbytes), std::memory_order_relaxed);
    }
    if (random.below(50) == 0)
        for (size_t i = 0; i < count; ++i)
            std::atomic_ref(words[i]).store(random.below(3) ? spoiled(random, nbytes) : random(),
                                            std::memory_order_relaxed);
}

struct Counts {
    uint64_t faults[4] = {}, records = 0, written = 0;
};

void use_reader(Ring::Reader &reader, std::vector<std::byte> &landing, Random &random, Counts &counts) {
    Ring::Record record;
    for (uint64_t most = random.below(20); most && reader.peek(record); --most) {
        CHECK(record.nbytes <= landing.size() && record.first_nbytes <= record.nbytes);
        CHECK(record.kind >= Ring::Kind::message && record.kind <= Ring::Kind::piece);
        const size_t offset = random.below(record.nbytes + 1);
        record.copy(landing.data(), offset, record.nbytes - offset);
        record.copy(landing.data(), 0, offset);
        ++counts.records;
        if (random.below(8)) reader.consume();
    }
    reader.release();
}

void use_writer(Ring::Writer &writer, std::vector<std::byte> &bytes, Random &random, Counts &counts) {
    for (uint64_t most = random.below(6); most; --most) {
        const size_t nbytes = random.below(random.below(3) ? 100 : bytes.size());
        iovec parts[2] = {{bytes.data(), nbytes / 3}, {bytes.data() + nbytes / 3, nbytes - nbytes / 3}};
        Ring::Gather from{parts, 2};
        if (writer.append(Ring::Kind(1 + random.below(3)), from, nbytes)) {
            ++counts.written;
        } else if (random.below(2)) {
            writer.publish();
            writer.want(nbytes);
        }
    }
    if (random.below(3)) writer.publish();
}

void use_doorbell(Ring::Doorbell &doorbell, Ring::Bell &bell, Random &random) {
    bell.ring();
    for (size_t word = 0; word < doorbell.words(); ++word)
        CHECK((doorbell.take(word) & ~(word ? uint64_t(1) << 6 : uint64_t(1) << 9)) == 0);
    if (random.below(4) == 0) doorbell.dismiss(70);
    if (random.below(9) == 0) {
        doorbell.fall_asleep();
        doorbell.wake_up();
    }
}

void one_ring(Random &random, std::vector<std::byte> &bytes, std::vector<std::byte> &landing, Counts &counts,
              Ring::DoorbellBits *bits, Ring::DoorbellState *state) {
    const size_t nbytes = 4096 << random.below(3);
    const std::unique_ptr<uint64_t, Free> memory(static_cast<uint64_t *>(aligned_alloc(128, nbytes)));
    std::memset(memory.get(), 0, nbytes);
    Ring::Writer writer(memory.get(), nbytes);
    Ring::Reader reader(memory.get(), nbytes);
    Ring::Doorbell doorbell(bits, state);
    doorbell.add(9);
    doorbell.add(70);
    Ring::Bell bell(bits, state, random.below(2) ? 9 : 70);
    for (uint64_t steps = 2 + random.below(12); steps; --steps) {
        use_writer(writer, bytes, random, counts);
        if (random.below(3) == 0) spoil(memory.get(), nbytes, random);
        use_reader(reader, landing, random, counts);
        bits->words[random.below(2)] = random.below(2) ? random() : 0;
        state->sleeps = random();
        use_doorbell(doorbell, bell, random);
    }
    ++counts.faults[size_t(reader.fault())];
    if (writer.fault() != Ring::Fault::none) ++counts.faults[size_t(writer.fault())];
}

/// What is spoiled is spoiled while it is read, by another thread.
void at_any_time(double seconds, std::vector<std::byte> &bytes, std::vector<std::byte> &landing, Counts &counts) {
    constexpr size_t nbytes = 8192;
    const std::unique_ptr<uint64_t, Free> memory(static_cast<uint64_t *>(aligned_alloc(128, nbytes)));
    std::memset(memory.get(), 0, nbytes);
    std::atomic<bool> done{false};
    std::thread hostile([&] {
        Random random(99);
        while (!done.load()) spoil(memory.get(), nbytes, random);
    });
    Random random(98);
    for (const double until = now_s() + seconds; now_s() < until;) {
        Ring::Writer writer(memory.get(), nbytes);
        Ring::Reader reader(memory.get(), nbytes);
        for (int i = 0; i < 20; ++i) {
            use_writer(writer, bytes, random, counts);
            use_reader(reader, landing, random, counts);
        }
        ++counts.faults[size_t(reader.fault())];
    }
    done.store(true);
    hostile.join();
}

}  // namespace

int main(int argc, char **argv) {
    const uint64_t rings = argc > 1 ? strtoull(argv[1], nullptr, 10) : 20'000;
    Random random(argc > 2 ? strtoull(argv[2], nullptr, 10) : 1);
    std::vector<std::byte> bytes = make_content(3, 5000), landing(most_nbytes);
    auto bits = std::make_unique<Ring::DoorbellBits>();
    auto state = std::make_unique<Ring::DoorbellState>();
    Counts counts;
    const double begin = now_s();
    for (uint64_t i = 0; i < rings; ++i) one_ring(random, bytes, landing, counts, bits.get(), state.get());
    printf("fuzz: %llu rings in %.1f s:", (unsigned long long)rings, now_s() - begin);
    for (size_t i = 0; i < 4; ++i)
        printf(" %s %llu,", Ring::name_of(Ring::Fault(i)), (unsigned long long)counts.faults[i]);
    printf(" %llu records read, %llu written\n", (unsigned long long)counts.records,
           (unsigned long long)counts.written);
    if (rings >= 1000)
        for (uint64_t n : counts.faults) CHECK(n > 0);
    at_any_time(0.5, bytes, landing, counts);
}
