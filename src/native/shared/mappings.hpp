// SPDX-License-Identifier: BSD-3-Clause
// How many mappings lending takes of this process: one for each loan, and those into which blocks that are kept divide
// their segment's. The kernel allows a process 65,530 by default (vm.max_map_count); above that every mmap fails, the C
// library's and Python's, too. So beyond half of them, memory is copied.
#pragma once

#include <atomic>
#include <cstdio>

namespace Mappings {

inline std::atomic<long> taken{0};

inline std::atomic<long> &most() noexcept {
    static std::atomic<long> limit = [] {
        long found = 65530;
        if (FILE *file = std::fopen("/proc/sys/vm/max_map_count", "re")) {
            if (std::fscanf(file, "%ld", &found) != 1) found = 65530;
            std::fclose(file);
        }
        return found / 2;
    }();
    return limit;
}

inline bool may_take() noexcept {
    return taken < most();
}

}  // namespace Mappings
