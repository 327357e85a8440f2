// SPDX-License-Identifier: BSD-3-Clause
// One message, and one attempt to fall asleep, at the same moment, again and again: it must be found by the last look,
// or its sender must be told to wake the sleeper. Two threads that meet before each attempt, so that orders which the
// processor's store buffers allow do come about; the kernel is not in it.
//     litmus [ATTEMPTS]
#include <sched.h>

#include <atomic>
#include <thread>

#include "common.hpp"

namespace {

/// Where both threads wait for each other.
struct Meeting {
    alignas(128) std::atomic<uint64_t> arrived[2][16] = {};
    void wait(int side, uint64_t number) {
        arrived[side][0].store(number);
        for (int turns = 0; arrived[1 - side][0].load() < number; ++turns)
            if (turns % 1000 == 999) sched_yield();
    }
};

void pass(uint64_t turns) {
    while (turns--) asm volatile("");
}

}  // namespace

int main(int argc, char **argv) {
    const uint64_t attempts = argc > 1 ? strtoull(argv[1], nullptr, 10) : 200'000;
    Ring::Arena arena;
    const End::Shared shared = End::make(arena, 4 * Ring::page_nbytes());
    End sender(shared, 0, 3), receiver(shared, 1, 3);
    Meeting meeting;
    std::atomic<bool> told{false};
    std::thread thread([&] {
        Random random(3);
        for (uint64_t number = 1; number <= attempts; ++number) {
            iovec iov{&number, 8};
            Ring::Gather from{&iov, 1};
            const uint64_t delay = random.below(600);
            CHECK(sender.writer.append(Ring::Kind::message, from, 8));
            meeting.wait(0, 2 * number);
            pass(delay);
            sender.writer.publish();
            told.store(sender.bell.ring(), std::memory_order_relaxed);
            meeting.wait(0, 2 * number + 1);
        }
    });
    Random random(4);
    uint64_t found_by[4] = {};
    for (uint64_t number = 1; number <= attempts; ++number) {
        Ring::Record record;
        const uint64_t delay = random.below(600), dismissed_before = random.below(2);
        const uint64_t between = random.below(2) ? 0 : random.below(400);
        if (dismissed_before) receiver.doorbell.dismiss(3);
        meeting.wait(1, 2 * number);
        pass(delay);
        int found = 3;
        if (!dismissed_before) receiver.doorbell.dismiss(3);
        if (receiver.reader.peek(record)) {
            found = 0;
        } else {
            pass(between);
            receiver.doorbell.fall_asleep();
            if (receiver.doorbell.take(0)) found = 1;
        }
        meeting.wait(1, 2 * number + 1);
        if (found == 3 && told.load(std::memory_order_relaxed)) found = 2;
        CHECK(found < 3);  // else it would have slept on
        ++found_by[found];
        uint64_t got = 0;
        CHECK(receiver.reader.peek(record) && record.nbytes == 8);
        record.copy(&got, 0, 8);
        CHECK(got == number);
        receiver.reader.consume();
        receiver.reader.release();
        if (found > 0) receiver.doorbell.wake_up();
        receiver.doorbell.attend(3);
    }
    thread.join();
    printf("litmus: %llu attempts: %llu found in the ring, %llu by the bit, %llu told to wake\n",
           (unsigned long long)attempts, (unsigned long long)found_by[0], (unsigned long long)found_by[1],
           (unsigned long long)found_by[2]);
}
