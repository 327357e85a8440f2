// SPDX-License-Identifier: BSD-3-Clause
#include "shared/host_budget.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <utility>

namespace {

// They may keep an eighth more than they had in use at once. Otherwise blocks of 8 MiB that come and go within
// milliseconds took four times as many new pages, and the job a tenth longer (docs/design.md).
constexpr size_t slack_part = 8;
// With many workers, reading all entries costs a cache miss for each.
constexpr int64_t reading_lasts_ns = 1'000'000;
// A worker writes at least as often as it looks at its memory, every 0.1 s; one that stopped has died, or holds
// Python's lock.
constexpr uint64_t entry_lasts_ns = 5'000'000'000;

// Not what was never written, nor a time to come.
bool is_recent(int64_t at_ns, int64_t now_ns, uint64_t lasts_ns) noexcept {
    return uint64_t(now_ns) - uint64_t(at_ns) <= lasts_ns;
}

}  // namespace

struct HostBudget::File {
    // A process writes only its own entry; each is on a cache line of its own.
    struct alignas(64) Entry {
        std::atomic<uint64_t> used, wish;
        std::atomic<int64_t> at_ns;
        std::atomic<uint64_t> low_water;
    };
    // The most that all had in use at once, since `began_ns` and in the hold before it.
    struct alignas(64) Peak {
        std::atomic<int64_t> began_ns;
        std::atomic<uint64_t> most, most_before;
    };
    Peak peak;
    Entry entries[most_processes];

    static void clear(Entry &entry) noexcept { entry.used = entry.wish = entry.low_water = 0; }

    size_t note(size_t total, int64_t now_ns, int64_t hold_ns) noexcept {
        int64_t began = peak.began_ns;
        if (!is_recent(began, now_ns, uint64_t(hold_ns)) && peak.began_ns.compare_exchange_strong(began, now_ns)) {
            peak.most_before = is_recent(began, now_ns, 2 * uint64_t(hold_ns)) ? peak.most.load() : total;
            peak.most = total;
        }
        uint64_t most = peak.most;
        while (most < total && !peak.most.compare_exchange_weak(most, total)) {
        }
        return std::max<size_t>({total, most, peak.most_before});
    }
};

bool HostBudget::join(int fd) noexcept {
    static_assert(sizeof(File) == nbytes);
    leave();
    // With pages of its own, a write to the mapping cannot fail for want of memory.
    if (posix_fallocate(fd, 0, nbytes) != 0) return false;
    locked = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (locked < 0) return false;
    struct flock lock{};
    lock.l_type = F_WRLCK;
    lock.l_len = 1;
    for (entry = 0; entry < most_processes; ++entry) {
        lock.l_start = off_t(entry);
        if (fcntl(locked, F_OFD_SETLK, &lock) == 0) break;
    }
    void *at =
        entry == most_processes ? MAP_FAILED : mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, locked, 0);
    if (at == MAP_FAILED) {
        close(std::exchange(locked, -1));
        return false;
    }
    file = static_cast<File *>(at);
    File::clear(file->entries[entry]);
    return true;
}

void HostBudget::leave() noexcept {
    if (!file) return;
    File::clear(file->entries[entry]);
    munmap(std::exchange(file, nullptr), nbytes);
    close(std::exchange(locked, -1));
}

size_t HostBudget::share(size_t used, size_t wish, size_t low_water, int64_t now_ns, int64_t hold_ns) noexcept {
    if (!file) return std::max(wish, low_water - std::min(low_water, used));
    File::Entry &own = file->entries[entry];
    own.used = used;
    own.wish = wish;
    own.low_water = low_water;
    own.at_ns = now_ns;
    if (now_ns - read_at_ns > reading_lasts_ns) {
        read_at_ns = now_ns;
        others = others_used = others_wish = others_low_water = 0;
        for (const File::Entry &other : file->entries) {
            if (&other == &own || !is_recent(other.at_ns, now_ns, entry_lasts_ns)) continue;
            others_used += other.used;
            others_wish += other.wish;
            others_low_water += other.low_water;
            ++others;
        }
    }
    const size_t total = used + others_used, wishes = wish + others_wish;
    const size_t most = file->note(total, now_ns, hold_ns), room = most - total + most / slack_part;
    const size_t kept = wishes <= room ? wish : size_t(double(wish) * (double(room) / double(wishes)));
    const size_t all = total + std::min(wishes, room), all_low_water = low_water + others_low_water;
    return kept + std::min(low_water, (all_low_water - std::min(all_low_water, all)) / (1 + others));
}
