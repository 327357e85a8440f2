// SPDX-License-Identifier: BSD-3-Clause
// The lanes that an endpoint uses, and UCX's description of them.
#pragma once

#include "ucp/ucx.hpp"

/// (transport, device) of every lane, as "transport/device".
nb::list transports(ucp_ep_h endpoint);
/// UCX's description: lanes, and the protocols chosen so far for each operation. Empty if this libucp has none.
std::string print_info(ucp_ep_h endpoint);
/// Seconds that UCX predicts for a message of `nbytes`; None if this libucp cannot.
nb::object evaluate_perf(ucp_ep_h endpoint, size_t nbytes);
extern const char *const print_info_doc, *const evaluate_perf_doc;
