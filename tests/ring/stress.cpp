// SPDX-License-Identifier: BSD-3-Clause
// Both ends of a link in two threads, for ThreadSanitizer: each writes numbered messages, whole and in pieces, reads
// the other's and checks every byte, and sleeps when it has nothing to do, also while it waits for room.
//     stress [MESSAGES [RING]]
#include <atomic>
#include <thread>

#include "common.hpp"

namespace {

constexpr size_t piece_nbytes = 900;

struct Talk {
    End &end;
    const Messages &messages;
    uint64_t count;
    Random random;
    Place out{}, in{};
    bool blocked = false;

    bool is_done() const { return out.number == count && in.number == count; }

    size_t next_nbytes() const { return std::min(messages.nbytes(out.number) - out.offset, piece_nbytes); }

    bool write() {
        bool wrote = false;
        for (uint64_t batch = 1 + random.below(4); batch && out.number < count; --batch) {
            uint64_t number = out.number;
            const std::vector<std::byte> &rest = messages.of(number);
            iovec parts[2] = {{&number, 8}, {const_cast<std::byte *>(rest.data()), rest.size()}};
            Ring::Gather from{parts, 2, out.offset};
            if (out.offset) from = {parts + 1, 1, out.offset - 8};
            const size_t n = next_nbytes();
            const auto kind = out.offset                        ? Ring::Kind::piece
                              : n < messages.nbytes(out.number) ? Ring::Kind::begin
                                                                : Ring::Kind::message;
            blocked = !end.writer.append(kind, from, n);
            CHECK(end.writer.fault() == Ring::Fault::none);
            if (blocked) break;
            wrote = true;
            out.advance(messages, n);
        }
        if (!wrote) return false;
        end.writer.publish();
        end.ring();
        return true;
    }

    bool read() {
        Ring::Record record;
        uint64_t most = 1 + random.below(8);
        bool found = false;
        while (most-- && end.reader.peek(record)) {
            found = true;
            CHECK(in.number < count && (record.kind == Ring::Kind::piece) == (in.offset > 0));
            CHECK(messages.holds(in.number, in.offset, record));
            in.advance(messages, record.nbytes);
            end.reader.consume();
        }
        CHECK(end.reader.fault() == Ring::Fault::none);
        if (end.reader.release()) end.ring();
        return found;
    }

    // Whether there is something to do; what D2 and Z3 of doorbell.hpp are about.
    bool looks() {
        Ring::Record record;
        if (end.reader.peek(record)) return true;
        if (end.reader.release()) end.ring();
        if (!blocked) return false;
        if (end.writer.want(next_nbytes())) return true;
        end.ring();
        return false;
    }

    bool move() {
        const bool wrote = write();
        return read() || wrote;
    }

    void run() {
        while (!is_done()) {
            bool moved = move();
            for (uint64_t turns = random.below(50); !moved && turns && !is_done(); --turns) moved = move();
            if (moved || is_done()) continue;
            end.sleep([this] { return looks(); });
        }
    }
};

}  // namespace

int main(int argc, char **argv) {
    const uint64_t count = argc > 1 ? strtoull(argv[1], nullptr, 10) : 20'000;
    const size_t ring_nbytes = argc > 2 ? size_t(atol(argv[2])) : 4096;
    const Messages messages(6000);
    Ring::Arena arena;
    const End::Shared shared = End::make(arena, ring_nbytes);
    End first(shared, 0, 3), second(shared, 1, 3);
    Talk here{first, messages, count, Random(1)}, there{second, messages, count, Random(2)};
    std::thread thread([&there] { there.run(); });
    here.run();
    thread.join();
    printf("stress: %llu messages each way, %llu sleeps, %llu bytes to wake\n", (unsigned long long)count,
           (unsigned long long)(first.sleeps + second.sleeps),
           (unsigned long long)(first.bytes_written + second.bytes_written));
    CHECK(first.sleeps + second.sleeps > 0);
}
