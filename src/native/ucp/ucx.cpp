// SPDX-License-Identifier: BSD-3-Clause
#include "ucp/ucx.hpp"

#include <dlfcn.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "ucp/forks.hpp"

Ucp ucp;

// UCX's own texts, for the few statuses that can occur without UCX.
static const char *own_status_string(ucs_status_t status) {
    switch (status) {
        case UCS_OK: return "Success";
        case UCS_ERR_NO_MEMORY: return "Out of memory";
        case UCS_ERR_NO_RESOURCE: return "No resources are available to initiate the operation";
        case UCS_ERR_CANCELED: return "Request canceled";
        default: return "Failed";
    }
}

const char *(*ucx_status_string)(ucs_status_t) = own_status_string;

namespace {

bool is_bound = false;

template <typename F>
void resolve(void *library, const char *symbol, F &function) {
    function = reinterpret_cast<F>(dlsym(library, symbol));
    if (!function) raise("LoadError", std::string("libucp has no symbol ") + symbol, "load");
}

// By default UCX logs to stdout, mixed with the program's output. UCX_LOG_FILE still applies.
using LogHandler = int (*)(const char *file, unsigned line, const char *function, int level, const void *component,
                           const char *format, va_list arguments);
const char *const *log_level_names = nullptr;
bool had_stderr;  // Python found it closed otherwise, and its number may by now be that of any file

int log_to_stderr(const char *file, unsigned line, const char *, int level, const void *, const char *format,
                  va_list arguments) {
    if (!had_stderr) return 0;
    char text[1024];
    vsnprintf(text, sizeof text, format, arguments);
    const char *name = strrchr(file, '/');
    dprintf(STDERR_FILENO, "UCX %s %s (%s:%u)\n", log_level_names[level], text, name ? name + 1 : file, line);
    return 0;  // call no other handler
}

void redirect_log(void *library) {
    auto push = reinterpret_cast<void (*)(LogHandler)>(dlsym(library, "ucs_log_push_handler"));
    had_stderr = PySys_GetObject("__stderr__") != Py_None;
    log_level_names = static_cast<const char *const *>(dlsym(library, "ucs_log_level_names"));
    if (push && log_level_names && !getenv("UCX_LOG_FILE")) push(log_to_stderr);
}

}  // namespace

bool bound() noexcept {
    return is_bound;
}

nb::object keep_sighup(nb::callable load) {
    struct sigaction action;
    sigaction(SIGHUP, nullptr, &action);
    struct Restore {
        struct sigaction &action;
        ~Restore() { sigaction(SIGHUP, &action, nullptr); }
    } restore{action};
    return load();
}

void bind_library(const std::string &path) {
    void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (!library) raise("LoadError", path + " is not loaded", "load");
#define X(name) resolve(library, "ucp_" #name, ucp.name);
    WEFT_UCP_FUNCTIONS(X)
#undef X
#define X(name) ucp.name = reinterpret_cast<decltype(ucp.name)>(dlsym(library, "ucp_" #name));
    WEFT_UCP_OPTIONAL(X)
#undef X
    resolve(library, "ucs_status_string", ucx_status_string);
    redirect_log(library);
    is_bound = true;
    watch_forks();
}

const char *memory_type_name(int type) noexcept {
    static constexpr const char *names[] = {"host", "cuda",    "cuda-managed", "rocm",       "rocm-managed",
                                            "rdma", "ze-host", "ze-device",    "ze-managed", "gaudi"};
    static_assert(std::size(names) == UCS_MEMORY_TYPE_LAST);
    return names[type];
}

nb::object make_error(const char *name, const std::string &text, const char *op) {
    nb::object cls = nb::module_::import_("weft.errors").attr(name);
    nb::object error = cls(text.c_str());
    error.attr("op") = nb::str(op);
    return error;
}

nb::object make_status_error(ucs_status_t status, const char *op, const std::string &what) {
    return nb::module_::import_("weft.errors")
        .attr("from_status")(int(status), ucx_status_string(status), op, what.c_str());
}

static void raise_object(const nb::object &error) {
    PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(error.ptr())), error.ptr());
    throw nb::python_error();
}

void raise(const char *name, const std::string &text, const char *op) {
    raise_object(make_error(name, text, op));
    __builtin_unreachable();
}

void raise_status(ucs_status_t status, const char *op, const std::string &what) {
    raise_object(make_status_error(status, op, what));
    __builtin_unreachable();
}

int64_t now_ns() noexcept {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return int64_t(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}
