// SPDX-License-Identifier: BSD-3-Clause
// weft-pingpong: one of the two processes of the C loop that `weft bench pingpong` measures weft against.
// Nothing of weft is in it: it opens the libucp that it is given and spins, so what it takes is what UCX takes.
//
//   weft-pingpong LIBUCP ping|pong NBYTES LIMIT_S CONTROL_FD [NAME=VALUE...]
//
// It speaks over CONTROL_FD, a socket to its parent, as the Python children do (loops.py):
//   out  the address of its worker, in hexadecimal, and a newline
//   in   the address of the other's, and a newline
//   out  after a first exchange: the lanes of its endpoint, "posix/memory,tcp/lo", and a newline
//   in   a count and a newline: that many stamps and one before them, which waits for the other to wake
//   out  "ping" only: the count's durations of a stamp (one round trip, ten up to 8 KiB), int64 nanoseconds
//   in   end of file: close and end
//
// libucp is opened, not linked, so that one binary serves every UCX from 1.16 on, the one that weft itself found.

#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <ucp/api/ucp.h>
#include <unistd.h>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

// UCX's structs name the fields that count in a mask; leaving out the others is how they are meant to be filled.
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

namespace {

constexpr ucp_tag_t tag = 0x77656674;
constexpr unsigned char fill = 0x5a;
constexpr unsigned most_lanes = 64;

/// Round trips for each reading of the clock, as in weft/bench/common/child.py.
constexpr size_t trips_of(size_t nbytes) noexcept {
    return nbytes <= 8192 ? 10 : 1;
}

[[noreturn, gnu::format(printf, 1, 2)]] void fail(const char *format, ...) noexcept {
    va_list arguments;
    va_start(arguments, format);
    std::fputs("weft-pingpong: ", stderr);
    std::vfprintf(stderr, format, arguments);
    std::fputc('\n', stderr);
    va_end(arguments);
    // Not exit(): it would run UCX's destructors, and this may be one of UCX's callbacks.
    std::fflush(nullptr);
    _exit(1);
}

/// Owns nothing: the library stays open for the life of the process.
struct Ucp {
    decltype(&ucp_config_read) config_read;
    decltype(&ucp_config_modify) config_modify;
    decltype(&ucp_config_release) config_release;
    decltype(&ucp_init_version) init_version;
    decltype(&ucp_cleanup) cleanup;
    decltype(&ucp_worker_create) worker_create;
    decltype(&ucp_worker_destroy) worker_destroy;
    decltype(&ucp_worker_get_address) worker_get_address;
    decltype(&ucp_worker_release_address) worker_release_address;
    decltype(&ucp_worker_progress) worker_progress;
    decltype(&ucp_ep_create) ep_create;
    decltype(&ucp_ep_close_nbx) ep_close_nbx;
    decltype(&ucp_ep_query) ep_query;
    decltype(&ucp_tag_send_nbx) tag_send_nbx;
    decltype(&ucp_tag_recv_nbx) tag_recv_nbx;
    decltype(&ucp_request_check_status) request_check_status;
    decltype(&ucp_request_free) request_free;
    decltype(&ucs_status_string) status_string;

    explicit Ucp(const char *path) {
        library_ = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (library_ == nullptr) fail("%s", dlerror());
        find(&config_read, "ucp_config_read");
        find(&config_modify, "ucp_config_modify");
        find(&config_release, "ucp_config_release");
        find(&init_version, "ucp_init_version");
        find(&cleanup, "ucp_cleanup");
        find(&worker_create, "ucp_worker_create");
        find(&worker_destroy, "ucp_worker_destroy");
        find(&worker_get_address, "ucp_worker_get_address");
        find(&worker_release_address, "ucp_worker_release_address");
        find(&worker_progress, "ucp_worker_progress");
        find(&ep_create, "ucp_ep_create");
        find(&ep_close_nbx, "ucp_ep_close_nbx");
        find(&ep_query, "ucp_ep_query");
        find(&tag_send_nbx, "ucp_tag_send_nbx");
        find(&tag_recv_nbx, "ucp_tag_recv_nbx");
        find(&request_check_status, "ucp_request_check_status");
        find(&request_free, "ucp_request_free");
        // libucs came in as libucp's dependency, and dlsym on libucp's handle looks there too.
        find(&status_string, "ucs_status_string");
    }

    void check(ucs_status_t status, const char *op) const noexcept {
        if (status != UCS_OK) fail("%s: %s", op, status_string(status));
    }

  private:
    /// `slot` points to a pointer to a function.
    void find(void *slot, const char *symbol) const noexcept {
        void *function = dlsym(library_, symbol);
        if (function == nullptr) fail("%s", dlerror());
        std::memcpy(slot, &function, sizeof function);
    }

    void *library_;
};

/// Owns the socket to the parent.
struct Control {
    int fd;

    ~Control() { close(fd); }

    /// The next line without its newline; empty at end of file, which is how the parent says that it is over.
    std::string read_line() const {
        std::string line;
        for (char c;;) {
            const ssize_t n = read(fd, &c, 1);
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) return {};
            if (c == '\n') return line;
            line += c;
        }
    }

    void write_all(std::string_view bytes) const noexcept {
        while (!bytes.empty()) {
            const ssize_t n = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
            if (n < 0 && errno == EINTR) continue;
            if (n < 0) fail("write to the parent: %s", std::strerror(errno));
            bytes.remove_prefix(static_cast<size_t>(n));
        }
    }
};

/// Owns pages of its own, faulted in before anything is timed.
struct Buffer {
    unsigned char *data;
    size_t nbytes;

    explicit Buffer(size_t nbytes_) : nbytes{nbytes_} {
        void *pages = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        if (pages == MAP_FAILED) fail("mmap of %zu B: %s", nbytes, std::strerror(errno));
        data = static_cast<unsigned char *>(pages);
    }
    ~Buffer() { munmap(data, nbytes); }
    Buffer(const Buffer &) = delete;
};

/// Owns the context, the worker and the endpoint to the other process.
struct Peer {
    const Ucp &ucp;
    ucp_context_h context = nullptr;
    ucp_worker_h worker = nullptr;
    ucp_ep_h endpoint = nullptr;
    bool closing = false;

    Peer(const Ucp &ucp_, char **settings, int count) : ucp{ucp_} {
        ucp_config_t *config;
        ucp.check(ucp.config_read(nullptr, nullptr, &config), "ucp_config_read");
        for (int i = 0; i < count; ++i) {
            const std::string setting = settings[i];
            const size_t equals = setting.find('=');
            if (equals == std::string::npos) fail("%s is not NAME=VALUE", settings[i]);
            const std::string name = setting.substr(0, equals), value = setting.substr(equals + 1);
            ucp.check(ucp.config_modify(config, name.c_str(), value.c_str()), settings[i]);
        }
        const ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG};
        ucp.check(ucp.init_version(1, 16, &params, config, &context), "ucp_init");
        ucp.config_release(config);
        const ucp_worker_params_t single = {
            .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
            .thread_mode = UCS_THREAD_MODE_SINGLE,
        };
        ucp.check(ucp.worker_create(context, &single, &worker), "ucp_worker_create");
    }

    ~Peer() {
        closing = true;
        if (endpoint != nullptr) {
            // The other side closes at the same moment and may be gone: how this ends says nothing.
            const ucp_request_param_t flush = {};
            void *request = ucp.ep_close_nbx(endpoint, &flush);
            while (UCS_PTR_IS_PTR(request) && ucp.request_check_status(request) == UCS_INPROGRESS)
                ucp.worker_progress(worker);
            if (UCS_PTR_IS_PTR(request)) ucp.request_free(request);
        }
        ucp.worker_destroy(worker);
        ucp.cleanup(context);
    }
    Peer(const Peer &) = delete;

    std::string address() const {
        ucp_address_t *address;
        size_t nbytes;
        ucp.check(ucp.worker_get_address(worker, &address, &nbytes), "ucp_worker_get_address");
        std::string text;
        for (size_t i = 0; i < nbytes; ++i) {
            char digits[3];
            std::snprintf(digits, sizeof digits, "%02x", reinterpret_cast<const unsigned char *>(address)[i]);
            text += digits;
        }
        ucp.worker_release_address(worker, address);
        return text;
    }

    void connect(const std::string &text) {
        std::vector<unsigned char> address(text.size() / 2);
        for (size_t i = 0; i < address.size(); ++i)
            address[i] = static_cast<unsigned char>(std::stoul(text.substr(2 * i, 2), nullptr, 16));
        const ucp_ep_params_t params = {
            .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                          UCP_EP_PARAM_FIELD_ERR_HANDLER,
            .address = reinterpret_cast<const ucp_address_t *>(address.data()),
            .err_mode = UCP_ERR_HANDLING_MODE_PEER,
            .err_handler = {.cb = lost, .arg = this},
        };
        ucp.check(ucp.ep_create(worker, &params, &endpoint), "ucp_ep_create");
    }

    std::string lanes() const {
        ucp_transport_entry_t entries[most_lanes];
        ucp_ep_attr_t attr = {
            .field_mask = UCP_EP_ATTR_FIELD_TRANSPORTS,
            .transports = {.entries = entries, .num_entries = most_lanes, .entry_size = sizeof entries[0]},
        };
        ucp.check(ucp.ep_query(endpoint, &attr), "ucp_ep_query");
        std::string text;
        for (unsigned i = 0; i < attr.transports.num_entries; ++i)
            text.append(i ? "," : "").append(entries[i].transport_name).append("/").append(entries[i].device_name);
        return text;
    }

    /// A receive that nobody matched yet would wait for ever: the lost peer has to end the process itself.
    static void lost(void *self, ucp_ep_h, ucs_status_t status) noexcept {
        const Peer &peer = *static_cast<Peer *>(self);
        if (!peer.closing) fail("the other side was lost: %s", peer.ucp.status_string(status));
    }
};

/// Owns nothing: one side of the exchange, over buffers that are used again and again.
struct Loop {
    const Ucp &ucp;
    const Peer &peer;
    const Buffer &out;
    Buffer &into;
    // What the buffers are is known: UCX need not look it up for every message.
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        .memory_type = UCS_MEMORY_TYPE_HOST,
    };

    void *send() const noexcept { return ucp.tag_send_nbx(peer.endpoint, out.data, out.nbytes, tag, &param); }

    void *recv() const noexcept {
        return ucp.tag_recv_nbx(peer.worker, into.data, into.nbytes, tag, UINT64_MAX, &param);
    }

    void wait(void *request, const char *op) const noexcept {
        if (request == nullptr) return;
        if (UCS_PTR_IS_ERR(request)) fail("%s: %s", op, ucp.status_string(UCS_PTR_STATUS(request)));
        ucs_status_t status;
        while ((status = ucp.request_check_status(request)) == UCS_INPROGRESS) ucp.worker_progress(peer.worker);
        ucp.request_free(request);
        ucp.check(status, op);
    }

    /// The receive is posted while the message travels, so that posting it costs no latency.
    void exchange() const noexcept {
        wait(send(), "ucp_tag_send_nbx");
        wait(recv(), "ucp_tag_recv_nbx");
    }

    void pong(size_t count) const noexcept {
        for (size_t i = 0; i < count; ++i) {
            wait(recv(), "ucp_tag_recv_nbx");
            wait(send(), "ucp_tag_send_nbx");
        }
    }

    void ping(std::vector<int64_t> &stamps) const noexcept {
        const size_t trips = trips_of(out.nbytes);
        for (int64_t &stamp : stamps) {
            for (size_t i = 0; i < trips; ++i) exchange();
            timespec now;
            clock_gettime(CLOCK_MONOTONIC, &now);
            stamp = now.tv_sec * INT64_C(1'000'000'000) + now.tv_nsec;
        }
    }
};

}  // namespace

int main(int argc, char **argv) {
    if (argc < 6) fail("usage: weft-pingpong LIBUCP ping|pong NBYTES LIMIT_S CONTROL_FD [NAME=VALUE...]");
    const bool pings = std::strcmp(argv[2], "ping") == 0;
    // The parent may be killed while this spins: whatever happens, it ends.
    alarm(static_cast<unsigned>(std::strtoul(argv[4], nullptr, 10)));
    const Control control{std::atoi(argv[5])};
    const size_t nbytes = std::strtoull(argv[3], nullptr, 10);
    if (nbytes == 0) fail("a message has at least one byte");

    const Ucp ucp{argv[1]};
    Buffer out{nbytes}, into{nbytes};
    std::memset(out.data, fill, nbytes);
    Peer peer{ucp, argv + 6, argc - 6};
    control.write_all(peer.address() + "\n");
    const std::string address = control.read_line();
    if (address.empty()) return 0;
    peer.connect(address);

    const Loop loop{.ucp = ucp, .peer = peer, .out = out, .into = into};
    std::vector<int64_t> first(1);
    pings ? loop.ping(first) : loop.pong(trips_of(nbytes));
    if (into.data[nbytes - 1] != fill) fail("the message that arrived is not the one that was sent");
    control.write_all(peer.lanes() + "\n");

    for (std::string line; !(line = control.read_line()).empty();) {
        const size_t count = std::stoull(line);
        if (!pings) {
            loop.pong((count + 1) * trips_of(nbytes));
            continue;
        }
        std::vector<int64_t> stamps(count + 1);
        loop.ping(stamps);
        for (size_t i = 0; i < count; ++i) stamps[i] = stamps[i + 1] - stamps[i];
        control.write_all({reinterpret_cast<const char *>(stamps.data()), count * sizeof stamps[0]});
    }
    return 0;
}
