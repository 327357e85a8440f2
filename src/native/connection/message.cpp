// SPDX-License-Identifier: BSD-3-Clause
#include "connection/message.hpp"

#include <cstring>

#include "progress/engine.hpp"

namespace {

void landed(void *request, ucs_status_t status, size_t, void *user_data) {
    auto *message = static_cast<Message *>(user_data);
    ucp.request_free(request);
    message->engine->landing.erase(message);
    message->end(status);
}

}  // namespace

void Message::end(ucs_status_t s) noexcept {
    landing = false;
    ready = true;
    status = s;
    if (arrived)
        arrived(this, sink);
    else
        delete this;
}

bool Message::allocate() noexcept {
    segments.resize(sizes.size());
    for (size_t i = 0; i < sizes.size(); ++i) {
        if (is_lent(i)) continue;
        segments[i] = Pool::allocate(sizes[i]);
        if (!segments[i].data) {
            segments.clear();
            return false;
        }
    }
    return true;
}

bool Message::copy(const void *data) noexcept {
    if (!allocate()) return false;
    auto *from = static_cast<const uint8_t *>(data);
    for (size_t i = 0; i < segments.size(); ++i) {
        if (is_lent(i) || !segments[i].nbytes) continue;
        std::memcpy(segments[i].data, from, segments[i].nbytes);
        from += segments[i].nbytes;
    }
    ready = true;
    return true;
}

void Message::land() noexcept {
    void *from = descriptor;
    descriptor = nullptr;
    if (!allocate()) {
        ucp.am_data_release(engine->handle, from);
        return end(UCS_ERR_NO_MEMORY);
    }
    ucp_request_param_t param;
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_DATATYPE |
                         UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    param.cb.recv_am = landed;
    param.user_data = this;
    param.memory_type = UCS_MEMORY_TYPE_HOST;
    void *buffer = segments[0].data;
    size_t count = segments[0].nbytes;
    param.datatype = ucp_dt_make_contig(1);
    if (segments.size() > 1) {
        for (size_t i = 0; i < segments.size(); ++i)
            if (segments[i].nbytes && !is_lent(i)) iov.push_back({segments[i].data, segments[i].nbytes});
        buffer = iov.data();
        count = iov.size();
        param.datatype = UCP_DATATYPE_IOV;
    }
    landing = true;
    engine->landing.insert(this);
    void *request = ucp.am_recv_data_nbx(engine->handle, from, buffer, count, &param);
    if (UCS_PTR_IS_PTR(request)) return;
    engine->landing.erase(this);
    end(UCS_PTR_STATUS(request));
}

void Message::drop() noexcept {
    if (descriptor) ucp.am_data_release(engine->handle, descriptor);
    descriptor = nullptr;
}

nb::object Message::view() {
    if (bare) return Pool::view(std::move(segments[1]));
    if (segments.size() == 1) return Pool::view(std::move(segments[0]));
    nb::object views = nb::steal(PyTuple_New(Py_ssize_t(segments.size())));
    for (size_t i = 0; i < segments.size(); ++i)
        PyTuple_SET_ITEM(views.ptr(), Py_ssize_t(i), Pool::view(std::move(segments[i])).release().ptr());
    return views;
}
