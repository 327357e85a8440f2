// SPDX-License-Identifier: BSD-3-Clause
// Carries a link between two processes of one host without UCX: a ring for each direction (ring/ring.hpp), in its
// receiver's pages.
//
// A small message is one record. A larger one starts with a record (`begin`), and its bytes follow in pieces: each is
// copied into the sender's area, and a record says where. If the area is full, the bytes go through the ring. A message
// that UCX would send by rendezvous is announced, and its pieces follow when the other side answers. Records of other
// messages are interleaved with the pieces, so a large message does not block others.
#pragma once

#include <optional>
#include <unordered_map>

#include "connection/link.hpp"
#include "connection/rings.hpp"
#include "ring/ring.hpp"

/// Owns this side's ring, and the mappings of the other side's.
struct RingCarrier final : Carrier, RingEnd {
    static constexpr uint64_t nothing = UINT64_MAX;
    static constexpr size_t whole_nbytes = 4 << 10;  // a message up to this size, including its header, is one record

    Link *link;
    std::shared_ptr<Rings> rings;  // null once closed

    explicit RingCarrier(Link *link);
    ~RingCarrier() override;

    std::string address() const override;
    void offer(int socket) override;
    int memory() const noexcept override { return rings ? rings->arena->arena.fd() : -1; }
    void join(nb::bytes address, int socket, int memory) override;
    void post(Request *request, const void *header, size_t header_nbytes, const iovec *parts, size_t count,
              ucs_memory_type_t memory_type, bool rendezvous) noexcept override;
    bool write(const void *header, size_t header_nbytes, const void *data, size_t nbytes, bool more) noexcept override;
    void show() noexcept override;
    bool is_full() const noexcept override { return !openings.empty(); }
    void post_header(const void *header, size_t nbytes) noexcept override;
    void answer(Message *message) noexcept override;
    void answer_into(Request *request, void *incoming) noexcept override;
    void refuse(void *incoming) noexcept override;
    uint64_t posted() const noexcept override { return writer ? writer->written() : 0; }
    bool has_read(uint64_t end) noexcept override;
    void attend() noexcept override;
    bool has_headers_left() const noexcept override { return writer && headers_left; }
    void flush(int64_t deadline_ns) noexcept override;
    void close() noexcept override;
    nb::list transports() const override;
    std::string print_info() const override { return ""; }
    nb::object evaluate_perf(size_t) const override { return nb::none(); }
    uintptr_t handle() const noexcept override { return 0; }

    // Called by Rings.
    unsigned receive() noexcept override;
    unsigned send_more() noexcept override;
    bool waits() const noexcept override { return has_unsent() || watches(); }
    bool watches() const noexcept override { return watched != nothing; }
    bool finds_room() noexcept override;
    void collect() noexcept override;

  private:
    /// A message that arrives in pieces, and its destination.
    struct Incoming {
        uint64_t id;
        size_t left;
        bool announced;              // it waits for an answer, or has waited
        Message *message = nullptr;  // the receiver, or the request below; with neither, pieces are dropped
        Request *request = nullptr;
        std::vector<iovec> parts{};
        size_t part = 0;
    };
    /// A message, or its opening, that waits for room; then the bytes of its pieces.
    struct Outgoing {
        Request *request = nullptr;  // null: a header alone
        Ring::Kind kind = Ring::Kind::message;
        uint64_t id = 0;
        size_t left = 0;              // bytes still to send in pieces
        std::vector<std::byte> head;  // of the opening record; its kind determines how much of it is the header
        uint32_t note = 0;
        std::vector<iovec> iov;
        Ring::Gather from{nullptr, 0};
    };
    struct Piece {
        uint64_t written;  // the ring's end after its record
        int number;
    };

    bool has_unsent() const noexcept { return !openings.empty() || !transfers.empty(); }
    unsigned send_queued() noexcept;
    unsigned look_at_reader() noexcept;
    bool open_with(Outgoing &out) noexcept;
    void queue(Outgoing &&out) noexcept;
    bool send_piece(Outgoing &out) noexcept;
    void finish(Request *request, ucs_status_t status) noexcept;
    void tell(Ring::Kind kind, uint64_t id) noexcept;
    void publish() noexcept;
    void ring_bell() noexcept;

    void take(const Ring::Record &record) noexcept;
    void take_message(const Ring::Record &record) noexcept;
    void take_opening(const Ring::Record &record) noexcept;
    void take_piece(const Ring::Record &record) noexcept;
    void take_answer(const Ring::Record &record) noexcept;
    void land(Incoming &incoming, const std::byte *from, size_t nbytes) noexcept;
    void landed(Request *request, ucs_status_t status) noexcept;
    void end_incoming() noexcept;
    void fail(const char *fault) noexcept;

    Ring::Pages pages;
    Ring::Mapping their_ring, their_bits, their_state, their_area;
    size_t their_area_nbytes = 0;
    std::optional<Ring::Reader> reader;
    std::optional<Ring::Writer> writer;
    std::optional<Ring::Bell> bell;
    bool broken = false;
    bool to_itself = false;
    unsigned hidden = 0;         // records written but not published
    bool piece_read = false;     // since freed room was last returned
    uint64_t seen_read = 0;      // what the other side has read, and then nothing that it said before was left
    uint64_t watched = nothing;  // a user waits until it has read this much

    uint64_t next_id = 1;
    size_t headers_left = 0;
    size_t dropped = 0;                                // of `incoming`: begun, without a receiver
    std::deque<Outgoing> openings;                     // in the order of posting
    std::deque<Outgoing> transfers;                    // opened, with bytes left to send
    std::unordered_map<uint64_t, Outgoing> announced;  // not yet answered
    std::deque<Piece> unread;                          // pieces of the area that the other side has not read yet
    std::unordered_map<uint64_t, std::unique_ptr<Incoming>> incoming;
};

std::unique_ptr<Carrier> make_ring_carrier(Link *link);
