// SPDX-License-Identifier: BSD-3-Clause
// What connections say to each other, and what it costs them.
#pragma once

#include "channel.hpp"

/// The header of every message between channels; `large` sizes follow it. Little-endian, as every machine here.
struct Wire {
    static constexpr uint32_t magic_value = 0x74666577;  // "weft"
    uint32_t magic;
    uint16_t kind, large;
    uint64_t channel;   // the receiver's id, told only in the handshake
    uint64_t number;    // data: sequence; goodbye: count of messages sent
    uint64_t consumed;  // charge of the messages read so far, of the other direction
};

enum WireKind : uint16_t { data_kind = 1, credit_kind, goodbye_kind, acknowledge_kind, abort_kind };

/// What a message of this size takes of its sender's credit.
inline size_t charge_of(size_t nbytes) noexcept {
    return (nbytes < Channel::rendezvous_nbytes ? nbytes : 0) + Channel::message_charge;
}

inline std::shared_ptr<const Fault> make_fault(const char *error, std::string text) {
    return std::make_shared<const Fault>(Fault{error, std::move(text)});
}
