// SPDX-License-Identifier: BSD-3-Clause
// A writer in another process is killed again and again, at random moments; the reader must have seen whole messages
// only, in order, every byte, and all that were published.
//     kill [KILLS]
#include <sys/prctl.h>
#include <sys/wait.h>

#include <csignal>

#include "common.hpp"

namespace {

/// What a writer says of itself beside the ring.
struct Said {
    std::atomic<uint64_t> begun, published;
};

void write_for_ever(Ring::Writer &writer, Said &said, const Messages &messages, uint64_t seed) {
    Random random(seed);
    for (uint64_t number = 0;;) {
        for (uint64_t batch = 1 + random.below(3); batch; --batch, ++number) {
            uint64_t told = number;
            const std::vector<std::byte> &rest = messages.of(number);
            iovec parts[2] = {{&told, 8}, {const_cast<std::byte *>(rest.data()), rest.size()}};
            said.begun.store(number + 1, std::memory_order_relaxed);
            for (;;) {
                Ring::Gather from{parts, 2};
                if (writer.append(Ring::Kind::message, from, messages.nbytes(number))) break;
                writer.publish();
                said.published.store(number, std::memory_order_relaxed);
                if (!writer.want(messages.nbytes(number))) relax();
            }
        }
        writer.publish();
        said.published.store(number, std::memory_order_relaxed);
    }
}

}  // namespace

int main(int argc, char **argv) {
    const uint64_t kills = argc > 1 ? strtoull(argv[1], nullptr, 10) : 300;
    const Messages messages(3000);
    Ring::Arena arena;
    CHECK(arena.open() == 0);
    Random random(5);
    uint64_t half_done = 0, read = 0;
    for (uint64_t kill_number = 0; kill_number < kills; ++kill_number) {
        Ring::Pages pages, beside;
        CHECK(arena.carve((kill_number % 2 ? 4 : 16) * Ring::page_nbytes(), pages) == 0);
        CHECK(arena.carve(Ring::page_nbytes(), beside) == 0);
        for (const Ring::Pages &p : {pages, beside}) CHECK(madvise(p.data, p.nbytes, MADV_DOFORK) == 0);
        auto &said = *static_cast<Said *>(beside.data);
        const pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            Ring::Writer writer(pages.data, pages.nbytes);
            write_for_ever(writer, said, messages, kill_number);
        }
        Ring::Reader reader(pages.data, pages.nbytes);
        Ring::Record record;
        uint64_t number = 0;
        auto take = [&] {
            if (!reader.peek(record)) {
                reader.release();
                return false;
            }
            CHECK(record.kind == Ring::Kind::message && record.nbytes == messages.nbytes(number));
            CHECK(messages.holds(number, 0, record));
            ++number;
            reader.consume();
            reader.release();
            return true;
        };
        const double until = now_s() + double(random.below(1000)) * 1e-6;
        bool started = false;
        for (const double late = now_s() + 5; !started || now_s() < until;) {
            started |= take();
            CHECK(started || now_s() < late);
        }
        CHECK(kill(child, SIGKILL) == 0);
        int status = -1;
        CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
        while (take()) {
        }
        CHECK(reader.fault() == Ring::Fault::none);
        CHECK(number >= said.published.load() && number <= said.begun.load());
        half_done += number < said.begun.load();
        read += number;
        arena.free(pages);
        arena.free(beside);
    }
    printf("kill: %llu kills, %llu of them with something begun and not published, %llu messages read\n",
           (unsigned long long)kills, (unsigned long long)half_done, (unsigned long long)read);
    CHECK(half_done > 0 || kills < 50);
}
