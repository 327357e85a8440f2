// SPDX-License-Identifier: BSD-3-Clause
// Arrow's default pool is a C++ object, and weft is not linked against Arrow, whose versions differ in the order of
// that object's virtual functions (`PrintStats` came in their midst). So the object gets a copy of its own table, in
// which the functions that allocate are replaced. Their places are those in the table of ProxyMemoryPool, a class with
// the same base, where they are found by the addresses of its functions, which are exported. What is not found leaves
// Arrow as it is. A pool of weft's own, set as pyarrow's default, is not enough: a file's reader takes temporary memory
// from Arrow's default pool, which keeps it when it is free, beside what weft's pool has for the results.
#include "shared/arrow_allocator.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <new>
#include <vector>

#include "ring/copy.hpp"
#include "shared/shared_file.hpp"
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
std::atomic<bool> is_on{false};

constexpr int64_t pool_alignment = 4096;

bool may_be_pooled(const uint8_t *data) noexcept {
    return reinterpret_cast<uintptr_t>(data) % pool_alignment == 0;
}

uint8_t *acquire(int64_t nbytes, int64_t alignment) noexcept {
    if (!is_on || nbytes < int64_t(Pool::page_threshold) || alignment > pool_alignment) return nullptr;
    auto *data = static_cast<uint8_t *>(Pool::acquire(size_t(nbytes), false, SharedFile::small_pages_are_slow()));
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
    copy_bytes(moved, *data, size_t(std::min(old_nbytes, nbytes)));
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

// How large a Status is no symbol tells: what Arrow returns must fill one word, and no more.
void check_status(void *pool) {
    struct Returned {
        uintptr_t words[8];
        ~Returned() {}
    };
    constexpr uintptr_t unwritten = 0x5a5a;
    alignas(Returned) volatile uintptr_t words[8];
    std::fill(std::begin(words), std::end(words), unwritten);
    uint8_t *data = nullptr;
    auto *allocate_into =
        reinterpret_cast<Returned (*)(void *, int64_t, int64_t, uint8_t **)>(reinterpret_cast<void *>(plain_allocate));
    ::new (const_cast<uintptr_t *>(words)) Returned(allocate_into(pool, 64, 64, &data));
    if (words[0] || std::count(words + 1, std::end(words), unwritten) != 7)
        raise("UnsupportedError", "arrow_in_pool: this build of Arrow has another Status", "arrow_in_pool");
    plain_free(pool, data, 64, 64);
}

// For good: buffers that exist are freed through this table, whether the pool is on or off.
void replace_functions(void *library) {
    auto default_pool = reinterpret_cast<void *(*)()>(find(library, "_ZN5arrow19default_memory_poolEv"));
    auto **known = static_cast<void **>(find(library, "_ZTVN5arrow15ProxyMemoryPoolE"));
    Dl_info info;
    const ElfW(Sym) *symbol = nullptr;
    if (!dladdr1(known, &info, reinterpret_cast<void **>(const_cast<ElfW(Sym) **>(&symbol)), RTLD_DL_SYMENT) || !symbol)
        raise("UnsupportedError", "arrow_in_pool: the size of ProxyMemoryPool's table is not known", "arrow_in_pool");
    const size_t slots = symbol->st_size / sizeof(void *);
    auto *pool = static_cast<std::atomic<void **> *>(default_pool());
    void **theirs = pool->load() - 2;  // with the offset to the top and the type
    auto table = std::make_unique<std::vector<void *>>(theirs, theirs + slots);
    auto replace = [&](const char *name, auto ours, auto *plain) {
        void **slot = std::find(known, known + slots, find(library, name));
        if (slot == known + slots)
            raise("UnsupportedError", std::string("arrow_in_pool: ProxyMemoryPool's table has no ") + name,
                  "arrow_in_pool");
        *plain = reinterpret_cast<decltype(ours)>(theirs[slot - known]);
        (*table)[size_t(slot - known)] = reinterpret_cast<void *>(ours);
    };
    replace("_ZN5arrow15ProxyMemoryPool8AllocateEllPPh", &allocate, &plain_allocate);
    replace("_ZN5arrow15ProxyMemoryPool10ReallocateElllPPh", &reallocate, &plain_reallocate);
    replace("_ZN5arrow15ProxyMemoryPool4FreeEPhll", &release, &plain_free);
    replace("_ZNK5arrow15ProxyMemoryPool15bytes_allocatedEv", &count, &plain_count);
    check_status(pool);
    pool->store(table.release()->data() + 2);  // never freed, because the pool is not
}

// The pool is the process's, not a context's. One that the user gives to pyarrow stays.
bool arrow_in_pool(bool on, const char *path) {
    static bool replaced = false;
    if (!replaced) replace_functions(open_library(path));
    replaced = true;
    watch_forks();
    return is_on.exchange(on);
}

}  // namespace

void define_arrow_allocator(nb::module_ &m) {
    // Have Arrow allocate buffers of 64 KiB and more in the pool, in all of this process. `library` is the path of the
    // module ``pyarrow.lib``, which must be loaded. Return the previous setting. Existing buffers stay where they are,
    // and so does a pool that was given to ``pyarrow.set_memory_pool``.
    m.def("arrow_in_pool", &arrow_in_pool, nb::arg("on"), nb::arg("library"));
}
