// SPDX-License-Identifier: BSD-3-Clause
// UCX's own endpoint to the sender of an active message, and how weft detects its end.
//
// UCX destroys such an endpoint silently when its sender goes, because error handlers exist only for a program's own
// endpoints; its memory is then reused, perhaps for another endpoint. But first, UCX ends the receives posted on its
// stream (ucp_stream_ep_cleanup, 1.16 to 1.23). So weft posts a one-byte receive there, and every context has the
// stream feature; UCX then makes at most 65,535 endpoints from one worker to another (ucp_ep_create_to_worker_addr). If
// the program uses streams, that receive would take their first byte: there, a reply ends with its handler.
#pragma once

#include <memory>
#include <vector>

#include "progress/engine.hpp"

struct Reply {
    Engine *engine;
    ucp_ep_h handle;                       // null once UCX has destroyed it
    bool watched;                          // false: the program uses streams
    char byte = 0;                         // of a stream that the peer never sends
    std::vector<ucp_ep_h *> handles = {};  // of Python's endpoint objects for it

    /// Raise the reason why it cannot be used.
    [[noreturn]] void refuse(const char *op) const;
    /// Called by drain: invalidate Python's endpoints.
    void end() noexcept;
};

/// Called for a message from UCX with a reply endpoint.
std::shared_ptr<Reply> watch_reply(Engine *engine, ucp_ep_h handle);
