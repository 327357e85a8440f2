// SPDX-License-Identifier: BSD-3-Clause
#include "operations/operation.hpp"

void operation_ended(void *ucx_request, ucs_status_t status, void *request) {
    auto *r = static_cast<Request *>(request);
    r->ucx = nullptr;
    ucp.request_free(ucx_request);
    r->end(status);
}

PyObject *word_result(Request &request) {
    return PyLong_FromUnsignedLongLong(request.word);
}
