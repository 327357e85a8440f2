// SPDX-License-Identifier: BSD-3-Clause
// Channels for Python: opened over a Link, used through weft.Peer.
#include "connection/carrier_ring.hpp"
#include "connection/channel.hpp"
#include "ucp/forks.hpp"
#include "ucp/lanes.hpp"

ChannelObject::~ChannelObject() {
    if (!channel || in_forked_child) return;
    nb::inst_ptr<Worker>(worker)->defer([core = std::move(channel)] {
        core->abort("ClosedError", "the connection was dropped without a close", true);
    });
}

namespace {

using Self = nb::pointer_and_handle<ChannelObject>;

Channel &usable(const Self &self, const char *op) {
    return ::usable(*self.p, op);
}

Channel &receiver(const Self &self, const char *op) {
    Channel &channel = usable(self, op);
    if (!channel.worker->deferred.empty()) channel.worker->drain();
    return channel;
}

}  // namespace

void define_channel(nb::module_ &m) {
    // A connection: ordered messages, with bounded queues on both sides.
    nb::class_<ChannelObject> channel(m, "Channel", nb::is_weak_referenceable());
    // These sizes decide how a message is sent before UCX or a ring sees it, and in a ring; weft.explain shows them.
    channel.attr("header_nbytes") = sizeof(Wire);
    channel.attr("rendezvous_nbytes") = rendezvous_nbytes;
    channel.attr("lend_nbytes") = Pool::page_threshold;
    channel.attr("stage_nbytes") = Channel::stage_nbytes;
    channel.attr("stage_limit_nbytes") = Channel::stage_limit;
    channel.attr("whole_nbytes") = RingCarrier::whole_nbytes;
    channel.attr("piece_nbytes") = Area::small_nbytes;
    channel.attr("large_piece_nbytes") = Area::large_nbytes;
    // Return how much of a message, its last bytes, goes through a ring's small pieces on this machine.
    channel.def_static("last_small_nbytes", [] { return Area::most_through_small(); });
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
            "recv", [](Self self) { return receiver(self, "recv").recv(self.h.ptr()); },
            nb::sig("def recv(self) -> weft.typing.Request[typing.Any]"))
        .def(
            "recv_into",
            [](Self self, nb::handle buffer) { return receiver(self, "recv_into").recv_into(self.h.ptr(), buffer); },
            nb::arg("buffer"),
            nb::sig("def recv_into(self, buffer: typing_extensions.Buffer) -> weft.typing.Request[int]"))
        .def(
            "send_many",
            [](Self self, nb::handle buffers) { return usable(self, "send_many").send_many(self.h.ptr(), buffers); },
            nb::arg("buffers"),
            nb::sig("def send_many(self, buffers: collections.abc.Sequence[weft.typing.BufferLike]) -> "
                    "weft.typing.Request[None]"))
        .def(
            "recv_many",
            [](Self self, size_t count) { return receiver(self, "recv_many").recv_many(self.h.ptr(), count); },
            nb::arg("count"), nb::sig("def recv_many(self, count: int) -> weft.typing.Request[list[typing.Any]]"))
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
                    return core->worker->defer([core, reason] { core->abort("ClosedError", reason, true); });
                const std::shared_ptr<Link> link = core->link;
                core->abort("ClosedError", reason, true);
                // Without a loop, it may be long until this worker progresses, and the other side would not be told.
                if (!core->worker->loop.is_valid()) link->send_headers(now_ns() + 100'000'000);
                core->worker->drain();
            },
            nb::arg("reason") = "the connection was aborted by this side")
        // Whether this side has closed or aborted the connection.
        .def_prop_ro(
            "closed",
            [](ChannelObject &c) { return c.channel->closed || c.channel->closing || c.channel->worker->closed(); })
        // Whether the peer has closed the connection or is gone; there may be messages left to receive.
        .def_prop_ro("ended", [](ChannelObject &c) { return c.channel->ended || c.channel->lost; })
        // Whether the peer was lost without a goodbye, and an exception has reported it.
        .def_prop_ro("loss_raised",
                     [](ChannelObject &c) { return c.channel->lost && !c.channel->ended && c.channel->fault->raised; })
        // Send as `send`, then each of `placed` for the peer's `recv_placed`. Do not cancel any of them: places are
        // counted.
        .def(
            "send_placed",
            [](Self self, nb::handle first, nb::handle rest, bool lend, bool stage, nb::handle placed) {
                return usable(self, "send").send_placed(self.h.ptr(), first, rest, lend, stage, placed);
            },
            nb::arg("first"), nb::arg("rest"), nb::arg("lend"), nb::arg("stage"), nb::arg("placed"),
            nb::sig(
                "def send_placed(self, first: typing_extensions.Buffer, rest: list[typing_extensions.Buffer], lend: "
                "bool, stage: bool, placed: list[typing_extensions.Buffer]) -> list[weft.typing.Request[None]]"))
        // Receive the placed message number `place`, from 0, into `buffer`, which must have its exact size.
        .def(
            "recv_placed",
            [](Self self, uint64_t place, nb::handle buffer) {
                return usable(self, "recv").recv_placed(self.h.ptr(), place, buffer);
            },
            nb::arg("place"), nb::arg("buffer"),
            nb::sig("def recv_placed(self, place: int, buffer: typing_extensions.Buffer) -> weft.typing.Request[None]"))
        // Number of messages sent with `send_placed`.
        .def_prop_ro("next_place", [](ChannelObject &c) { return c.channel->next_place; })
        // The memory types of its worker's context.
        .def_prop_ro(
            "memory_types",
            [](ChannelObject &c) {
                nb::list names;
                for (int i = 0; i < UCS_MEMORY_TYPE_LAST; ++i)
                    if (c.channel->link->carrier->memory_types >> i & 1) names.append(memory_type_name(i));
                return names;
            },
            nb::sig("def memory_types(self) -> list[str]"))
        .def_prop_ro("unread_nbytes", [](ChannelObject &c) { return c.channel->unread_nbytes; })
        .def_prop_ro("lent_sent_nbytes", [](ChannelObject &c) { return c.channel->lent_sent_nbytes; })
        .def_prop_ro("lent_received_nbytes", [](ChannelObject &c) { return c.channel->lent_received_nbytes; })
        // Bytes that were announced and have arrived; the seconds from when they were asked for until they were here;
        // and the integral over these seconds of how many connections of this worker received over the network.
        .def_prop_ro(
            "landed",
            [](ChannelObject &c) {
                const Landed &landed = c.channel->landed_here;
                return nb::make_tuple(landed.nbytes, landed.busy_ns * 1e-9, landed.flow_ns * 1e-9);
            },
            nb::sig("def landed(self) -> tuple[int, float, float]"))
        .def_prop_ro(
            "transports", [](ChannelObject &c) { return c.channel->link->carrier->transports(); },
            nb::sig("def transports(self) -> list[str]"))
        .def("print_info", [](Self self) { return usable(self, "print_info").link->carrier->print_info(); })
        .def(
            "evaluate_perf",
            [](Self self, size_t nbytes) { return usable(self, "evaluate_perf").link->carrier->evaluate_perf(nbytes); },
            nb::arg("nbytes"), nb::sig("def evaluate_perf(self, nbytes: int) -> float | None"))
        // The address of the ``ucp_ep_h`` that the link sends through; 0 once it is lost.
        .def_prop_ro("handle", [](ChannelObject &c) { return c.channel->link->carrier->handle(); });
}
