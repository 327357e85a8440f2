// SPDX-License-Identifier: BSD-3-Clause
// How the death of the other worker is detected, and what ends with it: every request of the link's connections, its
// carrier and its socket. The socket's end comes first; an error of the carrier (UCX's error handler) may follow.
#include <sys/epoll.h>
#include <unistd.h>

#include "connection/link.hpp"
#include "ucp/forks.hpp"

namespace {

struct LinkFailure : Arrival {
    std::shared_ptr<WatchedSocket> link;
    std::string reason;
    LinkFailure(std::shared_ptr<WatchedSocket> failed, const char *why) : link(std::move(failed)), reason(why) {}
    void deliver(Worker &, std::unique_ptr<Arrival> &) override { static_cast<Link &>(*link).lose(reason); }
};

}  // namespace

bool Link::ready(uint32_t events) noexcept {
    carrier->attend();
    return (!socket || read_socket()) && !(events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR));
}

void Link::peer_gone() noexcept {
    lose("the peer's process has ended or dropped the connection");
}

// UCX detects only some of these: none of a process on this host (docs/design.md).
void Link::fail(const char *reason) {
    if (!lost) worker->arrivals.push_front(std::make_unique<LinkFailure>(shared_from_this(), reason));
}

void Link::lose(const std::string &reason) noexcept {
    if (lost) return;
    lost = true;
    auto why = std::make_shared<const Fault>(Fault{"PeerLostError", reason});
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
