// SPDX-License-Identifier: BSD-3-Clause
// Beside UCX: the Unix socket between two processes of one host, over which memory is lent.
//
// A block of the pool need not be copied to reach a process of the same host: its segment's descriptor is handed
// over once, and when the other side has said that it could take it (descriptors are few), a message says where in
// it the data lies. The borrower maps the pages copy-on-write: what it writes stays its own, and what it has not
// written to it may lend on (loan.hpp). The lender pins the block until the borrower's mapping is gone and it says
// so, in a record over this socket, from whatever thread let go. What a dead borrower had is taken back at once; the
// mapping of a dead lender's pages stays.
//
// The socket is also the link's liveness, and lives until both the link and the last loan over it are gone: a
// link that ends while something is lent says goodbye in a record, and the lender goes on listening (`retire`).
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "shared/loan.hpp"
#include "shared/pool.hpp"

/// Where lent bytes lie, as it travels in a message's header.
struct Lent {
    uint64_t segment, offset, lease;
};

/// A descriptor over a connected Unix socket, with a byte. False, or -1: `errno` says why.
bool send_descriptor(int socket, int descriptor) noexcept;
int receive_descriptor(int socket) noexcept;

/// The socket, and what was lent over it. Any thread may use it; no Python.
class FdSocket : public Lender, public std::enable_shared_from_this<FdSocket> {
  public:
    /// Takes `fd`, a connected Unix stream socket that `epoll_fd` watches as `epoll_data` for records and its end.
    FdSocket(int fd, int epoll_fd, void *epoll_data) noexcept;
    FdSocket(const FdSocket &) = delete;
    ~FdSocket();
    int fd() const noexcept { return socket; }

    // The lender's half.
    enum class Handed : uint8_t { no, sent, taken, refused };
    /// Hand over the segment's descriptor, if that was not done before; `no`: the socket has no room.
    Handed hand_over(const Pin &pin) noexcept;
    /// So many leases were given since the last look that what comes back should be read.
    bool wants_reading() noexcept;
    /// Whether the other side has answered for a segment since this was asked last.
    bool answered() noexcept;
    /// Lend what is pinned, until the other side returns it.
    Lent lend(Pin &&pin) noexcept;

    // The borrower's half.
    /// Map lent bytes. Null `data`: the lender named no segment that arrived, or nothing of this size in it.
    Block borrow(const Lent &lent, size_t nbytes) noexcept;
    void lease_over(uint64_t lease) noexcept override;

    /// Have the other side's epoll set tell of this socket.
    void wake() noexcept;

    /// Take what has arrived. False: the other side is gone, or its link is.
    bool read() noexcept;
    /// Keep this until the other side is gone, even when the link is over: it may still read it.
    void keep(std::shared_ptr<void> memory) noexcept;
    /// The link is over. What the other side still holds stays pinned until it returns it or ends.
    void retire() noexcept;
    /// Look whether the other sides of retired links have returned anything.
    static void sweep() noexcept;

  private:
    /// What the other side was told of a segment; owns the descriptor that it got if that is another process's.
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
    /// What goes over the socket, always whole: a stream socket takes so little at once or not at all.
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
    bool full = false;     // the epoll set was asked to tell of room
    bool gone = false;     // the other side is
    bool goodbye = false;  // its link is
    // Lender.
    std::unordered_map<uint64_t, Pin> leases;
    std::unordered_map<uint64_t, Handover> handed;  // by segment
    uint64_t next_lease = 1, unread_leases = 0, dropped_seen = 0;
    size_t lent_on = 0;  // segments of others that were handed over
    bool has_answered = false;
    std::shared_ptr<void> kept;
    // Borrower.
    std::unordered_map<uint64_t, std::shared_ptr<Borrowed>> segments;
    size_t borrowed = 0;          // leases that the other side is still to have back
    std::vector<Record> backlog;  // what the socket had no room for
    size_t answers_left = 0;      // in it: a peer that asks on and never reads is as good as gone
};
