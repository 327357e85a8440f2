// SPDX-License-Identifier: BSD-3-Clause
#include "operations/mem_map.hpp"

#include <unistd.h>

#include <algorithm>
#include <unordered_map>

#include "ucp/forks.hpp"

// The mapped memories of this process, by address, for keys that lead back to them.
static std::unordered_map<uint64_t, Memory *> mapped;

void Memory::unmap() noexcept {
    if (!handle || in_forked_child) return;
    auto here = mapped.find(reinterpret_cast<uint64_t>(address));
    if (here != mapped.end() && here->second == this) mapped.erase(here);
    uses->memory = nullptr;
    ucp.mem_unmap(context->handle, handle);
    handle = nullptr;
    --context->memories;
    buffer.release();
}

Rkey::Rkey(nb::object object, const RemoteKey &key)
    : endpoint_object(std::move(object)),
      endpoint(nb::inst_ptr<Endpoint>(endpoint_object)),
      address(key.address),
      nbytes(key.nbytes) {
    if (key.packed.empty()) raise("InvalidParamError", "rkey_unpack: the key is empty", "rkey_unpack");
    const ucs_status_t status = ucp.ep_rkey_unpack(endpoint->handle, key.packed.data(), &handle);
    if (status == UCS_ERR_SHMEM_SEGMENT)
        raise("UnreachableError", "rkey_unpack: that memory has gone: its owner has closed it, or has ended",
              "rkey_unpack");
    check(status, "rkey_unpack", ": no transport of the endpoint reaches that memory");
    endpoint->worker->add_dependent(keys_stand, this,
                                    [](void *each, int64_t) noexcept { static_cast<Rkey *>(each)->destroy(); });
}

void Rkey::destroy() noexcept {
    if (handle) ucp.rkey_destroy(handle);
    handle = nullptr;
}

Rkey::~Rkey() {
    Worker *worker = endpoint->worker;
    worker->remove_dependent(keys_stand, this);
    if (!handle || in_forked_child || worker->closed()) return;
    worker->defer([w = worker, key = handle] {
        if (!w->closed()) ucp.rkey_destroy(key);
    });
}

namespace {

nb::object map(nb::handle context_handle, ucp_mem_map_params_t &params, nb::handle buffer, const char *op) {
    auto *context = nb::inst_ptr<Context>(context_handle);
    if (!context->handle) raise("ClosedError", std::string(op) + ": the context is closed", op);
    if (in_forked_child)
        raise("ThreadError",
              std::string(op) +
                  ": this process was forked from one that uses weft and cannot use weft itself; start processes with "
                  "spawn or forkserver",
              op);
    context->check_feature(UCP_FEATURE_RMA, "rma", op);
    nb::object object = nb::inst_alloc(nb::type<Memory>());
    auto *memory = new (nb::inst_ptr<Memory>(object)) Memory(nb::borrow(context_handle));
    nb::inst_mark_ready(object);
    params.field_mask |=
        UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
    params.memory_type = UCS_MEMORY_TYPE_HOST;
    if (buffer.is_valid()) {
        memory->buffer.acquire(buffer, true, op, context->memory_types);
        if (!context->handle) raise("ClosedError", std::string(op) + ": the context is closed", op);
        params.memory_type = memory->buffer.memory_type;
        params.address = memory->buffer.data();
        params.length = memory->buffer.nbytes();
    }
    if (!params.length) raise("InvalidParamError", std::string(op) + ": the memory must have at least 1 B", op);
    check(ucp.mem_map(context->handle, &params, &memory->handle), op, " of " + std::to_string(params.length) + " B");
    ++context->memories;
    memory->allocated = !buffer.is_valid();
    memory->nbytes = params.length;
    ucp_mem_attr_t attributes{};
    attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
    check(ucp.mem_query(memory->handle, &attributes), op);
    memory->address = attributes.address;
    memory->uses->memory = object.ptr();
    mapped[reinterpret_cast<uint64_t>(memory->address)] = memory;
    return object;
}

nb::object mem_map(nb::handle context, nb::handle buffer) {
    ucp_mem_map_params_t params{};
    return map(context, params, buffer, "mem_map");
}

size_t most_nbytes() {
    return size_t(sysconf(_SC_PHYS_PAGES)) * size_t(sysconf(_SC_PAGESIZE));
}

nb::object mem_alloc(nb::handle context, size_t nbytes) {
    // UCX would fill /dev/shm to the last page before it notices that space is short.
    if (nb::inst_ptr<Context>(context)->shm_nbytes) check_shm("mem_alloc", nbytes);
    if (nbytes > most_nbytes())
        raise("NoMemoryError", "mem_alloc: " + std::to_string(nbytes) + " B is more than the machine's memory",
              "mem_alloc");
    ucp_mem_map_params_t params{};
    params.field_mask = UCP_MEM_MAP_PARAM_FIELD_FLAGS;
    params.flags = UCP_MEM_MAP_ALLOCATE;
    params.length = nbytes;
    return map(context, params, {}, "mem_alloc");
}

RemoteKey pack(const Memory &memory) {
    if (!memory.handle) raise("ClosedError", "rkey_pack: the memory is closed", "rkey_pack");
    void *packed;
    size_t nbytes;
    check(ucp.rkey_pack(memory.context->handle, memory.handle, &packed, &nbytes), "rkey_pack");
    RemoteKey key{reinterpret_cast<uint64_t>(memory.address), memory.nbytes,
                  std::string(static_cast<const char *>(packed), nbytes)};
    ucp.rkey_buffer_release(packed);
    return key;
}

nb::object unpack(EndpointSelf self, const RemoteKey &key) {
    Endpoint *e = usable(self, "rkey_unpack");
    nb::inst_ptr<Context>(e->worker->context)->check_feature(UCP_FEATURE_RMA, "rma", "rkey_unpack");
    nb::object object = nb::inst_alloc(nb::type<Rkey>());
    auto *rkey = new (nb::inst_ptr<Rkey>(object)) Rkey(nb::borrow(self.h), key);
    nb::inst_mark_ready(object);
    // Another process may have memory at the same address.
    auto here = mapped.find(key.address);
    if (here != mapped.end() && pack(*here->second).packed == key.packed) rkey->uses = here->second->uses;
    return object;
}

int get_buffer(PyObject *self, Py_buffer *view, int flags) {
    auto *memory = nb::inst_ptr<Memory>(self);
    if (!memory->handle) {
        PyErr_SetString(PyExc_BufferError, "the memory is closed");
        view->obj = nullptr;
        return -1;
    }
    if (PyBuffer_FillInfo(view, self, memory->address, Py_ssize_t(memory->nbytes), 0, flags) != 0) return -1;
    ++memory->exports;
    return 0;
}

void release_buffer(PyObject *self, Py_buffer *) {
    --nb::inst_ptr<Memory>(self)->exports;
}

PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void *>(get_buffer)},
                       {Py_bf_releasebuffer, reinterpret_cast<void *>(release_buffer)},
                       {0, nullptr}};

PyType_Slot rkey_slots[] = {{Py_tp_traverse, reinterpret_cast<void *>(traverse<Rkey, &Rkey::endpoint_object>)},
                            {0, nullptr}};

void close_memory(Memory &memory) {
    if (memory.exports)
        raise("InvalidParamError", "close: a memoryview of the memory is still in use; release it first", "close");
    // What a closed worker had under way is over, or is never progressed again.
    if (std::ranges::any_of(memory.uses->reading, [](const Worker *each) { return !each->closed(); }))
        raise("InvalidParamError",
              "close: a get or an atomic operation on the memory is under way in this process; wait for it first",
              "close");
    if (memory.uses->writing)
        raise("InvalidParamError",
              "close: this process has written to the memory with put or an atomic operation, which may still be under "
              "way; wait for a flush of its endpoint or worker first",
              "close");
    memory.unmap();
}

constexpr const char *map_doc = R"(Let peers that have its key read and write `buffer`.

Parameters
----------
buffer : writable contiguous buffer, any shape
    Locked until the memory is closed. Peers may change it at any time.

Returns
-------
Memory

Raises
------
UnsupportedError
    The context was made without the feature ``rma``.
ReadOnlyError, NotContiguousError
    weft cannot write to `buffer` in place.

Source: ``ucp_mem_map``.)";

constexpr const char *alloc_doc = R"(Allocate memory that peers with its key may read and write.

Parameters
----------
nbytes : int
    At least 1. ``memoryview(memory)`` is the memory itself, writable.

Returns
-------
Memory

Raises
------
UnsupportedError
    The context was made without the feature ``rma``.
NoMemoryError
    The memory cannot be allocated.

Source: ``ucp_mem_map`` with ``UCP_MEM_MAP_ALLOCATE``.)";

constexpr const char *key_doc =
    R"(The key with which a peer reaches a :class:`Memory`. It can be pickled.

Give it only to peers that you trust: whoever has it can read and write the memory while it is mapped. Accept keys
only from peers that you trust: UCX parses them unchecked.)";

constexpr const char *close_doc = R"(Unmap the memory: its keys become invalid, and its buffer is unlocked. Idempotent.

No operation of another process may be under way: this side does not know of them, and what they write then goes to
memory that is no longer there, which may end this process. So have every peer flush its endpoint and say so, or close
the workers by which they reach this process.

Raises
------
InvalidParamError
    A memoryview of the memory is in use, or an operation of this process on the memory may be under way. Nothing was
    unmapped.

Source: ``ucp_mem_unmap``.)";

constexpr const char *unpack_doc = R"(Make a peer's key usable with this endpoint.

Parameters
----------
key : RemoteKey
    A key to memory of the peer that this endpoint is connected to.

Returns
-------
Rkey
    For :meth:`put`, :meth:`get` and :meth:`atomic_op`.

Raises
------
UnreachableError
    No transport of the endpoint reaches that memory.

Source: ``ucp_ep_rkey_unpack``.)";

}  // namespace

void define_memory(nb::module_ &m, nb::class_<Endpoint> &endpoint) {
    nb::class_<RemoteKey>(m, "RemoteKey", key_doc)
        .def(
            "__init__",
            [](RemoteKey *key, uint64_t address, size_t nbytes, nb::bytes packed) {
                new (key) RemoteKey{address, nbytes, std::string(packed.c_str(), packed.size())};
            },
            nb::arg("address"), nb::arg("nbytes"), nb::arg("packed"))
        .def_ro("address", &RemoteKey::address, "Address of the memory in its owner's process.")
        .def_ro("nbytes", &RemoteKey::nbytes, "Length of the memory in bytes.")
        .def_prop_ro(
            "packed", [](const RemoteKey &key) { return nb::bytes(key.packed.data(), key.packed.size()); },
            "The key as UCX packs it; a copy. Its length depends on the transports.")
        .def(
            "__reduce__",
            [](nb::handle self) {
                return nb::make_tuple(self.type(),
                                      nb::make_tuple(self.attr("address"), self.attr("nbytes"), self.attr("packed")));
            },
            nb::sig("def __reduce__(self) -> tuple[type[RemoteKey], tuple[int, int, bytes]]"));
    nb::class_<Memory>(m, "Memory", nb::type_slots(slots), nb::is_weak_referenceable(),
                       "Memory that peers may read and write. Made by :meth:`Context.mem_map` and "
                       ":meth:`Context.mem_alloc`. It supports the buffer protocol.")
        .def_prop_ro(
            "address", [](const Memory &memory) { return reinterpret_cast<uintptr_t>(memory.address); },
            "Address of the memory in this process.")
        .def_ro("nbytes", &Memory::nbytes, "Length of the memory in bytes.")
        .def("rkey_pack", &pack, "Return the key with which a peer reaches this memory. Source: ``ucp_rkey_pack``.")
        .def("close", &close_memory, close_doc)
        .def_prop_ro(
            "closed", [](const Memory &memory) { return !memory.handle; }, "Whether the memory was unmapped.")
        .def(
            "__enter__", [](nb::handle self) { return nb::borrow(self); }, nb::sig("def __enter__(self) -> Memory"))
        .def(
            "__exit__", [](Memory &memory, nb::args) { close_memory(memory); },
            nb::sig("def __exit__(self, *exc: object) -> None"));
    nb::class_<Rkey>(m, "Rkey", nb::type_slots(rkey_slots),
                     "A peer's memory, accessible through one endpoint. Made by :meth:`Endpoint.rkey_unpack`.")
        .def_ro("address", &Rkey::address, "Address of the memory in its owner's process.")
        .def_ro("nbytes", &Rkey::nbytes, "Length of the memory in bytes.");
    endpoint.def("rkey_unpack", &unpack, nb::arg("key"), nb::sig("def rkey_unpack(self, key: RemoteKey) -> Rkey"),
                 unpack_doc);
    nb::handle context = nb::type<Context>();
    nb::borrow<nb::class_<Context>>(context)
        .def("mem_map", &mem_map, nb::arg("buffer"),
             nb::sig("def mem_map(self, buffer: weft.typing.BufferLike) -> Memory"), map_doc)
        .def("mem_alloc", &mem_alloc, nb::arg("nbytes"), nb::sig("def mem_alloc(self, nbytes: int) -> Memory"),
             alloc_doc);
}
