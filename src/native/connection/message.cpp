// SPDX-License-Identifier: BSD-3-Clause
#include "connection/message.hpp"

#include <cstring>
#include <utility>

#include "ring/copy.hpp"
#include "ucp/forks.hpp"

void Message::end(ucs_status_t s) noexcept {
    on_its_way = false;
    ready = true;
    status = s;
    if (channel) return arrived(channel, this);
    if (into) into->ucx = nullptr, into->end(s);
    delete this;
}

bool Message::allocate() noexcept {
    segments.resize(sizes.empty() ? 1 : sizes.size());
    for (size_t i = 0; i < segments.size(); ++i) {
        if (is_lent(i)) continue;
        segments[i] = Pool::allocate(sizes.empty() ? nbytes : sizes[i]);
        if (!segments[i].data) {
            segments.clear();
            return false;
        }
    }
    return true;
}

bool Message::copy(const void *data) noexcept {
    if (sizes.empty() && nbytes <= SmallBlock::most_nbytes) {
        small = SmallBlock::allocate(nbytes);
        if (!small) return false;
        if (nbytes) copy_bytes(small->data(), data, nbytes);
        return ready = true;
    }
    if (!allocate()) return false;
    auto *from = static_cast<const uint8_t *>(data);
    for (size_t i = 0; i < segments.size(); ++i) {
        if (is_lent(i) || !segments[i].nbytes) continue;
        copy_bytes(segments[i].data, from, segments[i].nbytes);
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

void Message::answer_into(Request *request) noexcept {
    into = request;
    request->ucx = this;
    parts.push_back({request->buffer.data(), nbytes});
    on_its_way = true;
    carrier->answer(this);
}

void Message::refuse() noexcept {
    if (descriptor && !in_forked_child) carrier->refuse(std::exchange(descriptor, nullptr));
}

nb::object Message::view() {
    if (small) [[likely]]
        return std::exchange(small, nullptr)->view();
    if (bare) return Pool::view(std::move(segments[1]));
    if (segments.size() == 1) return Pool::view(std::move(segments[0]));
    nb::object views = nb::steal(PyTuple_New(Py_ssize_t(segments.size())));
    for (size_t i = 0; i < segments.size(); ++i)
        PyTuple_SET_ITEM(views.ptr(), Py_ssize_t(i), Pool::view(std::move(segments[i])).release().ptr());
    return views;
}

// The block that nothing but `view` shows, if it has this size; null otherwise.
static Block *only_shown_by(PyObject *view, size_t nbytes) noexcept {
    if (!PyMemoryView_Check(view) || !is_let_go(view)) return nullptr;
    PyObject *exporter = shown_by(view);
    if (!nb::isinstance<Block>(exporter)) return nullptr;
    auto *block = nb::inst_ptr<Block>(exporter);
    return block->nbytes == nbytes ? block : nullptr;
}

bool Message::reclaim(PyObject *&views) noexcept {
    if (segments.empty()) {
        small = SmallBlock::reclaim(views);
        return small;
    }
    const bool several = !bare && segments.size() > 1;
    if (several &&
        (!PyTuple_Check(views) || size_t(PyTuple_GET_SIZE(views)) != segments.size() || Py_REFCNT(views) != 1))
        return false;
    for (const bool take : {false, true})
        for (size_t i = bare; i < segments.size(); ++i) {
            PyObject *view = several ? PyTuple_GET_ITEM(views, Py_ssize_t(i)) : views;
            Block *block = only_shown_by(view, sizes.empty() ? nbytes : sizes[i]);
            if (!block) return false;
            if (take) segments[i] = std::move(*block);
        }
    Py_CLEAR(views);
    return true;
}

size_t Message::total_nbytes() const noexcept {
    size_t total = sizes.empty() ? nbytes : 0;
    for (size_t size : sizes) total += size;
    return total;
}

void Message::gather(uint8_t *to) const noexcept {
    if (small && nbytes) copy_bytes(to, small->data(), nbytes);
    for (const Block &segment : segments) {
        if (segment.nbytes) copy_bytes(to, segment.data, segment.nbytes);
        to += segment.nbytes;
    }
}
