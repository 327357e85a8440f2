// SPDX-License-Identifier: BSD-3-Clause
// The native module weft._native. Loading it loads no UCX; bind() does that later.
#include "connection/channel.hpp"
#include "operations/active.hpp"
#include "operations/listener.hpp"
#include "operations/mem_map.hpp"
#include "shared/arrow_allocator.hpp"
#include "shared/numpy_allocator.hpp"
#include "ucp/forks.hpp"

// NB_MODULE defines the function that Python calls; here it is another's, see the end of this file.
#define PyInit__native new_module
NB_MODULE(_native, m) {
    nb::set_leak_warnings(false);  // an interpreter may exit with requests pending
    m.attr("__doc__") = "UCP for weft: contexts, workers, endpoints, requests, connections and the receive pool.";
    // Look up every UCP function in the loaded library at `path`.
    m.def("bind", &bind_library, nb::arg("path"));
    m.def("bound", &bound);
    // Call `load`, then restore the handler of SIGHUP, which libucs replaces in a constructor.
    m.def("keep_sighup", &keep_sighup, nb::arg("load"),
          nb::sig("def keep_sighup(load: collections.abc.Callable[[], typing.Any]) -> typing.Any"));
    // Close `fd` at once in forked children.
    m.def("close_in_child", &close_in_child, nb::arg("fd"));
    // Undo close_in_child.
    m.def("keep_in_child", &keep_in_child, nb::arg("fd"));
    // True in a child forked after weft was used.
    m.def("forked", [] { return in_forked_child; });
    Pool::define(m);
    define_arrow_allocator(m);
    define_numpy_allocator(m);
    define_context(m);
    define_request(m);
    auto worker = define_worker(m);
    auto endpoint = define_endpoint(m, worker);
    define_tags(m, worker, endpoint);
    define_active(m, worker, endpoint);
    define_batches(worker, endpoint);
    define_streams(endpoint);
    define_memory(m, endpoint);
    define_rma(endpoint);
    define_listener(m, worker);
    define_link(m);
    define_channel(m);
    define_peer(m);
    define_dlpack_export(m);
}
#undef PyInit__native

// nanobind's types and weft's statics belong to the process: a second interpreter would take them from the first.
extern "C" NB_EXPORT PyObject *PyInit__native() {
    if (PyInterpreterState_GetID(PyInterpreterState_Get()) == 0) return new_module();
    PyErr_SetString(PyExc_ImportError, "weft works in a process's main interpreter only, not in a subinterpreter");
    return nullptr;
}
