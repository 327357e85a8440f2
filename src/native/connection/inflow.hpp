// SPDX-License-Identifier: BSD-3-Clause
// How long announced data takes from the request for it until its arrival: the speed of a link, without the time
// before, in which a message waits for its reader, or its sender for credit.
#pragma once

#include <cstddef>
#include <cstdint>

/// The network links of one worker: how many of its connections are receiving.
struct Inflow {
    unsigned flows = 0;
    int64_t flow_ns = 0;  // the integral of `flows` over time
    int64_t seen_ns = 0;

    void change(int by, int64_t now) noexcept {
        flow_ns += int64_t(flows) * (now - seen_ns);
        seen_ns = now;
        flows = unsigned(int(flows) + by);
    }
};

/// One connection's part: the bytes that have landed, and the time in which any were in flight.
struct Landed {
    uint64_t nbytes = 0;
    int64_t busy_ns = 0;
    int64_t flow_ns = 0;  // the integral of the worker's flows over that time; `busy_ns` if it is alone
    unsigned under_way = 0;
    int64_t since_ns = 0, flow_since_ns = 0;

    void begin(Inflow *inflow, int64_t now) noexcept {
        if (under_way++) return;
        since_ns = now;
        if (inflow) inflow->change(1, now), flow_since_ns = inflow->flow_ns;
    }
    void end(Inflow *inflow, int64_t now, size_t landed) noexcept {
        nbytes += landed;
        if (--under_way) return;
        busy_ns += now - since_ns;
        if (inflow) inflow->change(-1, now);
        flow_ns += inflow ? inflow->flow_ns - flow_since_ns : now - since_ns;
    }
    /// Stop counting the bytes in flight.
    void give_up(Inflow *inflow, int64_t now) noexcept {
        if (under_way) under_way = 1, end(inflow, now, 0);
    }
};
