// SPDX-License-Identifier: BSD-3-Clause
// A link joins two workers, for all connections between them; it also detects the end of the other worker. Its carrier
// transports the messages.
#pragma once

#include <list>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "connection/carrier.hpp"
#include "connection/inflow.hpp"
#include "shared/fd_socket.hpp"

/// A user of a link, told of its end: a channel.
struct LinkUser {
    virtual ~LinkUser() = default;
    /// The other worker is gone.
    virtual void lose(const std::shared_ptr<const Fault> &why) noexcept = 0;
    /// The other worker has answered whether it could map memory that was handed over.
    virtual void resume() noexcept = 0;
    /// This side ends it, and tells the other side if `tell_peer`.
    virtual void abort(const char *error, const std::string &reason, bool tell_peer) noexcept = 0;
};

/// Owns the carrier, and the socket whose end of file shows the other worker's end.
struct Link : WatchedSocket {
    Worker *worker;
    std::string name;  // of the peer, for messages
    std::unique_ptr<Carrier> carrier;
    int fd = -1;                       // of the socket, which `socket` owns if set
    std::shared_ptr<FdSocket> socket;  // only for a process on this host
    bool lost = false;
    std::unordered_set<LinkUser *> users;

    Link(Worker *worker, std::string name) noexcept : worker(worker), name(std::move(name)) {}

    /// Connect to the other side. The link takes `descriptor`, a connected socket, unless this raises. `memory`, owned
    /// by the caller, is the other side's offer; -1: it arrives over `descriptor`.
    void join(nb::bytes address, int descriptor, int memory, bool same_host);
    /// Read the socket. False: the other side is gone.
    bool read_socket() noexcept;

    // The three signs of the other side's end: end of file on the socket, an error of the carrier, and this side's
    // own close.
    bool ready(uint32_t events) noexcept override;
    void peer_gone() noexcept override;
    /// Wait until `deadline_ns` for room for posted headers.
    void send_headers(int64_t deadline_ns) noexcept;
    /// Called by the carrier during progress: drain will end the link.
    void fail(const char *reason);
    /// Handle the loss of the other side: end every channel, close carrier and socket, and leave the worker's links.
    void lose(const std::string &reason) noexcept;
    void release() noexcept;
};

/// Owns the links of a worker and the channels over them.
struct Links {
    std::list<std::shared_ptr<Link>> all;
    std::unordered_map<uint64_t, std::shared_ptr<LinkUser>> channels;  // by their id on this side
    std::pair<uint64_t, LinkUser *> last;                              // cache of the last lookup
    std::shared_ptr<Inflow> inflow = std::make_shared<Inflow>();       // for links over the network

    /// The worker's links.
    static Links &of(Worker &worker);
    void close(int64_t deadline_ns) noexcept;
};

void define_link(nb::module_ &m);
