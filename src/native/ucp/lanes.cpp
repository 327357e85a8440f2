// SPDX-License-Identifier: BSD-3-Clause
#include "ucp/lanes.hpp"

#include <cmath>
#include <cstdio>
#include <cstdlib>

nb::list transports(ucp_ep_h endpoint) {
    ucp_transport_entry_t entries[64];
    ucp_ep_attr_t attr{};
    attr.field_mask = UCP_EP_ATTR_FIELD_TRANSPORTS;
    attr.transports = {entries, 64, sizeof entries[0]};
    check(ucp.ep_query(endpoint, &attr), "transports");
    nb::list lanes;
    for (unsigned i = 0; i < attr.transports.num_entries; ++i) {
        if (!*entries[i].device_name) continue;  // of a connection manager, which carries no data
        std::string lane = std::string(entries[i].transport_name) + "/" + entries[i].device_name;
        if (!nb::cast<bool>(lanes.attr("__contains__")(lane))) lanes.append(lane);
    }
    return lanes;
}

const char *const print_info_doc =
    "Return UCX's description of the endpoint: its lanes, and a table of protocols for each operation used so far. For "
    "people to read; the text depends on UCX's version. Empty if UCX has none. Source: ``ucp_ep_print_info``.";

std::string print_info(ucp_ep_h endpoint) {
    if (!ucp.ep_print_info) return "";
    char *text = nullptr;
    size_t length = 0;
    FILE *stream = open_memstream(&text, &length);
    if (!stream) raise("NoMemoryError", "print_info: out of memory", "print_info");
    ucp.ep_print_info(endpoint, stream);
    fclose(stream);
    std::string told(text, length);
    free(text);
    return told;
}

const char *const evaluate_perf_doc =
    "Return how many seconds UCX expects a message of `nbytes` to take over the fastest lane; None if it does not "
    "tell. Source: ``ucp_ep_evaluate_perf``.";

nb::object evaluate_perf(ucp_ep_h endpoint, size_t nbytes) {
    ucp_ep_evaluate_perf_param_t param{};
    param.field_mask = UCP_EP_PERF_PARAM_FIELD_MESSAGE_SIZE;
    param.message_size = nbytes;
    ucp_ep_evaluate_perf_attr_t attr{};
    attr.field_mask = UCP_EP_PERF_ATTR_FIELD_ESTIMATED_TIME;
    if (!ucp.ep_evaluate_perf || ucp.ep_evaluate_perf(endpoint, &param, &attr) != UCS_OK ||
        !std::isfinite(attr.estimated_time))
        return nb::none();
    return nb::float_(attr.estimated_time);
}
