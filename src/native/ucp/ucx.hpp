// SPDX-License-Identifier: BSD-3-Clause
// The UCX functions that weft calls, bound by dlsym to the libucp that _load.py chose, and the mapping of ucs_status_t
// to Python exceptions. Nothing here links against libucp: importing the module loads no UCX.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <sys/uio.h>
#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "ucp/python_abi.hpp"

// clang-format off
#define WEFT_UCP_FUNCTIONS(X)                                                                                \
    X(am_data_release) X(am_recv_data_nbx) X(am_send_nbx) X(atomic_op_nbx) X(cleanup) X(config_modify)       \
    X(config_read) X(config_release) X(conn_request_query) X(context_query) X(ep_close_nbx) X(ep_create)     \
    X(ep_flush_nbx) X(ep_query) X(ep_rkey_unpack) X(get_nbx) X(get_version) X(init_version)                  \
    X(listener_create) X(listener_destroy) X(listener_query) X(listener_reject) X(mem_map) X(mem_query)      \
    X(mem_unmap) X(put_nbx) X(request_cancel) X(request_free) X(rkey_buffer_release) X(rkey_destroy)         \
    X(rkey_pack) X(stream_recv_nbx) X(stream_send_nbx) X(tag_msg_recv_nbx) X(tag_probe_nb) X(tag_recv_nbx)   \
    X(tag_send_nbx) X(tag_send_sync_nbx) X(worker_arm) X(worker_create) X(worker_destroy)                    \
    X(worker_flush_nbx) X(worker_get_efd) X(worker_progress) X(worker_query) X(worker_release_address)       \
    X(worker_set_am_recv_handler)
// Only for explain: null if this libucp lacks them.
#define WEFT_UCP_OPTIONAL(X) X(ep_evaluate_perf) X(ep_print_info)
// clang-format on

struct Ucp {
#define X(name) decltype(&::ucp_##name) name;
    WEFT_UCP_FUNCTIONS(X)
    WEFT_UCP_OPTIONAL(X)
#undef X
};

extern Ucp ucp;
extern const char *(*ucx_status_string)(ucs_status_t);

/// Resolve every function from the libucp at `path`, which must already be loaded.
void bind_library(const std::string &path);
bool bound() noexcept;
/// Call `load`, and restore the SIGHUP handler: a constructor in libucs silently replaces it.
nb::object keep_sighup(nb::callable load);

/// UCX's name for a ucs_memory_type_t.
const char *memory_type_name(int type) noexcept;

/// Raise the class of weft.errors for `status`.
[[noreturn]] void raise_status(ucs_status_t status, const char *op, const std::string &what = "");
/// Raise weft.errors.<name>(text).
[[noreturn]] void raise(const char *name, const std::string &text, const char *op = "");
/// Make, but do not raise, weft.errors.<name>(text).
nb::object make_error(const char *name, const std::string &text, const char *op = "");
nb::object make_status_error(ucs_status_t status, const char *op, const std::string &what);

inline void check(ucs_status_t status, const char *op, const std::string &what = "") {
    if (status != UCS_OK) raise_status(status, op, what);
}

/// Parts of memory in UCX's form: one or none directly, several as a list.
struct Gathered {
    const void *buffer = nullptr;
    size_t count = 0;
    ucp_datatype_t datatype = ucp_dt_make_contig(1);

    Gathered(const iovec *parts, size_t nparts) noexcept {
        static_assert(sizeof(iovec) == sizeof(ucp_dt_iov_t));
        static_assert(offsetof(iovec, iov_base) == offsetof(ucp_dt_iov_t, buffer));
        static_assert(offsetof(iovec, iov_len) == offsetof(ucp_dt_iov_t, length));
        if (nparts == 1) {
            buffer = parts->iov_base;
            count = parts->iov_len;
        } else if (nparts) {
            buffer = parts;
            count = nparts;
            datatype = UCP_DATATYPE_IOV;
        }
    }
};

/// Nanoseconds of CLOCK_MONOTONIC (about 20 ns through the vDSO).
int64_t now_ns() noexcept;
