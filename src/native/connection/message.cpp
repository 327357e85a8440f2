// SPDX-License-Identifier: BSD-3-Clause
#include "connection/message.hpp"

#include <cstring>
#include <utility>

void Message::end(ucs_status_t s) noexcept {
    on_its_way = false;
    ready = true;
    status = s;
    if (channel)
        arrived(channel, this);
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

void Message::answer() noexcept {
    if (!allocate()) {
        refuse();
        return end(UCS_ERR_NO_MEMORY);
    }
    for (size_t i = 0; i < segments.size(); ++i)
        if (segments[i].nbytes && !is_lent(i)) parts.push_back({segments[i].data, segments[i].nbytes});
    on_its_way = true;
    carrier->answer(this);
}

void Message::refuse() noexcept {
    if (descriptor) carrier->refuse(std::exchange(descriptor, nullptr));
}

nb::object Message::view() {
    if (bare) return Pool::view(std::move(segments[1]));
    if (segments.size() == 1) return Pool::view(std::move(segments[0]));
    nb::object views = nb::steal(PyTuple_New(Py_ssize_t(segments.size())));
    for (size_t i = 0; i < segments.size(); ++i)
        PyTuple_SET_ITEM(views.ptr(), Py_ssize_t(i), Pool::view(std::move(segments[i])).release().ptr());
    return views;
}
