// SPDX-License-Identifier: BSD-3-Clause
// Messages of connections over UCX: active messages through one endpoint.
#pragma once

#include "connection/link.hpp"

/// The carrier of `link`. It has its own engine on this host, and the worker's across a network.
std::unique_ptr<Carrier> make_ucx_carrier(Link *link, bool same_host);
