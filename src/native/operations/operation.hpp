// SPDX-License-Identifier: BSD-3-Clause
// What every operation has in common: the checks before it, UCX's parameters, and the way to its end.
#pragma once

#include "progress/worker.hpp"

using WorkerSelf = nb::pointer_and_handle<Worker>;

/// From UCX: a send, put, get, atomic or flush ended.
void operation_ended(void *ucx_request, ucs_status_t status, void *request);

/// An operation whose result is the request's `word`.
PyObject *word_result(Request &request);
inline constexpr Operation word_operation{.result = word_result};

/// The worker, if this thread may use it and it has an engine of its own.
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

/// Export `buffer` for the operation. Python code may have run for it and closed things: `self` is then checked again.
template <typename Self>
void take(const Self &self, Request *r, ucp_request_param_t &param, nb::handle buffer, bool writable, const char *op) {
    if (r->buffer.acquire(buffer, writable, op, r->worker->memory_types)) [[unlikely]]
        usable(self, op);
    r->nbytes = r->buffer.nbytes();
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    param.memory_type = r->buffer.memory_type;
}

/// UCX took the operation, ended it at once, or refused it.
inline void posted(Request *r, void *ucx) {
    if (UCS_PTR_IS_PTR(ucx)) {
        r->ucx = ucx;
        r->hold();
    } else {
        r->complete_now(UCS_PTR_STATUS(ucx));
    }
}
