// SPDX-License-Identifier: BSD-3-Clause
// The pool for Python: a block is a native exporter, so that NumPy keeps it alive.
#include <nanobind/stl/optional.h>

#include <utility>

#include "shared/loan.hpp"
#include "shared/mappings.hpp"
#include "shared/pool.hpp"
#include "shared/shared_file.hpp"
#include "shared/small_block.hpp"
#include "ucp/forks.hpp"

namespace {

int block_getbuffer(PyObject *self, Py_buffer *view, int flags) {
    Block *block = nb::inst_ptr<Block>(self);
    return PyBuffer_FillInfo(view, self, block->data, Py_ssize_t(block->nbytes), 0, flags);
}

PyType_Slot block_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void *>(block_getbuffer)}, {0, nullptr}};

}  // namespace

nb::object Pool::view(Block &&block) {
    nb::object owner = nb::inst_alloc(nb::type<Block>());
    new (nb::inst_ptr<Block>(owner)) Block(static_cast<Block &&>(block));
    nb::inst_mark_ready(owner);
    return nb::steal(PyMemoryView_FromObject(owner.ptr()));
}

void Pool::define(nb::module_ &m) {
    SmallBlock::define();
    set_fork_steps({before_fork, after_fork_in_parent, after_fork_in_child});
    // Memory of the receive pool, or memory that another process lent; `memoryview(block)` is writable and keeps it
    // alive.
    nb::class_<Block>(m, "Block", nb::type_slots(block_slots), nb::pooled())
        .def_prop_ro("nbytes", [](const Block &b) { return b.nbytes; })
        .def_prop_ro("address", [](const Block &b) { return reinterpret_cast<uintptr_t>(b.data); })
        .def_prop_ro("pooled", [](const Block &b) { return b.segment != nullptr; })
        .def_prop_ro("lent", [](const Block &b) { return b.loan != nullptr; });
    m.def(
        "pool_allocate",
        [](size_t nbytes) {
            watch_forks();
            Block block = allocate(nbytes);
            if (!block.data)
                raise("NoMemoryError",
                      "allocate: the receive pool cannot get " + std::to_string(nbytes) + " B of shared memory",
                      "allocate");
            return view(static_cast<Block &&>(block));
        },
        nb::arg("nbytes"), nb::sig("def pool_allocate(nbytes: int) -> memoryview"));
    m.def("pool_set_cap", &set_cap, nb::arg("nbytes"));
    // Set for how many seconds idle memory beyond the cap is kept, up to the most that was in use at once; 0: none.
    // With it the process's memory stays within the ceiling. Idle memory is kept for longer as long as the process has
    // no more than `low_water_nbytes` in all.
    m.def(
        "pool_set_hold",
        [](double seconds, size_t ceiling, size_t low_water) { set_hold(int64_t(seconds * 1e9), ceiling, low_water); },
        nb::arg("seconds"), nb::arg("ceiling_nbytes") = SIZE_MAX, nb::arg("low_water_nbytes") = 0);
    // Share one budget of idle memory with all processes of this host that join with the same file: together they keep
    // little more for the hold than they had in use at once. Return False if that is not possible.
    m.def(
        "pool_join",
        [](int fd) {
            watch_forks();
            return join(fd);
        },
        nb::arg("fd"));
    // Give back the memory that was kept for the hold and has not been used since, or that what the process now has
    // beside the pool leaves no room for: `other_nbytes`, or what the kernel says.
    m.def("pool_settle", &settle, nb::arg("other_nbytes") = nb::none());
    // Give idle memory back until at most `nbytes` are left, and drop the pages of blocks that were freed while lent.
    m.def("pool_trim", &trim, nb::arg("nbytes"));
    // Give the pages of all idle memory back; the files stay, so that peers need not map them again.
    m.def("pool_cool", &cool);
    // Flag borrowed memory that its owner still counts: /proc/self/smaps shows `dd` for such mappings.
    m.def("flag_loans", &Loan::flag_all);
    // Return the borrowed bytes that their owners count: those that are resident, and those that are mapped. Mappings
    // are flagged as by `flag_loans`. None: some shared memory is counted by no owner; read `/proc/self/smaps`.
    m.def(
        "loans_counted_elsewhere",
        []() -> nb::object {
            const Loan::Counted counted = Loan::counted_elsewhere();
            if (!counted.known) return nb::none();
            return nb::make_tuple(counted.resident, counted.mapped);
        },
        nb::sig("def loans_counted_elsewhere() -> tuple[int, int] | None"));
    // Return whether all of a contiguous buffer is memory that `flag_loans` has flagged.
    m.def(
        "is_flagged",
        [](nb::handle buffer) {
            Py_buffer view;
            if (PyObject_GetBuffer(buffer.ptr(), &view, PyBUF_SIMPLE) != 0) throw nb::python_error();
            bool flagged = Loan::is_flagged(view.buf, size_t(view.len));
            PyBuffer_Release(&view);
            return flagged;
        },
        nb::arg("buffer"));
    m.def(
        "pool_statistics",
        [] {
            auto s = statistics();
            nb::dict d;
            d["live_nbytes"] = s.live;
            d["idle_nbytes"] = s.idle;
            d["mapped_nbytes"] = s.mapped;
            d["segments"] = s.segments;
            d["pinned_nbytes"] = s.pinned;
            d["cap_nbytes"] = s.cap;
            d["taken_total"] = s.taken;
            d["fresh_total_nbytes"] = s.fresh;
            d["lent_total_nbytes"] = lent_total.load();
            d["staged_total_nbytes"] = staged_total.load();
            d["borrowed_nbytes"] = borrowed.load();
            d["borrowed_total_nbytes"] = borrowed_total.load();
            d["lending_mappings"] = Mappings::taken.load();
            return d;
        },
        nb::sig("def pool_statistics() -> dict[str, int]"));
    // Set whether blocks below 16 MiB lie on huge pages as well. Otherwise the pool decides by what a fault takes on
    // this machine.
    m.def("pool_small_on_huge", &SharedFile::set_small_pages_are_slow, nb::arg("on"));
    // Set how many mappings lending may take in this process, by default half of vm.max_map_count; beyond them, memory
    // is copied. Return the previous limit.
    m.def("pool_limit_mappings", [](long most) { return Mappings::most().exchange(most); }, nb::arg("most"));
}
