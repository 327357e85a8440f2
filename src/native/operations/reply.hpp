// SPDX-License-Identifier: BSD-3-Clause
// UCX's own endpoint to the sender of an active message, and how weft learns of its end.
//
// UCX destroys such an endpoint when its sender goes, and tells nobody: error handlers are for endpoints that a program
// made. Its memory is then another's, perhaps another endpoint's. But before that UCX ends what was posted to receive
// its stream (ucp_stream_ep_cleanup, 1.16 to 1.23): so a receive of one byte waits there, and every context has UCX's
// streams for it. UCX then makes at most 65,535 endpoints from one worker to another (ucp_ep_create_to_worker_addr).
// Where the program has streams of its own, that receive would take their first byte: a reply ends with its handler.
#pragma once

#include <memory>
#include <vector>

#include "progress/engine.hpp"

struct Reply {
    Engine *engine;
    ucp_ep_h handle;                       // null once UCX destroys it
    bool watched;                          // false: the program has streams
    char byte = 0;                         // of a stream that nobody sends
    std::vector<ucp_ep_h *> handles = {};  // of the endpoints that Python has of it

    /// Raise what keeps it from being used.
    [[noreturn]] void refuse(const char *op) const;
    /// From drain: what Python has of it leads nowhere any more.
    void end() noexcept;
};

/// From UCX, with a message of that sender.
std::shared_ptr<Reply> watch_reply(Engine *engine, ucp_ep_h handle);
