// SPDX-License-Identifier: BSD-3-Clause
#include "progress/engine.hpp"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>

#include "progress/worker.hpp"
#include "ucp/forks.hpp"

namespace {

void closed_endpoint(void *request, ucs_status_t, void *user_data) {
    --static_cast<Engine *>(user_data)->closing_endpoints;
    ucp.request_free(request);
}

void flushed(void *request, ucs_status_t, void *user_data) {
    *static_cast<bool *>(user_data) = true;
    ucp.request_free(request);
}

void landed(void *request, ucs_status_t status, size_t, void *user_data) {
    auto *landing = static_cast<Landing *>(user_data);
    ucp.request_free(request);
    landing->engine->landings.erase(landing);
    landing->ended(landing->receiver, status);
}

void warn(const char *text) noexcept {
    try {
        nb::module_::import_("logging").attr("getLogger")("weft").attr("warning")(text);
    } catch (nb::python_error &e) {
        e.discard_as_unraisable("weft: a warning");
    }
}

}  // namespace

Engine::Engine(Worker *w) : context(w->context), worker(w) {
    check_shm("Worker", nb::inst_ptr<Context>(w->context)->shm_nbytes);
    check_descriptors("Worker");
    ucp_worker_params_t params{};
    params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    // Serialized: the last reference may be dropped by another thread, after the worker's own has ended. A UCX with
    // assertions (Debian's 1.23) aborts the process when another thread uses a single-threaded worker.
    params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
    ucs_status_t status = ucp.worker_create(nb::inst_ptr<Context>(w->context)->handle, &params, &handle);
    // UCX reports an input/output error when it gets no descriptor; no peer is involved.
    if (status == UCS_ERR_IO_ERROR) status = UCS_ERR_NO_RESOURCE;
    check(status, "Worker",
          status == UCS_ERR_INVALID_PARAM ? ": creating a UCX worker (do UCX's settings contradict each other?)"
          : status == UCS_ERR_NO_DEVICE   ? ": creating a UCX worker (is its network device down?)"
                                          : ": creating a UCX worker (is the limit of open files reached?)");
    epoll_event event{EPOLLIN, {.u64 = Worker::tag(this)}};
    status = ucp.worker_get_efd(handle, &event_fd);
    if (status == UCS_OK && epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, event_fd, &event) != 0) status = UCS_ERR_NO_RESOURCE;
    if (status != UCS_OK) {
        ucp.worker_destroy(handle);
        raise_status(status, "Worker", ": preparing a UCX worker");
    }
    w->polled.push_back(this);
    ++nb::inst_ptr<Context>(context)->engines;
}

Engine::~Engine() {
    if (in_forked_child) return;
    leave();
    destroy();
    --nb::inst_ptr<Context>(context)->engines;
    if (abandoned.empty() || !abandoned[0]->worker->closed()) return;
    // The data of a message has outlived the worker's close, so no other drain will run.
    Worker *w = abandoned[0]->worker;
    nb::object kept = nb::borrow(w->self);
    try {
        w->drain();
    } catch (nb::python_error &e) {
        e.discard_as_unraisable("weft: while a worker's last requests ended");
    }
}

// UCX ends most operations in flight through their callbacks.
void Engine::destroy() noexcept {
    for (Request *r : abandoned)
        if (r->operation->must_end) {
            nb::inst_ptr<Context>(context)->lasts = true;
            return warn(
                "an atomic operation is still pending, and UCX would abort the process if it were given up: the worker "
                "is "
                "closed, but its file descriptors and memory are not released");
        }
    ucp.worker_destroy(handle);
    for (Request *r : abandoned)
        if (!r->ended) r->ucx = nullptr, r->end(UCS_ERR_CANCELED);
    while (!landings.empty()) {
        Landing *landing = *landings.begin();
        landings.erase(landings.begin());
        landing->ended(landing->receiver, UCS_ERR_CANCELED);
    }
}

bool Engine::reports() const noexcept {
    pollfd descriptor{event_fd, POLLIN, 0};
    return poll(&descriptor, 1, 0) > 0;
}

void Engine::report(bool only_new) noexcept {
    epoll_event event{only_new ? EPOLLIN | EPOLLET : EPOLLIN, {.u64 = Worker::tag(this)}};
    rests = epoll_ctl(worker->epoll_fd, EPOLL_CTL_MOD, event_fd, &event) == 0 && only_new;
}

void Engine::leave() noexcept {
    if (!worker) return;
    std::erase(worker->polled, this);
    std::erase(worker->resting, this);
    epoll_ctl(worker->epoll_fd, EPOLL_CTL_DEL, event_fd, nullptr);
    for (Request *r = worker->in_flight; r; r = r->in_flight_next) {
        if (r->engine != this) continue;
        r->engine = nullptr;
        if (r->ucx) r->abandon(), abandoned.push_back(r);
    }
    worker = nullptr;
}

std::string Engine::address() const {
    ucp_worker_attr_t attr{};
    attr.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS;
    check(ucp.worker_query(handle, &attr), "Worker", ": reading the worker's address");
    std::string address(reinterpret_cast<char *>(attr.address), attr.address_length);
    ucp.worker_release_address(handle, attr.address);
    return address;
}

void Engine::land(Landing *landing, void *descriptor, const iovec *parts, size_t count) noexcept {
    ucp_request_param_t param;
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_DATATYPE |
                         UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    param.cb.recv_am = landed;
    param.user_data = landing;
    param.memory_type = UCS_MEMORY_TYPE_HOST;
    const Gathered data(parts, count);
    param.datatype = data.datatype;
    landing->engine = this;
    landings.insert(landing);
    void *request = ucp.am_recv_data_nbx(handle, descriptor, const_cast<void *>(data.buffer), data.count, &param);
    if (UCS_PTR_IS_PTR(request)) return;
    landings.erase(landing);
    landing->ended(landing->receiver, UCS_PTR_STATUS(request));
}

void Engine::force_close(ucp_ep_h endpoint) noexcept {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    param.flags = nb::inst_ptr<Context>(context)->peer_errors() ? UCP_EP_CLOSE_FLAG_FORCE : 0;
    param.cb.send = closed_endpoint;
    param.user_data = this;
    worker->poll(this);
    if (UCS_PTR_IS_PTR(ucp.ep_close_nbx(endpoint, &param))) ++closing_endpoints;
}

void Engine::flush(int64_t deadline_ns) noexcept {
    // On the heap: worker_destroy ends a flush that misses the deadline, after this frame is gone.
    auto *done = new bool(false);
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    param.cb.send = flushed;
    param.user_data = done;
    void *request = ucp.worker_flush_nbx(handle, &param);
    while (UCS_PTR_IS_PTR(request) && !*done && now_ns() < deadline_ns) ucp.worker_progress(handle);
    if (!UCS_PTR_IS_PTR(request) || *done) delete done;
}

void Engine::finish(int64_t deadline_ns) noexcept {
    auto busy = [this] {
        if (closing_endpoints || !landings.empty()) return true;
        for (Request *r = worker->in_flight; r; r = r->in_flight_next)
            if (r->engine == this && r->ucx) return true;
        return false;
    };
    while (busy() && now_ns() < deadline_ns) ucp.worker_progress(handle);
}
