// SPDX-License-Identifier: BSD-3-Clause
// The format of messages between connections, and their charge.
#pragma once

#include <string>

#include "progress/request.hpp"
#include "shared/fd_socket.hpp"

/// The header of every message between channels; `large` sizes follow it, then a `Lent` for each size with `lent_bit`:
/// that segment is not in the payload. With `staged_bit` it is a copy. After a `placed_kind`, its place follows.
/// Little-endian, as all supported machines are.
struct Wire {
    static constexpr uint32_t magic_value = 0x74666577;  // "weft"
    uint32_t magic;
    uint16_t kind, large;
    uint64_t channel;   // the receiver's id, known only from the handshake
    uint64_t number;    // data: sequence; goodbye: number of messages sent
    uint64_t consumed;  // charge of the messages read so far, in the other direction
};

enum WireKind : uint16_t {
    data_kind = 1,
    credit_kind,
    goodbye_kind,
    acknowledge_kind,
    abort_kind,
    bare_kind,
    placed_kind
};

constexpr uint64_t lent_bit = uint64_t(1) << 63, staged_bit = uint64_t(1) << 62;

constexpr size_t rendezvous_nbytes = 256 << 10;  // from here on, weft requests rendezvous
constexpr size_t message_charge = 512;           // charge of any message, in addition to its eager bytes

/// The credit that a message with this payload takes from its sender. Lent bytes cost the receiver nothing, but stay
/// the sender's until they are read: a window is 64 MiB of them, or 32 MiB of copies made to be lent.
inline size_t charge_of(size_t nbytes, size_t lent_nbytes = 0, size_t staged_nbytes = 0) noexcept {
    return (nbytes < rendezvous_nbytes ? nbytes : 0) + message_charge + lent_nbytes / 16 + staged_nbytes / 8;
}

inline size_t charge_of(const Request &r) noexcept {
    const Parts *parts = r.parts.get();
    return parts ? charge_of(r.nbytes, parts->lent_nbytes, parts->staged_nbytes) : charge_of(r.nbytes);
}

inline std::shared_ptr<const Fault> make_fault(const char *error, std::string text) {
    return std::make_shared<const Fault>(Fault{error, std::move(text)});
}
