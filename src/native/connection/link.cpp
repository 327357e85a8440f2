// SPDX-License-Identifier: BSD-3-Clause
// Links between two workers, and all links of a worker. peer_loss.cpp handles the loss of a peer.
#include "connection/link.hpp"

#include <sys/epoll.h>

#include <cstring>

#include "ucp/forks.hpp"

void Link::join(nb::bytes address, int descriptor, int memory, bool same_host) {
    if (lost) raise("PeerLostError", "connect to " + name + ": the peer was lost", "connect");
    carrier->join(address, descriptor, memory);
    if (descriptor < 0) return;
    epoll_event event{};
    event.events = same_host ? EPOLLRDHUP | EPOLLIN : EPOLLRDHUP;
    event.data.ptr = static_cast<WatchedSocket *>(this);
    if (epoll_ctl(worker->epoll_fd, EPOLL_CTL_ADD, descriptor, &event) != 0)
        raise("NoMemoryError", "connect to " + name + ": epoll: " + strerror(errno), "connect");
    fd = descriptor;
    if (same_host)
        socket = std::make_shared<FdSocket>(fd, worker->epoll_fd, static_cast<WatchedSocket *>(this));
    else
        close_in_child(fd);
}

bool Link::read_socket() noexcept {
    const bool there = socket->read();
    if (socket->answered())
        for (LinkUser *user : std::unordered_set<LinkUser *>(users)) user->resume();
    return there;
}

void Link::send_headers(int64_t deadline_ns) noexcept {
    while (carrier->has_headers_left() && now_ns() < deadline_ns) worker->progress();
}

Links &Links::of(Worker &worker) {
    if (!worker.links) {
        worker.links = std::make_shared<Links>();
        worker.add_dependent(links_stand, worker.links, [](void *links, int64_t deadline_ns) noexcept {
            static_cast<Links *>(links)->close(deadline_ns);
        });
    }
    return *worker.links;
}

// In an order that lets the other sides know.
void Links::close(int64_t deadline_ns) noexcept {
    for (auto &[id, channel] : std::unordered_map(channels))
        channel->abort("ClosedError", "the worker was closed", true);
    for (auto &link : all) link->carrier->flush(deadline_ns);
    for (auto &link : all) link->lost = true, link->release();
    all.clear();
}
