// SPDX-License-Identifier: BSD-3-Clause
// Two processes that answer each other and spin for a random, short time before they sleep, so that messages come at
// all moments of falling asleep. A wake-up that is lost ends the test: each sleep is bounded.
//     sleep [SLEEPS]
#include <sys/prctl.h>
#include <sys/wait.h>

#include <csignal>

#include "common.hpp"

namespace {

struct Turn {
    uint64_t number, enough;
};

void pass(uint64_t turns) {
    while (turns--) asm volatile("");
}

bool receive(End &end, Turn &turn) {
    Ring::Record record;
    if (!end.reader.peek(record)) return false;
    CHECK(record.nbytes == sizeof turn);
    record.copy(&turn, 0, sizeof turn);
    end.reader.consume();
    if (end.reader.release()) end.ring();
    return true;
}

void talk(End &end, bool first, uint64_t enough) {
    Random random(first ? 11 : 12);
    for (Turn turn{0, 0};; ++turn.number) {
        if (first == (turn.number % 2 == 0)) {
            if (random.below(4) == 0) pass(random.below(1000));
            if (end.sleeps >= enough) turn.enough |= first ? 1 : 2;
            iovec iov{&turn, sizeof turn};
            Ring::Gather from{&iov, 1};
            CHECK(try_write(end.writer, Ring::Kind::message, from, sizeof turn));
            end.ring();
        } else {
            Turn got{};
            // An answer takes 0.3 us when the other side spins: half of the time fall asleep at about that moment.
            for (uint64_t spins = random.below(2) ? 2000 : 0;; --spins) {
                if (receive(end, got)) break;
                if (spins) {
                    relax();
                    continue;
                }
                pass(random.below(1000));
                end.sleep([&end] {
                    Ring::Record record;
                    return end.reader.peek(record);
                });
                spins = 1;
            }
            CHECK(got.number == turn.number);
            turn.enough |= got.enough;
            if (turn.enough == 3 && got.enough == 3) return;
        }
        if (turn.enough == 3 && first == (turn.number % 2 == 0)) return;
    }
}

}  // namespace

int main(int argc, char **argv) {
    const uint64_t sleeps = argc > 1 ? strtoull(argv[1], nullptr, 10) : 100'000;
    Ring::Arena arena;
    const End::Shared shared = End::make(arena, 4 * Ring::page_nbytes());
    End::pass_on(shared);
    const double begin = now_s();
    const pid_t child = fork();
    if (child == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
    End end(shared, child ? 0 : 1, 1000);
    talk(end, child != 0, sleeps / 2);
    if (child == 0) _exit(0);
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    printf("sleep: %llu of this side, woken by %llu bytes of the other's, %.1f s\n", (unsigned long long)end.sleeps,
           (unsigned long long)end.bytes_written, now_s() - begin);
}
