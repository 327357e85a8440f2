// SPDX-License-Identifier: BSD-3-Clause
// Active messages: sent with a header, received in order (am_recv) or passed to a handler.
#pragma once

#include "operations/endpoint.hpp"

/// Programs may use ids below this one; connections use this one.
constexpr unsigned connection_am_id = 63;

/// Let UCX call `callback` for each message with this id.
ucs_status_t set_am_callback(Engine *engine, unsigned id, ucp_am_recv_callback_t callback, void *argument,
                             uint32_t flags = 0) noexcept;
void define_active(nb::module_ &m, nb::class_<Worker> &worker, nb::class_<Endpoint> &endpoint);
