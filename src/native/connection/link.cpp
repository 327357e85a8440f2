// SPDX-License-Identifier: BSD-3-Clause
#include "connection/link.hpp"

#include <sys/epoll.h>
#include <unistd.h>

#include <cstring>

#include "ucp/forks.hpp"

namespace {

struct LinkFailure : Arrival {
    std::shared_ptr<WatchedSocket> link;
    std::string reason;
    LinkFailure(std::shared_ptr<WatchedSocket> failed, const char *why) : link(std::move(failed)), reason(why) {}
    void deliver(Worker &, std::unique_ptr<Arrival> &) override { static_cast<Link &>(*link).lose(reason); }
};

}  // namespace

void Link::join(nb::bytes address, int descriptor, bool same_host) {
    if (lost) raise("PeerLostError", "connect to " + name + ": the peer was lost", "connect");
    carrier->join(address);
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

bool Link::ready(uint32_t events) noexcept {
    return (!socket || read_socket()) && !(events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR));
}

void Link::peer_gone() noexcept {
    lose("the peer's process has ended, or cut the connection");
}

// UCX notices only some of the ends: of a process on this host, none (docs/design.md).
void Link::fail(const char *reason) {
    if (!lost) worker->arrivals.push_front(std::make_unique<LinkFailure>(shared_from_this(), reason));
}

void Link::lose(const std::string &reason) noexcept {
    if (lost) return;
    lost = true;
    auto why = std::make_shared<const Fault>(Fault{"PeerLostError", name + ": " + reason});
    for (LinkUser *user : std::unordered_set<LinkUser *>(users)) user->lose(why);
    release();
    const std::shared_ptr<WatchedSocket> self = shared_from_this();
    Links::of(*worker).all.remove_if([this](auto &link) { return link.get() == this; });
}

void Link::release() noexcept {
    if (fd >= 0) {
        epoll_ctl(worker->epoll_fd, EPOLL_CTL_DEL, fd, nullptr);
        if (socket) {
            socket->retire();
            socket.reset();
        } else {
            keep_in_child(fd);
            ::close(fd);
        }
        fd = -1;
    }
    carrier->close();
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

// In the order that lets the other sides know.
void Links::close(int64_t deadline_ns) noexcept {
    for (auto &[id, channel] : std::unordered_map(channels))
        channel->abort("ClosedError", "the worker was closed", true);
    for (auto &link : all) link->carrier->flush(deadline_ns);
    for (auto &link : all) link->lost = true, link->release();
    all.clear();
}
