// SPDX-License-Identifier: BSD-3-Clause
#include "shared/fd_socket.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "shared/mappings.hpp"
#include "shared/shared_file.hpp"
#include "ucp/forks.hpp"

namespace {

std::mutex retired_mutex;
// Never destroyed: the other sides may hold loans for an unlimited time.
auto &retired = *new std::vector<std::shared_ptr<FdSocket>>;

constexpr size_t batch = 64;           // records per read
constexpr size_t most_batches = 1024;  // per call: more than a socket holds, but a peer may never stop writing
constexpr size_t most_answers = 1 << 16;

/// One receive with room for a descriptor.
struct Received {
    iovec iov;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    msghdr message{};
    ssize_t nbytes;

    Received(int socket, void *data, size_t room) noexcept : iov{data, room} {
        message.msg_iov = &iov;
        message.msg_iovlen = 1;
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        nbytes = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    }
    Received(const Received &) = delete;
};

// The descriptor that came along, or -1. The padding of the control buffer has room for a second, which weft never
// sends: it is closed.
int first_descriptor(msghdr &message) noexcept {
    cmsghdr *c = CMSG_FIRSTHDR(&message);
    if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) return -1;
    int first = -1;
    for (size_t at = 0; at + sizeof(int) <= c->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
        int descriptor;
        std::memcpy(&descriptor, CMSG_DATA(c) + at, sizeof descriptor);
        if (first < 0)
            first = descriptor;
        else
            close(descriptor);
    }
    return first;
}

bool send_whole(int socket, const void *data, size_t nbytes, int descriptor) noexcept {
    iovec iov{const_cast<void *>(data), nbytes};
    msghdr message{};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    if (descriptor >= 0) {
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        std::memcpy(CMSG_DATA(c), &descriptor, sizeof(int));
    }
    return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == ssize_t(nbytes);
}

}  // namespace

bool send_descriptor(int socket, int descriptor) noexcept {
    return send_whole(socket, "", 1, descriptor);
}

int receive_descriptor(int socket) noexcept {
    char byte;
    Received received(socket, &byte, 1);
    if (received.nbytes != 1) return -1;
    const int descriptor = first_descriptor(received.message);
    if (descriptor < 0) errno = received.message.msg_flags & MSG_CTRUNC ? EMFILE : EBADMSG;
    return descriptor;
}

FdSocket::FdSocket(int fd, int epoll, void *data) noexcept : socket(fd), epoll_fd(epoll), epoll_data(data) {
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    close_in_child(fd);
}

FdSocket::~FdSocket() {
    if (in_forked_child) return;
    keep_in_child(socket);
    close(socket);
}

FdSocket::Handover::~Handover() {
    if (fd >= 0 && !in_forked_child) close(fd);
}

// ---- the socket -------------------------------------------------------------------------------------------

bool FdSocket::send(const Record *records, size_t count, int descriptor) noexcept {
    if (gone || in_forked_child) return false;
    return send_whole(socket, records, count * sizeof(Record), descriptor);
}

bool FdSocket::read() noexcept {
    // Dropping a pin may end another side's lease, so do it after the lock is released.
    std::vector<Pin> over;
    std::lock_guard lock(mutex);
    for (size_t batches = 0; !gone && batches < most_batches; ++batches) {
        Record records[batch];
        Received received(socket, records, sizeof records);
        const ssize_t n = received.nbytes;
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) break;
        int descriptor = n > 0 ? first_descriptor(received.message) : -1;
        if (n <= 0 || n % sizeof(Record)) {
            if (descriptor >= 0) close(descriptor);
            gone = true;
            break;
        }
        for (size_t i = 0; i < size_t(n) / sizeof(Record); ++i)
            if (records[i].kind == Record::lease_over)
                over.push_back(take_back(records[i].value));
            else
                take(records[i], descriptor);
        if (descriptor >= 0) close(descriptor);
        gone |= answers_left > most_answers;
    }
    if (gone) {
        while (!leases.empty()) over.push_back(take_back(leases.begin()->first));
        handed.clear();
        kept.reset();
    }
    forget_dropped();
    flush();
    unread_leases = 0;
    return !gone && !goodbye;
}

// A descriptor comes with the only record of its kind in a batch, and belongs to it.
void FdSocket::take(const Record &record, int &descriptor) noexcept {
    switch (record.kind) {
        case Record::segment_handed: take_descriptor(record.value, std::exchange(descriptor, -1)); break;
        case Record::segment_taken:
        case Record::segment_refused:
            if (auto it = handed.find(record.value); it != handed.end())
                it->second.state = record.kind == Record::segment_taken ? Handed::taken : Handed::refused;
            has_answered = true;
            break;
        case Record::segment_dropped: segments.erase(record.value); break;
        case Record::lease_over: break;  // handled in `read`
        case Record::wake_up: break;     // nothing to do: the worker is awake
        case Record::goodbye_said: goodbye = true; break;
    }
}

void FdSocket::wake() noexcept {
    std::lock_guard lock(mutex);
    const Record record{Record::wake_up, 0};
    send(&record, 1, -1);  // a full socket wakes as well
}

void FdSocket::send_later(const Record &record) noexcept {
    backlog.push_back(record);
    answers_left += record.answers();
    flush();
}

// Send as many at once as there are; their order does not matter.
void FdSocket::flush() noexcept {
    while (!backlog.empty()) {
        size_t count = std::min(backlog.size(), batch);
        if (!send(&backlog[backlog.size() - count], count, -1)) break;
        for (size_t i = backlog.size() - count; i < backlog.size(); ++i) answers_left -= backlog[i].answers();
        backlog.resize(backlog.size() - count);
    }
    if (full != backlog.empty() || epoll_fd < 0) return;
    full = !full;
    epoll_event event{};
    event.events = EPOLLRDHUP | EPOLLIN | (full ? uint32_t(EPOLLOUT) : 0);
    event.data.ptr = epoll_data;
    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, socket, &event);
}

void FdSocket::keep(std::shared_ptr<void> memory) noexcept {
    std::lock_guard lock(mutex);
    kept = std::move(memory);
}

void FdSocket::retire() noexcept {
    {
        std::lock_guard lock(mutex);
        epoll_fd = -1;
    }
    read();
    decltype(segments) left;
    {
        std::lock_guard lock(mutex);
        left.swap(segments);  // nothing more will arrive; loans that arrived keep their segment
    }
    for (auto &[id, segment] : left) Borrowed::leave(segment);
    {
        std::lock_guard lock(mutex);
        if (gone || (leases.empty() && !borrowed && !kept)) return;
        Record record{Record::goodbye_said, 0};
        if (!goodbye && !send(&record, 1, -1)) shutdown(socket, SHUT_RDWR);
        if (leases.empty() && !kept) return;
    }
    std::lock_guard lock(retired_mutex);
    retired.push_back(shared_from_this());
}

void FdSocket::sweep() noexcept {
    std::lock_guard lock(retired_mutex);
    std::erase_if(retired, [](auto &each) {
        each->read();
        std::lock_guard inner(each->mutex);
        return each->leases.empty() && !each->kept;
    });
}

// ---- the lender -------------------------------------------------------------------------------------------

FdSocket::Handed FdSocket::hand_over(const Pin &pin) noexcept {
    std::lock_guard lock(mutex);
    if (gone) return Handed::no;
    forget_dropped();
    Handover &handover = handed[pin.segment_id];
    if (handover.state != Handed::no) return handover.state;
    if (pin.lease && handover.fd < 0) {
        handover.fd = SharedFile::reopen(pin.fd);
        if (handover.fd < 0) return Handed::no;
        handover.segment = pin.lease->segment;
        ++lent_on;
    }
    // For this process's own segment, send a file description that only the other side has.
    int fd = pin.lease ? handover.fd : SharedFile::share(pin.fd);
    Record record{Record::segment_handed, pin.segment_id};
    if (fd >= 0 && send(&record, 1, fd)) handover.state = Handed::sent;
    if (!pin.lease && fd >= 0) close(fd);
    return handover.state;
}

// A process that only lends, and never waits, would let the socket fill up with returned leases.
bool FdSocket::wants_reading() noexcept {
    std::lock_guard lock(mutex);
    return unread_leases >= batch;
}

bool FdSocket::answered() noexcept {
    std::lock_guard lock(mutex);
    return std::exchange(has_answered, false);
}

// Tell the other side to close its descriptors of segments that no longer exist, and of others' segments of which it
// has no loans: those may be gone.
void FdSocket::forget_dropped() noexcept {
    uint64_t now = Pool::dropped();
    if (now == dropped_seen && !lent_on) return;
    for (auto it = handed.begin(); it != handed.end();) {
        const Handover &handover = it->second;
        const bool unused = handover.lent ? !handover.leases : handover.segment.expired();
        if (handover.fd >= 0 ? !unused : Pool::exists(it->first)) {
            ++it;
            continue;
        }
        Record record{Record::segment_dropped, it->first};
        if (!send(&record, 1, -1)) return;
        lent_on -= handover.fd >= 0;
        it = handed.erase(it);
    }
    dropped_seen = now;
}

Lent FdSocket::lend(Pin &&pin) noexcept {
    std::lock_guard lock(mutex);
    ++unread_leases;
    Lent lent{pin.segment_id, pin.offset, next_lease++};
    if (pin.lease) {
        Handover &handover = handed[pin.segment_id];
        ++handover.leases;
        handover.lent = true;
        // Lending without a mark would be unsafe. Segment 0 does not exist, so the other side ends the connection.
        if (!SharedFile::mark(handover.fd, lent.offset, lent.lease)) lent.segment = 0;
    }
    leases.emplace(lent.lease, std::move(pin));
    return lent;
}

Pin FdSocket::take_back(uint64_t lease) noexcept {
    Pin pin;
    auto found = leases.find(lease);
    if (found == leases.end()) return pin;
    pin = std::move(found->second);
    leases.erase(found);
    if (pin.lease) {
        Handover &handover = handed[pin.segment_id];
        --handover.leases;
        SharedFile::unmark(handover.fd, pin.offset, lease);
    }
    return pin;
}

// ---- the borrower -----------------------------------------------------------------------------------------

// The file must never be shortened while it is mapped: that would cause a SIGBUS.
void FdSocket::take_descriptor(uint64_t id, int descriptor) noexcept {
    struct stat status;
    if (descriptor < 0 || !SharedFile::is_safe(descriptor) || fstat(descriptor, &status) != 0 || segments.count(id)) {
        if (descriptor >= 0) close(descriptor);
        return send_later({Record::segment_refused, id});
    }
    segments.insert({id, std::make_shared<Borrowed>(descriptor, size_t(status.st_size))});
    send_later({Record::segment_taken, id});
}

Block FdSocket::borrow(const Lent &lent, size_t nbytes) noexcept {
    Block block;
    std::lock_guard lock(mutex);
    auto found = segments.find(lent.segment);
    if (found == segments.end() || !nbytes || lent.offset > found->second->nbytes ||
        nbytes > found->second->nbytes - lent.offset)
        return block;
    const int fd = found->second->fd;
    static const size_t page = size_t(sysconf(_SC_PAGESIZE));
    size_t before = lent.offset % page;
    const int held = Mappings::may_take() ? SharedFile::hold(fd, lent.offset, nbytes) : -1;
    void *base = held < 0 ? MAP_FAILED
                          : mmap(nullptr, before + nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, held,
                                 off_t(lent.offset - before));
    if (held >= 0) close(held);  // the mapping keeps its mark
    if (base == MAP_FAILED) {    // too many mappings or descriptors: make a copy
        block = Pool::allocate(nbytes);
        for (size_t done = 0; block.data && done < nbytes;) {
            ssize_t n = pread(fd, block.data + done, nbytes - done, off_t(lent.offset + done));
            if (n <= 0) block.release();
            done += size_t(n);
        }
        send_later({Record::lease_over, lent.lease});
        return block;
    }
    SharedFile::unmark(fd, lent.offset, lent.lease);
    ++borrowed;
    auto lease =
        std::make_shared<Lease>(shared_from_this(), lent.lease, found->second, before + nbytes, lent.offset - before);
    block.loan = std::make_shared<Loan>(std::move(lease), base);
    block.data = static_cast<uint8_t *>(base) + before;
    block.nbytes = nbytes;
    return block;
}

void FdSocket::lease_over(uint64_t lease) noexcept {
    std::lock_guard lock(mutex);
    --borrowed;
    send_later({Record::lease_over, lease});
}
