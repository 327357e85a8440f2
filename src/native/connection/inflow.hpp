// SPDX-License-Identifier: BSD-3-Clause
// How long announced data takes from when it was asked for until it is here: what a link delivers, without the time
// before that, in which a message waits for its reader, or its sender for credit.
#pragma once

#include <cstddef>
#include <cstdint>

/// The network's links of one worker: how many of its connections receive at a time.
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

/// One connection's part: what has landed, and the time in which anything was on its way.
struct Landed {
    uint64_t nbytes = 0;
    int64_t busy_ns = 0;
    int64_t flow_ns = 0;  // of that time, the integral of the worker's flows; `busy_ns` if it is alone
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
    /// What is on its way will not be told of any more.
    void give_up(Inflow *inflow, int64_t now) noexcept {
        if (under_way) under_way = 1, end(inflow, now, 0);
    }
};
