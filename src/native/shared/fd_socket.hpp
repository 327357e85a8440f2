// SPDX-License-Identifier: BSD-3-Clause
// The Unix socket between two processes of one host, over which memory is lent; UCX is not involved.
//
// A block of the pool can reach a process on the same host without a copy. The descriptor of its segment is handed over
// once; after the other side has confirmed it (it may be out of descriptors), a message says where in the segment the
// data is. The borrower maps the pages copy-on-write: what it writes stays private, and pages that it has not written
// to it may lend on (loan.hpp). The lender pins the block until the borrower's mapping is gone and the borrower says
// so, in a record over this socket, from whichever thread dropped the mapping. Loans of a dead borrower are taken back
// at once; mappings of a dead lender's pages stay.
//
// The socket is also the link's liveness socket. It lives until both the link and the last loan over it are gone: a
// link that ends while something is lent sends a goodbye record, and the lender keeps listening (`retire`).
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "shared/loan.hpp"
#include "shared/pool.hpp"

/// The location of lent bytes, as sent in a message's header.
struct Lent {
    uint64_t segment, offset, lease;
};

/// Send a descriptor, with a byte, over a connected Unix socket; or receive one. On false or -1, see `errno`.
bool send_descriptor(int socket, int descriptor) noexcept;
int receive_descriptor(int socket) noexcept;

/// The socket, and the loans over it. Thread-safe; no Python.
class FdSocket : public Lender, public std::enable_shared_from_this<FdSocket> {
  public:
    /// Takes `fd`, a connected Unix stream socket, and watches it in `epoll_fd` with `epoll_data`.
    FdSocket(int fd, int epoll_fd, void *epoll_data) noexcept;
    FdSocket(const FdSocket &) = delete;
    ~FdSocket();
    int fd() const noexcept { return socket; }

    // The lender's side.
    enum class Handed : uint8_t { no, sent, taken, refused };
    /// Hand over the segment's descriptor, unless that was done before; `no`: the socket has no room.
    Handed hand_over(const Pin &pin) noexcept;
    /// Whether so many leases were given since the last read that returned ones should be read.
    bool wants_reading() noexcept;
    /// Whether the other side has answered for a segment since the last call.
    bool answered() noexcept;
    /// Lend pinned memory until the other side returns it.
    Lent lend(Pin &&pin) noexcept;

    // The borrower's side.
    /// Map lent bytes. Null `data`: the segment has not arrived, or the range is not within it.
    Block borrow(const Lent &lent, size_t nbytes) noexcept;
    void lease_over(uint64_t lease) noexcept override;

    /// Wake the other side's epoll set.
    void wake() noexcept;

    /// Read what has arrived. False: the other side or its link is gone.
    bool read() noexcept;
    /// Keep `memory` until the other side is gone, even after the link has ended: it may still read it.
    void keep(std::shared_ptr<void> memory) noexcept;
    /// The link has ended. Memory that the other side still holds stays pinned until it returns it or ends.
    void retire() noexcept;
    /// Check whether the other sides of retired links have returned anything.
    static void sweep() noexcept;

  private:
    /// The state of a segment on the other side; owns the descriptor that was sent if the segment is another process's.
    struct Handover {
        Handed state = Handed::no;
        int fd = -1;
        std::weak_ptr<Borrowed> segment;
        size_t leases = 0;
        bool lent = false;  // leases were given
        Handover() = default;
        Handover(const Handover &) = delete;
        ~Handover();
    };
    /// A record on the socket, always complete: a stream socket accepts so few bytes at once or not at all.
    struct Record {
        enum Kind : uint64_t {
            segment_handed = 1,
            segment_taken,
            segment_refused,
            segment_dropped,
            lease_over,
            goodbye_said,
            wake_up
        };
        uint64_t kind, value;
        bool answers() const noexcept { return kind == segment_taken || kind == segment_refused; }
    };

    bool send(const Record *records, size_t count, int descriptor) noexcept;
    void send_later(const Record &record) noexcept;
    void take(const Record &record, int &descriptor) noexcept;
    void flush() noexcept;
    void forget_dropped() noexcept;
    Pin take_back(uint64_t lease) noexcept;
    void take_descriptor(uint64_t segment, int descriptor) noexcept;

    std::recursive_mutex mutex;
    int socket, epoll_fd = -1;
    void *epoll_data = nullptr;
    bool full = false;     // the epoll set watches for room
    bool gone = false;     // the other side is gone
    bool goodbye = false;  // the other side's link has ended
    // Lender.
    std::unordered_map<uint64_t, Pin> leases;
    std::unordered_map<uint64_t, Handover> handed;  // by segment
    uint64_t next_lease = 1, unread_leases = 0, dropped_seen = 0;
    size_t lent_on = 0;  // segments of other processes that were handed over
    bool has_answered = false;
    std::shared_ptr<void> kept;
    // Borrower.
    std::unordered_map<uint64_t, std::shared_ptr<Borrowed>> segments;
    size_t borrowed = 0;          // leases not yet returned to the other side
    std::vector<Record> backlog;  // records that the socket had no room for
    size_t answers_left = 0;      // in the backlog: a peer that keeps asking and never reads counts as gone
};
