// SPDX-License-Identifier: BSD-3-Clause
// Arrow takes a memory pool that is a C++ object, and weft is not linked against Arrow, whose versions differ in the
// order of that object's virtual functions (`PrintStats` came in their midst). So the object is one of Arrow's own, a
// ProxyMemoryPool before its default pool, with a copy of that class's table, in which the functions that allocate are
// found by what they point to and replaced. What is not found leaves Arrow as it is.
#include "shared/arrow_allocator.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>
#include <vector>

#include "ucp/forks.hpp"

namespace {

// As arrow::Status, a class with a destructor that holds one pointer, null for success: it is returned through memory.
struct Status {
    void *state = nullptr;
    Status() = default;
    Status(Status &&other) noexcept : state(other.state) {}
    ~Status() {}
};

using Allocate = Status (*)(void *self, int64_t nbytes, int64_t alignment, uint8_t **out);
using Reallocate = Status (*)(void *self, int64_t old_nbytes, int64_t nbytes, int64_t alignment, uint8_t **data);
using Free = void (*)(void *self, uint8_t *data, int64_t nbytes, int64_t alignment);
using Count = int64_t (*)(const void *self);

Allocate plain_allocate;
Reallocate plain_reallocate;
Free plain_free;
Count plain_count;
std::atomic<int64_t> in_pool{0};  // bytes, as Arrow counts its own

constexpr int64_t pool_alignment = 4096;

bool may_be_pooled(const uint8_t *data) noexcept {
    return reinterpret_cast<uintptr_t>(data) % pool_alignment == 0;
}

uint8_t *acquire(int64_t nbytes, int64_t alignment) noexcept {
    if (nbytes < int64_t(Pool::page_threshold) || alignment > pool_alignment) return nullptr;
    auto *data = static_cast<uint8_t *>(Pool::acquire(size_t(nbytes), false));
    if (data) in_pool += nbytes;
    return data;
}

Status allocate(void *self, int64_t nbytes, int64_t alignment, uint8_t **out) {
    uint8_t *data = acquire(nbytes, alignment);
    if (!data) return plain_allocate(self, nbytes, alignment, out);
    *out = data;
    return {};
}

void release(void *self, uint8_t *data, int64_t nbytes, int64_t alignment) {
    if (may_be_pooled(data) && Pool::release(data))
        in_pool -= nbytes;
    else
        plain_free(self, data, nbytes, alignment);
}

// What Arrow builds doubles as it grows, and is cut to its size in the end.
Status reallocate(void *self, int64_t old_nbytes, int64_t nbytes, int64_t alignment, uint8_t **data) {
    const size_t have = may_be_pooled(*data) ? Pool::size_of(*data) : 0;
    if (!have && nbytes < int64_t(Pool::page_threshold))
        return plain_reallocate(self, old_nbytes, nbytes, alignment, data);
    if (size_t(nbytes) <= have && size_t(nbytes) > have / 2) {
        in_pool += nbytes - old_nbytes;
        return {};
    }
    uint8_t *moved = acquire(nbytes, alignment);
    if (!moved && !have) return plain_reallocate(self, old_nbytes, nbytes, alignment, data);
    if (!moved) {
        Status status = plain_allocate(self, nbytes, alignment, &moved);
        if (status.state) return status;
    }
    std::memcpy(moved, *data, size_t(std::min(old_nbytes, nbytes)));
    release(self, *data, old_nbytes, alignment);
    *data = moved;
    return {};
}

int64_t count(const void *self) {
    return plain_count(self) + in_pool;
}

// pyarrow's module, in whose dependencies all of Arrow is found.
void *open_library(const char *path) {
    void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    if (!library) raise("UnsupportedError", std::string("arrow_in_pool: ") + path + " is not loaded", "arrow_in_pool");
    return library;
}

void *find(void *library, const char *name) {
    void *symbol = dlsym(library, name);
    if (!symbol)
        raise("UnsupportedError", std::string("arrow_in_pool: this build of Arrow has no ") + name, "arrow_in_pool");
    return symbol;
}

/// Owns nothing: what it points to is Arrow's, or never freed, because buffers may outlive static destructors.
struct Arrow {
    using SetDefault = void (*)(void *pool);
    using GetPool = void *(*)();

    SetDefault set_default;
    GetPool python_pool, default_pool;
    void *pool;

    explicit Arrow(void *library)
        : set_default(SetDefault(find(library, "_ZN5arrow2py23set_default_memory_poolEPNS_10MemoryPoolE"))),
          python_pool(GetPool(find(library, "_ZN5arrow2py15get_memory_poolEv"))),
          default_pool(GetPool(find(library, "_ZN5arrow19default_memory_poolEv"))),
          pool(make_pool(library)) {}

  private:
    static constexpr size_t proxy_nbytes = 256;  // a ProxyMemoryPool has two pointers
    static constexpr uintptr_t unwritten = 0x5a5a;

    void *make_pool(void *library) {
        auto **table = static_cast<void **>(find(library, "_ZTVN5arrow15ProxyMemoryPoolE"));
        Dl_info info;
        const ElfW(Sym) *symbol = nullptr;
        if (!dladdr1(table, &info, reinterpret_cast<void **>(const_cast<ElfW(Sym) **>(&symbol)), RTLD_DL_SYMENT) ||
            !symbol)
            raise("UnsupportedError", "arrow_in_pool: the size of ProxyMemoryPool's table is not known",
                  "arrow_in_pool");
        auto *copy = new std::vector<void *>(table, table + symbol->st_size / sizeof(void *));
        auto replace = [&](const char *name, auto ours, auto *plain) {
            void *theirs = find(library, name);
            auto slot = std::find(copy->begin(), copy->end(), theirs);
            if (slot == copy->end())
                raise("UnsupportedError", std::string("arrow_in_pool: ProxyMemoryPool's table has no ") + name,
                      "arrow_in_pool");
            *plain = reinterpret_cast<decltype(ours)>(theirs);
            *slot = reinterpret_cast<void *>(ours);
        };
        replace("_ZN5arrow15ProxyMemoryPool8AllocateEllPPh", &allocate, &plain_allocate);
        replace("_ZN5arrow15ProxyMemoryPool10ReallocateElllPPh", &reallocate, &plain_reallocate);
        replace("_ZN5arrow15ProxyMemoryPool4FreeEPhll", &release, &plain_free);
        replace("_ZNK5arrow15ProxyMemoryPool15bytes_allocatedEv", &count, &plain_count);
        auto **proxy = static_cast<void **>(std::calloc(1, proxy_nbytes));
        reinterpret_cast<void (*)(void *, void *)>(find(library, "_ZN5arrow15ProxyMemoryPoolC1EPNS_10MemoryPoolE"))(
            proxy, default_pool());
        check_status(proxy);
        proxy[0] = copy->data() + 2;  // past the offset to the top and the type
        return proxy;
    }

    // How large a Status is no symbol tells: what Arrow returns must fill one word, and no more.
    static void check_status(void *proxy) {
        struct Returned {
            uintptr_t words[8];
            ~Returned() {}
        };
        alignas(Returned) volatile uintptr_t words[8];
        std::fill(std::begin(words), std::end(words), unwritten);
        uint8_t *data = nullptr;
        auto *allocate_into = reinterpret_cast<Returned (*)(void *, int64_t, int64_t, uint8_t **)>(
            reinterpret_cast<void *>(plain_allocate));
        ::new (const_cast<uintptr_t *>(words)) Returned(allocate_into(proxy, 64, 64, &data));
        if (words[0] || std::count(words + 1, std::end(words), unwritten) != 7)
            raise("UnsupportedError", "arrow_in_pool: this build of Arrow has another Status", "arrow_in_pool");
        plain_free(proxy, data, 64, 64);
    }
};

// pyarrow's default pool is the process's, not a context's. One that the user has set stays.
bool arrow_in_pool(bool on, const char *path) {
    static Arrow *arrow = nullptr;
    if (!arrow) arrow = new Arrow(open_library(path));
    watch_forks();
    void *before = arrow->python_pool();
    if (before == (on ? arrow->default_pool() : arrow->pool))
        arrow->set_default(on ? arrow->pool : arrow->default_pool());
    return before == arrow->pool;
}

}  // namespace

void define_arrow_allocator(nb::module_ &m) {
    m.def("arrow_in_pool", &arrow_in_pool, nb::arg("on"), nb::arg("library"),
          R"(Have pyarrow allocate buffers of 64 KiB and more in the pool, in all of this process.

`library` is the path of the module ``pyarrow.lib``, which must be loaded. Return the previous setting. Existing buffers
stay where they are, and so does a pool that was given to ``pyarrow.set_memory_pool``.)");
}
