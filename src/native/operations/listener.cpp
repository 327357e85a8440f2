// SPDX-License-Identifier: BSD-3-Clause
#include "operations/listener.hpp"

#include <arpa/inet.h>
#include <netdb.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "ucp/forks.hpp"

void Listening::close() noexcept {
    if (closed) return;
    closed = true;
    for (ucp_conn_request_h each : arrived) ucp.listener_reject(handle, each);
    arrived.clear();
    auto why = std::make_shared<const Fault>("ClosedError", "the listener was closed");
    auto left = std::move(waiters);
    waiters.clear();
    for (Request *r : left) r->fault = why, r->end(UCS_ERR_CANCELED);
}

SockaddrListener::~SockaddrListener() {
    if (!listening || in_forked_child || worker->closed()) return;
    worker->defer([l = listening] { l->close(); });
}

namespace {

/// Resolve "host:port" or ":port". The port must be a number; getaddrinfo takes one above 65535 modulo 65536.
///
/// IPv4 only: when UCX 1.22 accepts an IPv6 connection, it writes the peer's address beyond the end of a tcp endpoint
/// whose device was opened for IPv4 (uct_tcp_ep_set_dest_addr), as the loopback is.
sockaddr_in resolve(const std::string &address, bool listens, const char *op) {
    const size_t colon = address.rfind(':');
    if (colon == std::string::npos)
        raise("InvalidParamError", std::string(op) + ": " + address + " has no port; pass host:port", op);
    const std::string host = address.substr(0, colon), port = address.substr(colon + 1);
    const bool is_number = !port.empty() && port.find_first_not_of("0123456789") == std::string::npos;
    if (!is_number || port.size() > 5 || std::stoul(port) > UINT16_MAX)
        raise("InvalidParamError",
              std::string(op) + ": " + address + ": " + port + " is not a port between 0 and 65535", op);
    if (host.find(':') != std::string::npos)
        raise("UnsupportedError",
              std::string(op) + " at " + address + ": UCX's listener crashes with IPv6; use an IPv4 address", op);
    addrinfo hints{}, *found = nullptr;
    hints.ai_family = AF_INET;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV | (listens ? AI_PASSIVE : 0);
    int status;
    {
        nb::gil_scoped_release release;
        status = getaddrinfo(host.empty() ? nullptr : host.c_str(), port.c_str(), &hints, &found);
    }
    if (status != 0)
        raise(listens ? "AddressError" : "UnreachableError",
              std::string(op) + ": " + address + ": " + gai_strerror(status), op);
    sockaddr_in in;
    std::memcpy(&in, found->ai_addr, sizeof in);
    freeaddrinfo(found);
    return in;
}

// Called by UCX for a new connection.
void connection_arrived(ucp_conn_request_h connection, void *argument) {
    auto *listening = static_cast<Listening *>(argument);
    if (listening->closed) {
        ucp.listener_reject(listening->handle, connection);
    } else if (listening->waiters.empty()) {
        listening->arrived.push_back(connection);
    } else {
        Request *r = listening->waiters.front();
        listening->waiters.pop_front();
        r->word = reinterpret_cast<uint64_t>(connection);
        r->end(UCS_OK);
    }
}

/// Why this process cannot listen there, which UCX does not tell; 0: it can, or that is not known.
int bind_error(const sockaddr_in &in) noexcept {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return 0;
    const int error = bind(fd, reinterpret_cast<const sockaddr *>(&in), sizeof in) == 0 ? 0 : errno;
    close(fd);
    return error;
}

nb::object listen_at(WorkerSelf self, const std::string &address) {
    Worker *w = usable(self, "listen_sockaddr");
    sockaddr_in in = resolve(address, true, "listen_sockaddr");
    auto listening = std::make_shared<Listening>();
    ucp_listener_params_t params{};
    params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
    params.sockaddr = {reinterpret_cast<sockaddr *>(&in), sizeof in};
    params.conn_handler = {connection_arrived, listening.get()};
    const ucs_status_t status = ucp.listener_create(w->own->handle, &params, &listening->handle);
    if (int error = status == UCS_OK ? 0 : bind_error(in))
        raise("AddressError",
              "listen_sockaddr on " + address + ": " + strerror(error) +
                  "; pass an address of this host, or none for all, and a free port, or 0 for any",
              "listen_sockaddr");
    check(status, "listen_sockaddr", " on " + address);
    w->add_dependent(listeners_stand, listening, [](void *each, int64_t) noexcept {
        static_cast<Listening *>(each)->close();
        ucp.listener_destroy(static_cast<Listening *>(each)->handle);
    });
    nb::object object = nb::inst_alloc(nb::type<SockaddrListener>());
    new (nb::inst_ptr<SockaddrListener>(object)) SockaddrListener{nb::borrow(self.h), w, listening};
    nb::inst_mark_ready(object);
    return object;
}

/// The listener's state, if this thread may use it and it is open.
Listening *usable_listener(const SockaddrListener &listener, const char *op) {
    usable(WorkerSelf{listener.worker, listener.worker_object}, op);
    if (listener.listening->closed) raise("ClosedError", std::string(op) + ": the listener is closed", op);
    return listener.listening.get();
}

std::string listener_address(const SockaddrListener &listener) {
    ucp_listener_attr_t attributes{};
    attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
    check(ucp.listener_query(usable_listener(listener, "address")->handle, &attributes), "address");
    auto *in = reinterpret_cast<const sockaddr_in *>(&attributes.sockaddr);
    char host[INET_ADDRSTRLEN];
    inet_ntop(AF_INET, &in->sin_addr, host, sizeof host);
    return std::string(host) + ":" + std::to_string(ntohs(in->sin_port));
}

/// The accepted endpoint. UCX consumes the connection even if it fails to make one: the request has then failed.
PyObject *accepted(Request &r) {
    auto *listener = nb::inst_ptr<SockaddrListener>(r.owner);
    listener->worker->check_owner("accept");
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
    params.conn_request = reinterpret_cast<ucp_conn_request_h>(std::exchange(r.word, 0));
    return Endpoint::create(listener->worker_object, params, &r.status).release().ptr();
}

bool withdraw_accept(Request &r) noexcept {
    return std::erase(nb::inst_ptr<SockaddrListener>(r.owner)->listening->waiters, &r) != 0;
}

/// Return a connection without an endpoint to the front of the queue. Any thread may drop the request.
void drop_accept(Request &r) noexcept {
    if (!r.word) return;
    std::shared_ptr<Listening> listening = nb::inst_ptr<SockaddrListener>(r.owner)->listening;
    auto connection = reinterpret_cast<ucp_conn_request_h>(std::exchange(r.word, 0));
    if (r.worker->closed()) return;
    r.worker->defer([listening, w = r.worker, connection] {
        if (w->closed()) return;
        if (!listening->closed && listening->waiters.empty()) return listening->arrived.push_front(connection);
        connection_arrived(connection, listening.get());
    });
}

constexpr Operation accept_operation{.result = accepted,
                                     .withdraw = withdraw_accept,
                                     .drop = drop_accept,
                                     .refused = ": the connector has disconnected"};

// The endpoint is made when the result is read; if it never is, the connection goes back when the request is dropped.
nb::object accept_next(nb::pointer_and_handle<SockaddrListener> self) {
    Listening *listening = usable_listener(*self.p, "accept");
    self.p->worker->drain();  // a dropped request may have returned a connection
    Request *r;
    nb::object request = make_request(self.p->worker, self.h.ptr(), "accept", 0, &r);
    r->operation = &accept_operation;
    if (listening->arrived.empty()) {
        r->hold();
        listening->waiters.push_back(r);
        return request;
    }
    r->word = reinterpret_cast<uint64_t>(listening->arrived.front());
    listening->arrived.pop_front();
    r->complete_now(UCS_OK);
    return request;
}

void close_listener(SockaddrListener &listener) {
    if (listener.listening->closed) return;
    listener.worker->check_owner("close");
    listener.listening->close();
    listener.worker->drain();
}

nb::object connect_to(WorkerSelf self, const std::string &address) {
    usable(self, "connect_sockaddr");
    sockaddr_in in = resolve(address, false, "connect_sockaddr");
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
    params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
    params.sockaddr = {reinterpret_cast<sockaddr *>(&in), sizeof in};
    ucs_status_t status;
    nb::object endpoint = Endpoint::create(self.h, params, &status);
    check(status, "connect_sockaddr", " to " + address);
    return endpoint;
}

PyType_Slot listener_slots[] = {
    {Py_tp_traverse, reinterpret_cast<void *>(traverse<SockaddrListener, &SockaddrListener::worker_object>)},
    {0, nullptr}};

constexpr const char *listen_doc =
    R"(Listen for programs that connect with UCX alone, such as weft's :meth:`connect_sockaddr`.

Parameters
----------
address : str
    ``"host:port"``, or ``":port"`` for all devices. Port 0 chooses a free port. IPv4 only.

Returns
-------
SockaddrListener

Raises
------
AddressError
    The host is unknown or another one, the port is in use, or this process may not use it.
InvalidParamError
    There is no port, or it is not a number up to 65535.
UnsupportedError
    The address is IPv6, with which UCX's own listener crashes.

Connections are not authenticated: every program that reaches the port is connected. :func:`weft.listen`
authenticates user and host.
Source: ``ucp_listener_create``.)";

constexpr const char *connect_doc = R"(Make an endpoint to a UCX listener.

Parameters
----------
address : str
    ``"host:port"``. IPv4 only.

Returns
-------
Endpoint
    It connects while the worker progresses; messages wait until it is connected.

Raises
------
InvalidParamError
    There is no port, or it is not a number up to 65535.
UnsupportedError
    The address is IPv6, with which UCX's own listener crashes.
UnreachableError, PeerLostError
    The host is unknown. From the first operation: no program listens there, or it has stopped.

Source: ``ucp_ep_create`` with ``UCP_EP_PARAMS_FLAGS_CLIENT_SERVER``.)";

constexpr const char *accept_doc = R"(Accept the next connection.

Returns
-------
Request
    Its result is an :class:`Endpoint`.

Raises
------
ClosedError
    The listener is closed, or was closed meanwhile (from the request).

Cancelling withdraws the accept; the connection stays for the next one.
Source: ``ucp_ep_create`` with ``conn_request``.)";

}  // namespace

void define_listener(nb::module_ &m, nb::class_<Worker> &worker) {
    nb::class_<SockaddrListener>(
        m, "SockaddrListener", nb::type_slots(listener_slots), nb::is_weak_referenceable(),
        "Accepts connections from programs that use UCX. Made by :meth:`Worker.listen_sockaddr`.")
        .def_prop_ro("address", &listener_address,
                     "The address that it listens at, ``host:port``. Source: ``ucp_listener_query``.")
        .def("accept", &accept_next, nb::sig("def accept(self) -> weft.typing.Request[Endpoint]"), accept_doc)
        .def("close", &close_listener,
             "Reject connections not yet accepted and all later ones; the port is freed with the worker. Idempotent. "
             "Source: "
             "``ucp_listener_reject``.");
    worker
        .def("listen_sockaddr", &listen_at, nb::arg("address"),
             nb::sig("def listen_sockaddr(self, address: str) -> SockaddrListener"), listen_doc)
        .def("connect_sockaddr", &connect_to, nb::arg("address"),
             nb::sig("def connect_sockaddr(self, address: str) -> Endpoint"), connect_doc);
}
