// SPDX-License-Identifier: BSD-3-Clause
// The parts common to all operations: checks, UCX's parameters, and completion.
#pragma once

#include "progress/worker.hpp"

using WorkerSelf = nb::pointer_and_handle<Worker>;

/// Called by UCX when a send, put, get, atomic or flush has ended.
void operation_ended(void *ucx_request, ucs_status_t status, void *request);

/// An operation whose result is the request's `word`.
PyObject *word_result(Request &request);
inline constexpr Operation word_operation{.result = word_result};

/// The worker, if this thread may use it and it has its own engine.
inline Worker *usable(const WorkerSelf &self, const char *op) {
    Worker *w = self.p;
    w->check_owner(op);
    w->check_own(op);
    w->poll(w->own.get());
    return w;
}

inline void begin(ucp_request_param_t &param, Request *r) {
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    param.cb.send = operation_ended;
    param.user_data = r;
}

/// Export `buffer` for the operation. That may run Python code, which may close objects: `self` is then checked again.
template <typename Self>
void take(const Self &self, Request *r, ucp_request_param_t &param, nb::handle buffer, bool writable, const char *op) {
    if (r->buffer.acquire(buffer, writable, op, r->worker->memory_types)) [[unlikely]]
        usable(self, op);
    r->nbytes = r->buffer.nbytes();
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    param.memory_type = r->buffer.memory_type;
}

/// Process UCX's answer: the operation was started, has completed at once, or was refused.
inline void posted(Request *r, void *ucx) {
    if (UCS_PTR_IS_PTR(ucx)) {
        r->ucx = ucx;
        r->hold();
    } else {
        r->complete_now(UCS_PTR_STATUS(ucx));
    }
}
