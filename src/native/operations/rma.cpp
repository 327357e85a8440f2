// SPDX-License-Identifier: BSD-3-Clause
// Remote memory access: put, get and atomic operations with a peer's key.
#include <algorithm>

#include "operations/mem_map.hpp"

namespace {

/// Return the remote address of `offset`; raise unless `nbytes` from there are within the memory of `key`.
uint64_t remote_address(Endpoint *e, const Rkey &key, uint64_t offset, size_t nbytes, const char *op) {
    if (key.endpoint != e)
        raise("InvalidParamError",
              std::string(op) + ": the key was unpacked on another endpoint; call rkey_unpack on this one", op);
    if (!key.handle) raise("ClosedError", std::string(op) + ": the worker that the key belongs to is closed", op);
    if (offset > key.nbytes || nbytes > key.nbytes - offset)
        raise("InvalidParamError",
              std::string(op) + ": " + std::to_string(nbytes) + " B at " + std::to_string(offset) +
                  " exceed the memory of " + std::to_string(key.nbytes) + " B",
              op);
    return key.address + offset;
}

/// Owns a reference to a Memory of this process, which an operation accesses until it ends.
struct Access {
    std::shared_ptr<Uses> uses;
    nb::object memory;
};

void access_ended(Request &r) noexcept {
    std::unique_ptr<Access> access(static_cast<Access *>(std::exchange(r.taken, nullptr)));
    if (access) access->uses->reading.erase(std::ranges::find(access->uses->reading, r.worker));
}

// Of a get, and of an atomic operation that fetches: it has accessed the memory once it ends. Others need a flush.
constexpr Operation reading_operation{.drop = access_ended, .delivered = access_ended};

void reads(Request *r, const Rkey &key) {
    r->taken = new Access{key.uses, nb::borrow(key.uses->memory)};
    key.uses->reading.push_back(r->worker);
}

bool is_mapped_here(const Rkey &key) noexcept {
    return key.uses && key.uses->memory;
}

// The request keeps the key alive, which keeps the endpoint alive.
nb::object begin_transfer(EndpointSelf self, nb::handle buffer, nb::handle key, uint64_t offset, bool get, Request **r,
                          ucp_request_param_t &param, uint64_t *address) {
    const char *op = get ? "get" : "put";
    Endpoint *e = usable(self, op);
    nb::object request = make_request(e->worker, key.ptr(), op, 0, r);
    begin(param, *r);
    take(self, *r, param, buffer, get, op);
    const Rkey &rkey = *nb::inst_ptr<Rkey>(key);
    *address = remote_address(e, rkey, offset, (*r)->nbytes, op);
    if (!is_mapped_here(rkey)) return request;
    if (!get) {
        e->writes(rkey.uses);
    } else {
        (*r)->operation = &reading_operation;
        reads(*r, rkey);
    }
    return request;
}

nb::object put(EndpointSelf self, nb::handle buffer, nb::pointer_and_handle<Rkey> key, uint64_t offset) {
    Request *r;
    ucp_request_param_t param;
    uint64_t address;
    nb::object request = begin_transfer(self, buffer, key.h, offset, false, &r, param, &address);
    posted(r, ucp.put_nbx(self.p->handle, r->buffer.data(), r->nbytes, address, key.p->handle, &param));
    return request;
}

nb::object get(EndpointSelf self, nb::handle buffer, nb::pointer_and_handle<Rkey> key, uint64_t offset) {
    Request *r;
    ucp_request_param_t param;
    uint64_t address;
    nb::object request = begin_transfer(self, buffer, key.h, offset, true, &r, param, &address);
    posted(r, ucp.get_nbx(self.p->handle, r->buffer.data(), r->nbytes, address, key.p->handle, &param));
    return request;
}

constexpr Operation atomic_operation{.must_end = true};
constexpr Operation fetching_operation{
    .result = word_result, .drop = access_ended, .delivered = access_ended, .must_end = true};

struct Opcode {
    const char *name;
    ucp_atomic_op_t code;
    bool fetches_always;
};

constexpr Opcode opcodes[] = {{"add", UCP_ATOMIC_OP_ADD, false},  {"and", UCP_ATOMIC_OP_AND, false},
                              {"or", UCP_ATOMIC_OP_OR, false},    {"xor", UCP_ATOMIC_OP_XOR, false},
                              {"swap", UCP_ATOMIC_OP_SWAP, true}, {"cswap", UCP_ATOMIC_OP_CSWAP, true}};

const Opcode &opcode(const std::string &name) {
    for (const Opcode &each : opcodes)
        if (name == each.name) return each;
    raise("InvalidParamError",
          "atomic_op: unknown operation " + name + "; choose from add, and, or, xor, swap and cswap", "atomic_op");
}

/// The bits of an operand of `nbytes`, signed or unsigned.
uint64_t operand(nb::handle value, size_t nbytes) {
    const uint64_t bits = PyLong_AsUnsignedLongLongMask(value.ptr());
    if (PyErr_Occurred()) throw nb::python_error();
    nb::object least = nb::int_(nbytes == 8 ? INT64_MIN : INT32_MIN);
    nb::object most = nb::int_(nbytes == 8 ? UINT64_MAX : uint64_t(UINT32_MAX));
    if (value < least || value > most)
        raise("InvalidParamError",
              "atomic_op: " + nb::cast<std::string>(nb::str(value)) + " does not fit into " + std::to_string(nbytes) +
                  " B",
              "atomic_op");
    return nbytes == 8 ? bits : uint32_t(bits);
}

nb::object atomic_op(EndpointSelf self, const std::string &name, nb::int_ value, nb::pointer_and_handle<Rkey> key,
                     uint64_t offset, nb::object compare, size_t nbytes, bool fetch) {
    Endpoint *e = usable(self, "atomic_op");
    const Opcode &op = opcode(name);
    nb::inst_ptr<Context>(e->worker->context)->check_feature(UCP_FEATURE_AMO32 | UCP_FEATURE_AMO64, "amo", "atomic_op");
    if (nbytes != 4 && nbytes != 8) raise("InvalidParamError", "atomic_op: nbytes must be 4 or 8", "atomic_op");
    if (compare.is_none() == (op.code == UCP_ATOMIC_OP_CSWAP))
        raise("InvalidParamError", "atomic_op: cswap needs compare, and no other operation takes it", "atomic_op");
    Request *r;
    nb::object request = make_request(e->worker, key.h.ptr(), "atomic_op", nbytes, &r);
    r->operation = &atomic_operation;
    r->operand = operand(value, nbytes);
    r->word = 0;
    if (op.code == UCP_ATOMIC_OP_CSWAP) {  // UCX takes the compare value first, and the new value in the reply buffer
        r->word = r->operand;
        r->operand = operand(compare, nbytes);
    }
    usable(self, "atomic_op");  // again: comparing the operands may have run Python code
    const uint64_t address = remote_address(e, *key.p, offset, nbytes, "atomic_op");
    if (address % nbytes)
        raise("InvalidParamError", "atomic_op: the address is not a multiple of " + std::to_string(nbytes),
              "atomic_op");
    ucp_request_param_t param;
    begin(param, r);
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
    param.datatype = ucp_dt_make_contig(nbytes);
    if (fetch || op.fetches_always) {
        r->operation = &fetching_operation;
        param.op_attr_mask |= UCP_OP_ATTR_FIELD_REPLY_BUFFER;
        param.reply_buffer = &r->word;
        if (is_mapped_here(*key.p)) reads(r, *key.p);
    } else if (is_mapped_here(*key.p)) {
        e->writes(key.p->uses);
    }
    posted(r, ucp.atomic_op_nbx(e->handle, op.code, &r->operand, 1, address, key.p->handle, &param));
    return request;
}

constexpr const char *put_doc = R"(Write `buffer` into a peer's memory.

Parameters
----------
buffer : contiguous buffer, any shape
    Locked until the request completes; not modified.
rkey : Rkey
    From :meth:`rkey_unpack` of this endpoint.
offset : int
    Position in the peer's memory, in bytes from its beginning.

Returns
-------
Request
    Done when `buffer` may be changed again. The peer's memory has the bytes once a later :meth:`flush` is done.

Raises
------
InvalidParamError
    The bytes would exceed the memory. Nothing was written.

Cancelling ends the request; the transfer goes on. Source: ``ucp_put_nbx``.)";

constexpr const char *get_doc = R"(Read from a peer's memory into `buffer`.

Parameters
----------
buffer : writable contiguous buffer, any shape
    Filled in place. Locked until the request completes.
rkey : Rkey
    From :meth:`rkey_unpack` of this endpoint.
offset : int
    Position in the peer's memory, in bytes from its beginning.

Returns
-------
Request
    Done when `buffer` is filled.

Raises
------
InvalidParamError
    The bytes would exceed the memory. Nothing was read.

Cancelling ends the request; the transfer goes on. Source: ``ucp_get_nbx``.)";

constexpr const char *atomic_doc = R"(Change one integer in a peer's memory atomically.

Parameters
----------
op : {"add", "and", "or", "xor", "swap", "cswap"}
value : int
    The operand, signed or unsigned; for swap and cswap the new value.
rkey : Rkey
    From :meth:`rkey_unpack` of this endpoint.
offset : int
    Position in the peer's memory, in bytes; a multiple of `nbytes`.
compare : int, only for cswap
    Swap only if the memory holds this value.
nbytes : {8, 4}
    Size of the integer, in the machine's byte order.
fetch : bool
    Return the old value; swap and cswap always do.

Returns
-------
Request
    Its result is the old value, unsigned, or None. Without `fetch` the change is at the peer only after a flush.

Raises
------
UnsupportedError
    The context was made without the feature ``amo``.
InvalidParamError
    `op` is none of these, `compare` is missing or superfluous, `value` does not fit, or `offset` is not a multiple of
    `nbytes` within the memory.

Atomic with respect to other operations through UCX; with respect to the owner's own instructions only on transports
that use the CPU's (posix does). Source: ``ucp_atomic_op_nbx``.)";

}  // namespace

void define_rma(nb::class_<Endpoint> &endpoint) {
    endpoint
        .def("put", &put, nb::arg("buffer"), nb::arg("rkey"), nb::arg("offset") = 0,
             nb::sig("def put(self, buffer: weft.typing.BufferLike, rkey: Rkey, offset: int = 0) -> "
                     "weft.typing.Request[None]"),
             put_doc)
        .def("get", &get, nb::arg("buffer"), nb::arg("rkey"), nb::arg("offset") = 0,
             nb::sig("def get(self, buffer: weft.typing.BufferLike, rkey: Rkey, offset: int = 0) -> "
                     "weft.typing.Request[None]"),
             get_doc)
        .def("atomic_op", &atomic_op, nb::arg("op"), nb::arg("value"), nb::arg("rkey"), nb::arg("offset") = 0,
             nb::kw_only(), nb::arg("compare") = nb::none(), nb::arg("nbytes") = 8, nb::arg("fetch") = true,
             nb::sig("def atomic_op(self, op: str, value: int, rkey: Rkey, offset: int = 0, *, compare: int | None = "
                     "None, nbytes: int = 8, fetch: bool = True) -> weft.typing.Request[int | None]"),
             atomic_doc);
}
