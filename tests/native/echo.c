// SPDX-License-Identifier: BSD-3-Clause
// A program that speaks UCX without weft: it connects to a UCP listener, sends what it was told to under tag 1, takes the
// answer under tag 2, and prints it.  echo HOST PORT TEXT
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>

static void check(ucs_status_t status, const char *what) {
    if (status == UCS_OK) return;
    fprintf(stderr, "%s: %s\n", what, ucs_status_string(status));
    exit(1);
}

static void finish(ucp_worker_h worker, void *request, const char *what) {
    if (!UCS_PTR_IS_PTR(request)) return check(UCS_PTR_STATUS(request), what);
    ucs_status_t status;
    while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) ucp_worker_progress(worker);
    ucp_request_free(request);
    check(status, what);
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG | UCP_FEATURE_AM};
    ucp_context_h context;
    check(ucp_init(&params, NULL, &context), "init");
    ucp_worker_params_t worker_params = {.field_mask = 0};
    ucp_worker_h worker;
    check(ucp_worker_create(context, &worker_params, &worker), "worker");

    struct sockaddr_in server = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[2]))};
    inet_pton(AF_INET, argv[1], &server.sin_addr);
    ucp_ep_params_t ep_params = {
        .field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
        .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
        .sockaddr = {(struct sockaddr *)&server, sizeof server},
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
    };
    ucp_ep_h endpoint;
    check(ucp_ep_create(worker, &ep_params, &endpoint), "connect");

    ucp_request_param_t plain = {.op_attr_mask = 0};
    char answer[256] = {0};
    finish(worker, ucp_tag_send_nbx(endpoint, argv[3], strlen(argv[3]), 1, &plain), "send");
    finish(worker, ucp_tag_recv_nbx(worker, answer, sizeof answer - 1, 2, UINT64_MAX, &plain), "receive");
    printf("%s\n", answer);
    finish(worker, ucp_ep_close_nbx(endpoint, &plain), "close");
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
    return 0;
}
