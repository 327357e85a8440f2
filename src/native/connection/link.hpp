// SPDX-License-Identifier: BSD-3-Clause
// A link: what joins two workers, for all connections between them; and where the end of the other worker is noticed.
// How messages get across is its carrier's affair.
#pragma once

#include <list>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "connection/carrier.hpp"
#include "connection/inflow.hpp"
#include "shared/fd_socket.hpp"

/// Something that uses a link and is told of its end: a channel.
struct LinkUser {
    virtual ~LinkUser() = default;
    /// The other worker is gone.
    virtual void lose(const std::shared_ptr<const Fault> &why) noexcept = 0;
    /// The other worker has said whether it could take memory that was handed over.
    virtual void resume() noexcept = 0;
    /// This side ends it, and says so to the other.
    virtual void abort(const char *error, const std::string &reason, bool tell_peer) noexcept = 0;
};

/// Owns the carrier, and the socket whose end-of-file tells of the other worker's end.
struct Link : WatchedSocket {
    Worker *worker;
    std::string name;  // of the peer, for people
    std::unique_ptr<Carrier> carrier;
    int fd = -1;                       // of the socket; `socket` owns it if there is one
    std::shared_ptr<FdSocket> socket;  // to a process on this host
    bool lost = false;
    std::unordered_set<LinkUser *> users;

    Link(Worker *worker, std::string name) noexcept : worker(worker), name(std::move(name)) {}

    /// Connect to the other side. `descriptor`, a connected socket, is the link's from here on, unless this raises.
    /// `memory`, the caller's, is what the other side offers; -1: it comes over `descriptor`.
    void join(nb::bytes address, int descriptor, int memory, bool same_host);
    /// Take what came over the socket. False: the other side is gone.
    bool read_socket() noexcept;

    // The three ways in which the other side's end is noticed: its socket's, an error of the carrier's, and this
    // side's.
    bool ready(uint32_t events) noexcept override;
    void peer_gone() noexcept override;
    /// Until `deadline_ns`, wait for room for the headers that were posted.
    void send_headers(int64_t deadline_ns) noexcept;
    /// From the carrier, in progress: drain will end the link.
    void fail(const char *reason);
    /// The other side is gone: end every channel, close carrier and socket, and leave the worker's links.
    void lose(const std::string &reason) noexcept;
    void release() noexcept;
};

/// Owns the links of a worker and the channels over them.
struct Links {
    std::list<std::shared_ptr<Link>> all;
    std::unordered_map<uint64_t, std::shared_ptr<LinkUser>> channels;  // by their id on this side
    std::pair<uint64_t, LinkUser *> last;                              // of these, the one found last
    std::shared_ptr<Inflow> inflow = std::make_shared<Inflow>();       // over the network

    /// The worker's.
    static Links &of(Worker &worker);
    void close(int64_t deadline_ns) noexcept;
};

void define_link(nb::module_ &m);
