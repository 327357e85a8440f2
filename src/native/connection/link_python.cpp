// SPDX-License-Identifier: BSD-3-Clause
// Links for Python: the handshake of weft.connect makes them.
#include <cstring>

#include "connection/carrier_ring.hpp"
#include "connection/carrier_ucx.hpp"
#include "connection/channel.hpp"
#include "ucp/forks.hpp"

namespace {

/// Python's handle of a link; the worker also owns the link.
struct LinkObject {
    nb::object worker;
    std::shared_ptr<Link> link;
    bool same_host;
};

nb::object prepare_link(nb::pointer_and_handle<Worker> self, bool same_host, const std::string &name) {
    Worker *w = self.p;
    w->check_owner("connect");
    if (!same_host) w->check_own("connect");
    auto link = std::make_shared<Link>(w, name);
    link->carrier = w->context.is_none() ? make_ring_carrier(link.get()) : make_ucx_carrier(link.get(), same_host);
    FdSocket::sweep();
    Links::of(*w).all.push_back(link);
    return nb::cast(LinkObject{nb::borrow(self.h), link, same_host});
}

void offer_link(LinkObject &self, int fd) {
    self.link->worker->check_owner("connect");
    if (self.link->lost) raise("PeerLostError", "connect to " + self.link->name + ": the peer was lost", "connect");
    self.link->carrier->offer(fd);
}

/// The system error that keeps this process from using rings; empty: it can.
std::string ring_error() {
    static bool able = false;  // where no link keeps the arena, each look makes one
    int error = 0;
    able = able || SharedArena::of_process(error);
    return able ? "" : strerror(error);
}

void join_link(LinkObject &self, nb::bytes address, int fd, int memory) {
    self.link->worker->check_owner("connect");
    self.link->join(std::move(address), fd, memory, self.same_host);
    self.link->worker->schedule_turn();  // data may have arrived already
}

nb::object open_channel(LinkObject &self, uint64_t local, uint64_t remote, const std::string &name) {
    auto *w = nb::inst_ptr<Worker>(self.worker);
    w->check_owner("connect");
    if (self.link->lost) raise("PeerLostError", "connect to " + name + ": the peer was lost", "connect");
    if (Links::of(*w).channels.contains(local))
        raise("HandshakeError", "connect to " + name + ": the connection id is already in use", "connect");
    auto channel = std::make_shared<Channel>(w, self.link, local, remote, name);
    Links::of(*w).channels[local] = channel;
    return nb::cast(ChannelObject{self.worker, channel});
}

void close_link(LinkObject &self) {
    Worker *w = self.link->worker;
    if (w->closed() || in_forked_child) return;
    self.link->lose("the handshake failed");
    w->drain();
}

}  // namespace

void define_link(nb::module_ &m) {
    // A link between two workers: the carrier of their messages, and the socket that reports the peer's end.
    nb::class_<LinkObject>(m, "Link")
        .def_prop_ro("address",
                     [](LinkObject &l) {
                         std::string address = l.link->carrier->address();
                         return nb::bytes(address.data(), address.size());
                     })
        // Send the descriptors that belong to the address over the socket `fd`, before the peer gets the address.
        .def("offer", &offer_link, nb::arg("fd"))
        // The descriptor that `offer` sends, owned by the link; -1: none.
        .def_prop_ro("memory", [](LinkObject &l) { return l.link->carrier->memory(); })
        // Connect to the peer's address. On success the link owns `fd`; -1: no socket. `memory`, owned by the caller,
        // is what the peer offers; -1 if it comes over `fd`.
        .def("join", &join_link, nb::arg("address"), nb::arg("fd"), nb::arg("memory") = -1)
        .def("open", &open_channel, nb::arg("local"), nb::arg("remote"), nb::arg("name"),
             nb::sig("def open(self, local: int, remote: int, name: str) -> Channel"))
        .def("close", &close_link)
        .def_prop_ro("lost", [](LinkObject &l) { return l.link->lost; })
        .def_prop_ro("handle", [](LinkObject &l) { return l.link->carrier->handle(); })
        .def("print_info", [](LinkObject &l) { return l.link->carrier->print_info(); })
        .def_prop_ro(
            "transports", [](LinkObject &l) { return l.link->carrier->transports(); },
            nb::sig("def transports(self) -> list[str]"));
    // Return the system error that keeps this process from using rings; empty: it can use them.
    m.def("ring_error", &ring_error);
    // Make one side of a link; its `address` goes to the peer's `join`.
    m.def("prepare_link", &prepare_link, nb::arg("worker"), nb::arg("same_host"), nb::arg("name"),
          nb::sig("def prepare_link(worker: Worker, same_host: bool, name: str) -> Link"));
}
