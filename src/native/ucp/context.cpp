// SPDX-License-Identifier: BSD-3-Clause
#include "ucp/context.hpp"
#include "ucp/forks.hpp"

#include <sys/eventfd.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace {

// The oldest supported version. UCX requires the same major, and at least this minor.
constexpr unsigned api_major = 1, api_minor = 16;

void modify(ucp_config_t *config, const std::string &name, const std::string &value) {
    const ucs_status_t status = ucp.config_modify(config, name.c_str(), value.c_str());
    if (status == UCS_ERR_INVALID_PARAM || status == UCS_ERR_NO_ELEM)
        raise("InvalidParamError",
              "Context: UCX does not accept " + name + "=" + value + ": unknown name or value; ucx_info -cf lists them",
              "Context");
    check(status, "Context", " with " + name + "=" + value);
}

struct Feature {
    const char *name;
    uint64_t bits;
};
constexpr Feature known_features[] = {
    {"am", UCP_FEATURE_AM},   {"amo", UCP_FEATURE_AMO32 | UCP_FEATURE_AMO64},
    {"rma", UCP_FEATURE_RMA}, {"stream", UCP_FEATURE_STREAM},
    {"tag", UCP_FEATURE_TAG},
};

// UCX itself logs the details to stderr, if its log level permits.
[[noreturn]] void refuse_devices(const nb::dict &settings) {
    std::string what;
    for (const char *name : {"TLS", "NET_DEVICES"}) {
        const char *environment = std::getenv((std::string("UCX_") + name).c_str());
        if (settings.contains(name))
            what += std::string(" ") + name + "=" + nb::cast<std::string>(nb::str(settings[name]));
        else if (environment)
            what += std::string(" UCX_") + name + "=" + environment;
    }
    raise("InvalidParamError",
          "Context: UCX found no device" + (what.empty() ? "" : " with" + what) + "; ucx_info -d lists the devices",
          "Context");
}

uint64_t feature_bits(nb::handle names) {
    uint64_t bits = UCP_FEATURE_WAKEUP;
    for (nb::handle each : names) {
        const std::string name = nb::cast<std::string>(nb::str(each));
        uint64_t found = 0;
        for (const Feature &feature : known_features)
            if (name == feature.name) found = feature.bits;
        bits |= found;
        if (!found)
            raise("InvalidParamError",
                  "Context: unknown feature " + name + "; choose from tag, am, stream, rma and amo", "Context");
    }
    return bits;
}

}  // namespace

// If less than POSIX_SHM_MIN_SIZE is free (UCX's 16 MiB; weft sets 5), UCX 1.22 allocates a queue's buffers on the heap
// and dereferences a null handle (uct_mm_iface_recv_desc_init). So require several times what a worker takes, because
// other processes may be allocating too.
void check_shm(const char *op, uint64_t needed) {
    struct statvfs shm;
    if (statvfs("/dev/shm", &shm) != 0) return;
    if (needed && (shm.f_flag & ST_RDONLY))
        raise("NoMemoryError",
              std::string(op) + ": /dev/shm is read-only, and shared memory needs " + std::to_string(needed >> 10) +
                  " KiB there; make it writable (mount -o remount,rw /dev/shm), or remove posix from UCX_TLS",
              op);
    if (needed && shm.f_files && shm.f_favail < 4)
        raise("NoMemoryError",
              std::string(op) +
                  ": /dev/shm has no inodes for more files; delete files there, allow more (mount -o"
                  " remount,nr_inodes=10000 /dev/shm), or remove posix from UCX_TLS",
              op);
    uint64_t free = uint64_t(shm.f_bavail) * shm.f_frsize;
    if (free < needed)
        raise("NoMemoryError",
              std::string(op) + ": /dev/shm has " + std::to_string(free >> 10) + " KiB free, and shared memory needs " +
                  std::to_string(needed >> 10) +
                  " KiB; delete files there, enlarge it (mount -o remount,size=1G /dev/shm;"
                  " docker run --shm-size), or remove posix from UCX_TLS",
              op);
}

// UCX aborts the process when it gets no pipe for its async thread (ucs_async_thread_start), which the first context or
// worker starts. So check beforehand that descriptors for a worker are available: 9 for the first, 6 for each further
// one.
void check_descriptors(const char *op) {
    constexpr int needed = 16;
    int taken[needed], count = 0;
    while (count < needed && (taken[count] = eventfd(0, EFD_CLOEXEC)) >= 0) ++count;
    const int error = count < needed ? errno : 0;
    for (int i = 0; i < count; ++i) close(taken[i]);
    if (error && error != EMFILE && error != ENFILE)
        raise("NoMemoryError", std::string(op) + ": eventfd: " + strerror(error), op);
    if (error)
        raise("NoMemoryError",
              std::string(op) + ": " + std::to_string(count) + " file descriptors are free, and a worker needs " +
                  std::to_string(needed) + "; raise the limit of open files (ulimit -n)",
              op);
}

Context::Context(nb::dict settings, nb::dict defaults, nb::handle names, uint64_t shm_nbytes)
    : features(feature_bits(names)), shm_nbytes(shm_nbytes) {
    // A context made while /dev/shm is full never uses posix.
    check_shm("Context", shm_nbytes);
    check_descriptors("Context");
    ucp_config_t *ucp_config;
    check(ucp.config_read(nullptr, nullptr, &ucp_config), "Context", ": reading UCX_* from the environment");
    struct Release {
        ucp_config_t *config;
        ~Release() { ucp.config_release(config); }
    } release{ucp_config};

    for (auto [name, value] : defaults) {
        std::string key = nb::cast<std::string>(nb::str(name)), text = nb::cast<std::string>(nb::str(value));
        if (settings.contains(name) || std::getenv(("UCX_" + key).c_str())) continue;
        modify(ucp_config, key, text);
        config[name] = nb::make_tuple(text, "weft");
    }
    for (auto [name, value] : settings) {
        std::string key = nb::cast<std::string>(nb::str(name)), text = nb::cast<std::string>(nb::str(value));
        modify(ucp_config, key, text);
        config[name] = nb::make_tuple(text, "argument");
    }
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
    params.features = features | UCP_FEATURE_STREAM;  // to detect a sender's end: reply.hpp
    // Memory is unmapped by the thread that drops it last.
    params.mt_workers_shared = (features & UCP_FEATURE_RMA) != 0;
    params.name = "weft";
    const ucs_status_t status = ucp.init_version(api_major, api_minor, &params, ucp_config, &handle);
    if (status == UCS_ERR_NO_DEVICE) refuse_devices(settings);
    check(status, "Context");
    ucp_context_attr_t attr{};
    attr.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
    check(ucp.context_query(handle, &attr), "Context");
    memory_types = attr.memory_types;
}

void Context::check_feature(uint64_t bits, const char *name, const char *op) const {
    if ((features & bits) == bits) return;
    raise("UnsupportedError",
          std::string(op) + ": this context does not have the feature; make it with weft.Context(features=[\"" + name +
              "\"])",
          op);
}

void Context::close() noexcept {
    if (handle && !in_forked_child && !lasts) ucp.cleanup(handle);
    handle = nullptr;
}

static void close_context(Context &c) {
    if (c.workers)
        raise("InvalidParamError",
              "close: workers of the context are open (" + std::to_string(c.workers) + "); close them first", "close");
    if (c.engines)
        raise("InvalidParamError", "close: memoryviews of an active message still use the context; release them first",
              "close");
    if (c.memories)
        raise("InvalidParamError",
              "close: memory of the context is mapped (" + std::to_string(c.memories) + "); close it first", "close");
    c.close();
}

void define_context(nb::module_ &m) {
    nb::class_<Context>(m, "Context", "A UCP context: the transports and devices that its workers may use.")
        .def(nb::init<nb::dict, nb::dict, nb::handle, uint64_t>(), nb::arg("settings"), nb::arg("defaults"),
             nb::arg("features"), nb::arg("shm_nbytes"),
             nb::sig("def __init__(self, settings: dict[str, str], defaults: dict[str, str], features: "
                     "collections.abc.Iterable[str], shm_nbytes: int) -> None"))
        .def(
            "__enter__", [](nb::handle self) { return nb::borrow(self); },
            nb::sig("def __enter__(self) -> typing_extensions.Self"))
        .def(
            "__exit__", [](Context &c, nb::args) { close_context(c); },
            nb::sig("def __exit__(self, *exc: object) -> None"))
        .def("close", &close_context,
             "Release the context. Idempotent.\n\nRaises\n------\nInvalidParamError\n    Workers, memories or views of "
             "its messages are still open.")
        .def_prop_ro(
            "memory_types",
            [](Context &c) {
                nb::list names;
                for (int i = 0; i < UCS_MEMORY_TYPE_LAST; ++i)
                    if (c.memory_types >> i & 1) names.append(memory_type_name(i));
                return names;
            },
            nb::sig("def memory_types(self) -> list[str]"),
            "Memory types that its transports can send from and receive into: ``host``; ``cuda`` and others with a "
            "GPU, its "
            "driver and UCX's modules for it. Source: ``ucp_context_query``.")
        .def_prop_ro(
            "features",
            [](Context &c) {
                nb::list names;
                for (const Feature &feature : known_features)
                    if ((c.features & feature.bits) == feature.bits) names.append(feature.name);
                return names;
            },
            nb::sig("def features(self) -> list[str]"), "The features that the context was made with.")
        .def_ro("config", &Context::config, nb::for_getter(nb::sig("def config(self) -> dict[str, tuple[str, str]]")),
                "Settings that the caller or weft changed: name to (value, ``argument`` or ``weft``). UCX reads "
                "``UCX_*`` itself.");
}
