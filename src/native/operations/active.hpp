// SPDX-License-Identifier: BSD-3-Clause
// Active messages: sent with a header, received in turn (am_recv) or handed to a handler.
#pragma once

#include "operations/endpoint.hpp"

/// A program's ids are below this; messages of connections have it.
constexpr unsigned connection_am_id = 63;

/// Have UCX call `callback` with each message of this id.
ucs_status_t set_am_callback(Engine *engine, unsigned id, ucp_am_recv_callback_t callback, void *argument,
                             uint32_t flags = 0) noexcept;
void define_active(nb::module_ &m, nb::class_<Worker> &worker, nb::class_<Endpoint> &endpoint);
