// SPDX-License-Identifier: BSD-3-Clause
// Memory that has a descriptor, so that other processes can map it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace SharedFile {

/// A descriptor of `nbytes` of fresh memory, on huge pages where the kernel gives them on advice; -1 if there is none.
/// It never shrinks: it is sealed, or its only name is what this user's processes hold. It must not be given away.
int make(size_t nbytes) noexcept;
/// Whether nobody but this user can have shortened what `fd` is of, so that to touch its mapping is no SIGBUS.
bool is_safe(int fd) noexcept;

// Another open file description of what `fd` is of has marks of its own: read locks, which the kernel keeps, whichever
// process dies, until the last descriptor of that description and the last mapping made of it are gone. -1: there is
// none to be had, or no marks.

/// One whose holder is to be told what is lent: until it is settled, all pages are as good as in use.
int share(int fd) noexcept;
void settle(int fd) noexcept;
/// One to map these pages of, which marks them as in use for as long as the mapping lasts.
int hold(int fd, size_t offset, size_t nbytes) noexcept;
/// One for marks of pages that are about to be held: the page at `offset`, under a number.
int reopen(int fd) noexcept;
bool mark(int fd, size_t offset, uint64_t number) noexcept;
void unmark(int fd, size_t offset, uint64_t number) noexcept;
/// Whether any description but that of `fd` has marked one of these pages.
bool is_marked(int fd, size_t offset, size_t nbytes) noexcept;
/// Give those of these pages back to the kernel that nobody holds. False: nothing may be given back yet, because the
/// process that made the file is there, or pages are about to be held.
bool punch(int fd, size_t offset, size_t nbytes) noexcept;

/// Say that this process counts these pages as its memory, or no more. `fd` is of a description of its own: what it
/// said ends with the process.
bool count(int fd, size_t offset, size_t nbytes, bool counts) noexcept;
/// Whether any description but that of `fd` counts one of these pages.
bool is_counted(int fd, size_t offset, size_t nbytes) noexcept;

/// Whether this process has written to none of these pages of a private mapping; true only if the kernel says so.
bool is_untouched(const void *data, size_t nbytes) noexcept;

/// Of the pages of a private mapping, in bytes: what is resident, what of that is the file's and others map it, too,
/// and what this process has written to.
struct Seen {
    size_t resident, shared, written;
};
/// False: the kernel does not tell.
bool look(const void *data, size_t nbytes, Seen &found) noexcept;

}  // namespace SharedFile
