// SPDX-License-Identifier: BSD-3-Clause
// Which lanes an endpoint uses, and what UCX tells of them.
#pragma once

#include "ucp/ucx.hpp"

/// (transport, device) of every lane, as "transport/device".
nb::list transports(ucp_ep_h endpoint);
/// What UCX prints of it: lanes, and the protocols chosen so far for each operation. Empty if this libucp cannot.
std::string print_info(ucp_ep_h endpoint);
/// Seconds that UCX expects a message of `nbytes` to take; None if this libucp cannot tell.
nb::object evaluate_perf(ucp_ep_h endpoint, size_t nbytes);
extern const char *const print_info_doc, *const evaluate_perf_doc;
