// SPDX-License-Identifier: BSD-3-Clause
// Links and channels as Python sees them: made by weft.connect, used through weft.Peer.
#include <sys/epoll.h>

#include <cstring>

#include "connection/wire.hpp"
#include "shared/fd_socket.hpp"
#include "ucp/endpoint.hpp"

namespace {

/// What Python holds of a link; the worker owns it too.
struct LinkObject {
    nb::object worker;
    std::shared_ptr<Link> link;
};

void failed(void *argument, ucp_ep_h, ucs_status_t status) {
    auto *link = static_cast<Link *>(argument);
    if (link->lost) return;
    link->status = status;
    link->worker->failed_links.push_back(link);
}

nb::object prepare_link(nb::pointer_and_handle<Worker> self, bool same_host, const std::string &name) {
    Worker *w = self.p;
    w->check_owner("connect");
    auto link = std::make_shared<Link>();
    link->worker = w;
    link->name = name;
    if (!same_host) w->check_own("connect");
    link->engine = same_host ? std::make_shared<Engine>(w) : w->own;
    if (same_host) link->engine->link = link.get();
    Side::sweep();
    w->links.push_back(link);
    return nb::cast(LinkObject{nb::borrow(self.h), link});
}

void join_link(LinkObject &self, nb::bytes address, int fd) {
    Link &link = *self.link;
    Worker *w = link.worker;
    w->check_owner("connect");
    if (link.lost) raise("PeerLostError", "connect to " + link.name + ": the peer was lost", "connect");
    link.endpoint = create_endpoint(link.engine.get(), address, failed, &link);
    if (fd < 0) return;
    const bool same_host = link.engine != w->own;
    epoll_event event{};
    event.events = same_host ? EPOLLRDHUP | EPOLLIN : EPOLLRDHUP;
    event.data.ptr = &link;
    if (epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0)
        raise("NoMemoryError", "connect to " + link.name + ": epoll: " + strerror(errno), "connect");
    link.fd = fd;
    if (same_host)
        link.side = std::make_shared<Side>(fd, w->epoll_fd, &link);
    else
        close_in_child(fd);
}

nb::object open_channel(LinkObject &self, uint64_t local, uint64_t remote, const std::string &name) {
    auto *w = nb::inst_ptr<Worker>(self.worker);
    w->check_owner("connect");
    if (self.link->lost) raise("PeerLostError", "connect to " + name + ": the peer was lost", "connect");
    auto channel = std::make_shared<Channel>();
    channel->worker = w;
    channel->link = self.link;
    channel->local = local;
    channel->remote = remote;
    channel->name = name;
    self.link->channels.insert(channel.get());
    w->channels[local] = channel;
    return nb::cast(ChannelObject{self.worker, channel});
}

using Self = nb::pointer_and_handle<ChannelObject>;

Channel &usable(const Self &self, const char *op) {
    Channel &channel = *self.p->channel;
    if (channel.worker->closed()) [[unlikely]]
        raise("ClosedError", std::string(op) + " (" + channel.name + "): the worker is closed", op);
    channel.worker->check_owner(op);
    return channel;
}

}  // namespace

void define_channel(nb::module_ &m) {
    nb::class_<LinkObject>(m, "Link",
                           "The one endpoint between two workers, and the socket that tells of the other's end.")
        .def_prop_ro("address",
                     [](LinkObject &l) {
                         if (!l.link->engine) raise("PeerLostError", "the link was lost", "connect");
                         std::string address = l.link->engine->address();
                         return nb::bytes(address.data(), address.size());
                     })
        .def("join", &join_link, nb::arg("address"), nb::arg("fd"),
             "Connect to the other side's address. `fd` becomes the link's on success; -1 for none.")
        .def("open", &open_channel, nb::arg("local"), nb::arg("remote"), nb::arg("name"),
             nb::sig("def open(self, local: int, remote: int, name: str) -> Channel"))
        .def("close",
             [](LinkObject &l) {
                 Worker *w = l.link->worker;
                 if (w->closed() || in_forked_child) return;
                 l.link->lose("the handshake failed");
                 w->links.remove_if([](auto &link) { return link->lost; });
                 w->drain();
             })
        .def_prop_ro("lost", [](LinkObject &l) { return l.link->lost; })
        .def_prop_ro("handle", [](LinkObject &l) { return reinterpret_cast<uintptr_t>(l.link->endpoint); })
        .def("print_info", [](LinkObject &l) { return l.link->endpoint ? print_info(l.link->endpoint) : ""; })
        .def_prop_ro(
            "transports", [](LinkObject &l) { return l.link->endpoint ? transports(l.link->endpoint) : nb::list(); },
            nb::sig("def transports(self) -> list[str]"));
    m.def("prepare_link", &prepare_link, nb::arg("worker"), nb::arg("same_host"), nb::arg("name"),
          nb::sig("def prepare_link(worker: Worker, same_host: bool, name: str) -> Link"),
          "Make one side of a link; its `address` is for the other side's `join`.");

    nb::class_<ChannelObject> channel(m, "Channel", nb::is_weak_referenceable(),
                                      "A connection: ordered messages, bounded on both sides.");
    // What decides a message's way before UCX sees it; weft.explain tells.
    channel.attr("header_nbytes") = sizeof(Wire);
    channel.attr("rendezvous_nbytes") = Channel::rendezvous_nbytes;
    channel.attr("lend_nbytes") = Pool::page_threshold;
    channel
        .def(
            "send",
            [](Self self, nb::handle first, nb::handle rest, bool lend, bool stage) {
                return usable(self, "send").send(self.h.ptr(), first, rest, lend, stage);
            },
            nb::arg("first"), nb::arg("rest") = nb::none(), nb::arg("lend") = false, nb::arg("stage") = false,
            nb::sig("def send(self, first: weft.typing.BufferLike, rest: list[typing_extensions.Buffer] | None = "
                    "None, lend: bool = False, stage: bool = False) -> weft.typing.Request[None]"))
        .def(
            "lend", [](Self self, nb::handle buffer) { return usable(self, "lend").lend(self.h.ptr(), buffer); },
            nb::arg("buffer"), nb::sig("def lend(self, buffer: weft.typing.BufferLike) -> weft.typing.Request[None]"))
        .def(
            "recv",
            [](Self self) {
                Channel &channel = usable(self, "recv");
                if (!channel.worker->graveyard.empty()) channel.worker->drain();
                return channel.recv(self.h.ptr());
            },
            nb::sig("def recv(self) -> weft.typing.Request[typing.Any]"))
        .def(
            "close",
            [](Self self) {
                Channel &channel = usable(self, "close");
                nb::object request = channel.close(self.h.ptr());
                channel.worker->drain();
                return request;
            },
            nb::sig("def close(self) -> weft.typing.Request[None]"))
        .def(
            "abort",
            [](Self self, const std::string &reason) {
                auto core = self.p->channel;
                if (core->closed || core->worker->closed() || in_forked_child) return;
                // From another thread: the owner does it at its next turn.
                if (core->worker->owner != __builtin_thread_pointer())
                    return core->worker->bury([core, reason] { core->abort("ClosedError", reason, true); });
                core->abort("ClosedError", reason, true);
                core->worker->drain();
            },
            nb::arg("reason") = "the connection was aborted by this side")
        .def_prop_ro(
            "closed",
            [](ChannelObject &c) { return c.channel->closed || c.channel->closing || c.channel->worker->closed(); },
            "This side has closed or aborted it.")
        .def_prop_ro(
            "ended", [](ChannelObject &c) { return c.channel->ended || c.channel->lost; },
            "The other side has closed it or is gone; messages may be left to receive.")
        .def(
            "send_placed",
            [](Self self, nb::handle first, nb::handle rest, bool lend, bool stage, nb::handle placed) {
                return usable(self, "send").send_placed(self.h.ptr(), first, rest, lend, stage, placed);
            },
            nb::arg("first"), nb::arg("rest"), nb::arg("lend"), nb::arg("stage"), nb::arg("placed"),
            nb::sig(
                "def send_placed(self, first: typing_extensions.Buffer, rest: list[typing_extensions.Buffer], lend: "
                "bool, stage: bool, placed: list[typing_extensions.Buffer]) -> list[weft.typing.Request[None]]"),
            "As `send`, and after it each of `placed` for `recv_placed` of the other side. None may be cancelled: "
            "places are counted.")
        .def(
            "recv_placed",
            [](Self self, uint64_t place, nb::handle buffer) {
                return usable(self, "recv").recv_placed(self.h.ptr(), place, buffer);
            },
            nb::arg("place"), nb::arg("buffer"),
            nb::sig("def recv_placed(self, place: int, buffer: typing_extensions.Buffer) -> weft.typing.Request[None]"),
            "Receive what was sent as number `place`, from 0 on, into `buffer`, which has just its size.")
        .def_prop_ro(
            "next_place", [](ChannelObject &c) { return c.channel->next_place; },
            "How many messages were sent with `send_placed`.")
        .def_prop_ro(
            "memory_types",
            [](ChannelObject &c) {
                nb::list names;
                for (int i = 0; i < UCS_MEMORY_TYPE_LAST; ++i)
                    if (c.channel->worker->memory_types >> i & 1) names.append(memory_type_name(i));
                return names;
            },
            nb::sig("def memory_types(self) -> list[str]"), "As of its worker's context.")
        .def_prop_ro("unread_nbytes", [](ChannelObject &c) { return c.channel->unread_nbytes; })
        .def_prop_ro("lent_sent_nbytes", [](ChannelObject &c) { return c.channel->lent_sent_nbytes; })
        .def_prop_ro("lent_received_nbytes", [](ChannelObject &c) { return c.channel->lent_received_nbytes; })
        .def_prop_ro(
            "transports",
            [](ChannelObject &c) {
                auto &link = *c.channel->link;
                return link.endpoint ? transports(link.endpoint) : nb::list();
            },
            nb::sig("def transports(self) -> list[str]"))
        .def(
            "print_info",
            [](Self self) {
                auto &link = *usable(self, "print_info").link;
                return link.endpoint ? print_info(link.endpoint) : "";
            },
            print_info_doc)
        .def(
            "evaluate_perf",
            [](Self self, size_t nbytes) {
                auto &link = *usable(self, "evaluate_perf").link;
                return link.endpoint ? evaluate_perf(link.endpoint, nbytes) : nb::none();
            },
            nb::arg("nbytes"), nb::sig("def evaluate_perf(self, nbytes: int) -> float | None"), evaluate_perf_doc)
        .def_prop_ro(
            "handle", [](ChannelObject &c) { return reinterpret_cast<uintptr_t>(c.channel->link->endpoint); },
            "The address of the ``ucp_ep_h`` that its link sends through; 0 once that is lost.");
}
