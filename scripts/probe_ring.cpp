// SPDX-License-Identifier: BSD-3-Clause
// What a ring between two processes costs: two pinned processes, a ring for each direction, both spinning. Not a test.
//
//     g++ -O3 -std=c++20 -Isrc/native scripts/probe_ring.cpp -o probe_ring && ./probe_ring latency 65536
//
// latency RING: one way in us, 8 B to 8 KiB, copied out; with and without the doorbell, and beside it a slot of one
// cache
//               line whose first word says that it is there, which is as fast as two cores can tell each other
//               anything.
// rate RING BYTES: messages of that size in millions a second, each published, and 16 at a time.
// stream RING PIECE: one way in us for 4 KiB to 1 MiB, in pieces that one side writes while the other reads.
// area RING PIECE AREA: as stream, but the pieces lie in an area of AREA bytes that is the sender's and could serve all
// its
//               links, and the ring's records only say where.
// memcpy:       us for a copy of the same sizes in one process.
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "ring/arena.hpp"
#include "ring/doorbell.hpp"
#include "ring/ring.hpp"

namespace {

double now_us() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return double(t.tv_sec) * 1e6 + double(t.tv_nsec) / 1e3;
}

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

void pin(int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    sched_setaffinity(0, sizeof set, &set);
}

struct Pair {
    Ring::Pages rings[2], bells[2], states[2], areas[2];
};

/// What the sender copies into and the receiver out of; `tail` is the receiver's, and in a page of its own.
struct Area {
    std::byte *data;
    std::atomic<uint64_t> *tail;
    size_t nbytes;
    uint64_t head = 0;
    explicit Area(const Ring::Pages &pages)
        : data(static_cast<std::byte *>(pages.data)),
          tail(reinterpret_cast<std::atomic<uint64_t> *>(data + pages.nbytes - 4096)),
          nbytes(pages.nbytes - 4096) {}
};

struct Side {
    Ring::Writer writer;
    Ring::Reader reader;
    Ring::Bell bell;
    Ring::Doorbell doorbell;
    Area out, in;
    bool rings;

    Side(Pair &pair, int side, bool rings)
        : writer(pair.rings[1 - side].data, pair.rings[1 - side].nbytes),
          reader(pair.rings[side].data, pair.rings[side].nbytes),
          bell(pair.bells[1 - side].data, pair.states[1 - side].data, 3),
          doorbell(pair.bells[side].data, pair.states[side].data),
          out(pair.areas[side]),
          in(pair.areas[1 - side]),
          rings(rings) {
        doorbell.add(3);
    }

    void send(Ring::Kind kind, Ring::Gather &from, size_t nbytes) {
        while (!writer.append(kind, from, nbytes)) relax();
        writer.publish();
        if (rings) bell.ring();
    }
    size_t receive(void *to) {
        Ring::Record record;
        while (!reader.peek(record)) {
            if (rings && doorbell.take(0)) abort();
            relax();
        }
        record.copy(to, 0, record.nbytes);
        reader.consume();
        if (reader.release()) abort();
        return record.nbytes;
    }
};

std::vector<char> content(4 << 20, 'x'), landing(4 << 20);

void send_message(Side &side, size_t nbytes, size_t piece, bool by_area) {
    iovec iov{content.data(), nbytes};
    Ring::Gather from{&iov, 1};
    for (size_t left = nbytes; left;) {
        const size_t n = std::min(left, piece);
        left -= n;
        if (!by_area) {
            side.send(Ring::Kind::piece, from, n);
            continue;
        }
        Area &area = side.out;
        if (area.head % area.nbytes + n > area.nbytes) area.head += area.nbytes - area.head % area.nbytes;
        while (area.head + n - area.tail->load(std::memory_order_acquire) > area.nbytes) relax();
        from.copy_to(area.data + area.head % area.nbytes, n);
        uint64_t where[2] = {area.head, n};
        iovec told{where, sizeof where};
        Ring::Gather telling{&told, 1};
        side.send(Ring::Kind::piece, telling, sizeof where);
        area.head += n;
    }
}

void receive_message(Side &side, size_t nbytes, bool by_area) {
    for (size_t had = 0; had < nbytes;) {
        if (!by_area) {
            had += side.receive(landing.data() + had);
            continue;
        }
        uint64_t where[2];
        side.receive(where);
        std::memcpy(landing.data() + had, side.in.data + where[0] % side.in.nbytes, where[1]);
        side.in.tail->store(where[0] + where[1], std::memory_order_release);
        had += where[1];
    }
}

double ping_pong(Side &side, bool first, size_t nbytes, size_t piece, int turns, bool by_area = false) {
    double best = 1e9;
    for (int round = 0; round < 20; ++round) {
        const double begin = now_us();
        for (int i = 0; i < turns; ++i) {
            if (first) send_message(side, nbytes, piece, by_area);
            receive_message(side, nbytes, by_area);
            if (!first) send_message(side, nbytes, piece, by_area);
        }
        best = std::min(best, (now_us() - begin) / turns / 2);
    }
    return best;
}

struct alignas(128) Slot {
    std::atomic<uint64_t> number;
    uint64_t value;
};

double slots(Slot *mine, Slot *theirs, bool first, int turns) {
    static uint64_t number = 0;
    double best = 1e9;
    for (int round = 0; round < 20; ++round) {
        const double begin = now_us();
        for (int i = 0; i < turns; ++i) {
            ++number;
            Slot &out = theirs[number % 32], &in = mine[number % 32];
            auto send = [&] {
                out.value = number;
                out.number.store(number, std::memory_order_release);
            };
            if (first) send();
            while (in.number.load(std::memory_order_acquire) != number) relax();
            if (!first) send();
        }
        best = std::min(best, (now_us() - begin) / turns / 2);
    }
    return best;
}

void rate(Side &side, bool first, size_t nbytes, size_t batch) {
    constexpr size_t count = 1'000'000;
    double best = 0;
    for (int round = 0; round < 5; ++round) {
        const double begin = now_us();
        if (first) {
            for (size_t i = 0; i < count; i += batch) {
                for (size_t j = 0; j < batch; ++j) {
                    iovec iov{content.data(), nbytes};
                    Ring::Gather from{&iov, 1};
                    while (!side.writer.append(Ring::Kind::message, from, nbytes)) {
                        side.writer.publish();
                        relax();
                    }
                }
                side.writer.publish();
                side.bell.ring();
            }
            side.receive(landing.data());
            best = std::max(best, count / (now_us() - begin));
        } else {
            for (size_t i = 0; i < count; ++i) side.receive(landing.data());
            iovec iov{content.data(), 8};
            Ring::Gather from{&iov, 1};
            side.send(Ring::Kind::message, from, 8);
        }
    }
    if (first) printf("rate %zu B, %zu at a time: %.1f M/s\n", nbytes, batch, best);
}

}  // namespace

int main(int count, char **arguments) {
    const std::string what = count > 1 ? arguments[1] : "latency";
    const size_t nbytes = count > 2 ? size_t(atol(arguments[2])) : 65536;
    const size_t piece = count > 3 ? size_t(atol(arguments[3])) : 8192;
    const size_t area_nbytes = count > 4 ? size_t(atol(arguments[4])) : 65536;
    if (what == "memcpy") {
        pin(0);
        for (size_t n = 4096; n <= 1 << 20; n *= 2) {
            double best = 1e9;
            for (int round = 0; round < 200; ++round) {
                const double begin = now_us();
                for (int i = 0; i < 10; ++i) {
                    std::memcpy(landing.data(), content.data(), n);
                    asm volatile("" ::: "memory");
                }
                best = std::min(best, (now_us() - begin) / 10);
            }
            printf("memcpy %7zu B: %.2f us\n", n, best);
        }
        return 0;
    }
    Ring::Arena arena;
    Pair pair;
    Ring::Pages slot_pages;
    if (arena.open()) return 1;
    for (int i = 0; i < 2; ++i)
        if (arena.carve(nbytes, pair.rings[i]) || arena.carve(4096, pair.bells[i]) ||
            arena.carve(4096, pair.states[i]) || arena.carve(area_nbytes + 4096, pair.areas[i]))
            return 1;
    if (arena.carve(8192, slot_pages)) return 1;
    auto *slot = static_cast<Slot *>(slot_pages.data);
    for (Ring::Pages *p : {&pair.rings[0], &pair.rings[1], &pair.bells[0], &pair.bells[1], &pair.states[0],
                           &pair.states[1], &pair.areas[0], &pair.areas[1], &slot_pages})
        madvise(p->data, p->nbytes, MADV_DOFORK);  // both processes are this one; elsewhere that would be wrong
    const pid_t child = fork();
    if (child == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
    const bool first = child != 0;
    pin(first ? 0 : 1);
    if (what == "latency") {
        const double bare = slots(slot + (first ? 0 : 32), slot + (first ? 32 : 0), first, 5000);
        Side plain(pair, first ? 0 : 1, false);
        double without = ping_pong(plain, first, 8, 8192, 5000);
        if (first) printf("slot 8 B: %.3f us\nring 8 B, no doorbell: %.3f us\n", bare, without);
        plain.rings = true;
        for (size_t n : {8, 64, 256, 1024, 4096, 8192}) {
            double us = ping_pong(plain, first, n, 16384, n > 1024 ? 500 : 3000);
            if (first) printf("ring %5zu B: %.3f us\n", n, us);
        }
    } else if (what == "rate") {
        Side side(pair, first ? 0 : 1, true);
        rate(side, first, piece, 1);
        rate(side, first, piece, 16);
    } else {
        Side side(pair, first ? 0 : 1, true);
        for (size_t n = 4096; n <= 1 << 20; n *= 2) {
            double us = ping_pong(side, first, n, piece, int((4 << 20) / n / 8 + 4), what == "area");
            if (first)
                printf("ring %zu, piece %5zu: %7zu B %.2f us, %.1f GB/s\n", nbytes, piece, n, us, double(n) / us / 1e3);
        }
    }
    fflush(stdout);
    if (!first) _exit(0);
    int status;
    waitpid(child, &status, 0);
    return 0;
}
