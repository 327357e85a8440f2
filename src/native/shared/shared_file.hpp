// SPDX-License-Identifier: BSD-3-Clause
// Memory with a descriptor, so that other processes can map it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace SharedFile {

/// Make a file of `nbytes` of fresh memory, on huge pages if the kernel gives them on advice; -1 on failure. It never
/// shrinks: it is sealed, or only this user's processes have access to it. The descriptor must not be given away.
int make(size_t nbytes) noexcept;
/// Whether files can have huge pages, of the usual size.
bool may_be_huge() noexcept;
/// Whether huge pages are to be had, and small ones cost this machine so much that blocks of any size belong on huge
/// ones. The cost is measured once, unless it was set.
bool small_pages_are_slow() noexcept;
void set_small_pages_are_slow(bool slow) noexcept;
/// Whether only this user can have shortened the file of `fd`, so that accessing its mapping cannot cause SIGBUS.
bool is_safe(int fd) noexcept;

// Another file description of the same file has marks of its own: read locks. The kernel keeps them, whichever process
// dies, until the last descriptor of that description and the last mapping made from it are gone. -1: it could not be
// opened or marked.

/// A description for a process that will receive loans: until it is settled, all pages count as used.
int share(int fd) noexcept;
void settle(int fd) noexcept;
/// A description for mapping these pages, which marks them as used for as long as the mapping lasts.
int hold(int fd, size_t offset, size_t nbytes) noexcept;
/// A description for marking pages that are about to be held: the page at `offset`, under a number.
int reopen(int fd) noexcept;
bool mark(int fd, size_t offset, uint64_t number) noexcept;
void unmark(int fd, size_t offset, uint64_t number) noexcept;
/// Whether any description other than that of `fd` has marked one of these pages.
bool is_marked(int fd, size_t offset, size_t nbytes) noexcept;
/// Free those of these pages that nobody holds. False: nothing may be freed yet, because the process that made the file
/// lives, or pages are about to be held.
bool punch(int fd, size_t offset, size_t nbytes) noexcept;

/// Declare whether this process counts these pages as its memory. `fd` has a file description of its own, so the
/// declaration ends with the process.
bool count(int fd, size_t offset, size_t nbytes, bool counts) noexcept;
/// Whether any description other than that of `fd` counts one of these pages.
bool is_counted(int fd, size_t offset, size_t nbytes) noexcept;

/// Whether this process has written to none of these pages of a private mapping; true only if the kernel confirms it.
bool is_untouched(const void *data, size_t nbytes) noexcept;

/// Bytes of the pages of a private mapping: resident; resident pages of the file that others map, too; and pages that
/// this process has written to.
struct Seen {
    size_t resident, shared, written;
};
/// False: the kernel does not tell.
bool look(const void *data, size_t nbytes, Seen &found) noexcept;

}  // namespace SharedFile
