// SPDX-License-Identifier: BSD-3-Clause
// By default, Linux gives a memfd small pages. Then each 4 KiB of a new array costs a fault, and a walk down one of its
// columns misses the TLB at each step. A private tmpfs takes a mount option instead. Mounting needs CAP_SYS_ADMIN,
// which anybody has in a user namespace of their own: a child process enters one, mounts, and leaves the mount's
// descriptor behind. The mount is attached to no path and ends with the process.
#include "shared/shared_file.hpp"

#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/magic.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <vector>

#include "ucp/ucx.hpp"

namespace {

// The kernel's ABI since 5.2, missing in older headers; the numbers are the same on all architectures.
constexpr long fsopen_call = 430, fsconfig_call = 431, fsmount_call = 432;
constexpr unsigned close_on_exec = 1, set_string = 1, create = 6;

constexpr int page_shift = 12;
constexpr const char *memfd_setting = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

// A fault on a small page takes 1.3 us on a machine where huge pages are no gain for small blocks, and 4 us on one
// where they are (docs/design.md).
constexpr double slow_fault_ns = 2500;

struct Mounting {
    unsigned user, group;
    bool mapped;  // in a new user namespace without id mappings
    int fd;
};

bool contains(const char *file, const char *wanted) noexcept {
    char text[128] = {};
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    return n > 0 && std::strstr(text, wanted);
}

bool write_file(const char *path, const char *text) noexcept {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return false;
    bool done = write(fd, text, std::strlen(text)) > 0;
    close(fd);
    return done;
}

bool map_own_ids(unsigned user, unsigned group) noexcept {
    char line[48];
    write_file("/proc/self/setgroups", "deny");
    snprintf(line, sizeof line, "%u %u 1", user, user);
    if (!write_file("/proc/self/uid_map", line)) return false;
    snprintf(line, sizeof line, "%u %u 1", group, group);
    return write_file("/proc/self/gid_map", line);
}

// Runs in a child that shares the memory and the descriptors of this process, which is suspended meanwhile.
int mount_tmpfs(void *argument) noexcept {
    auto *m = static_cast<Mounting *>(argument);
    if (m->mapped && !map_own_ids(m->user, m->group)) return 1;
    int fs = int(syscall(fsopen_call, "tmpfs", close_on_exec));
    if (fs < 0) return 1;
    if (syscall(fsconfig_call, fs, set_string, "huge", "advise", 0) == 0 &&
        syscall(fsconfig_call, fs, set_string, "size", "0", 0) == 0 &&
        syscall(fsconfig_call, fs, create, nullptr, nullptr, 0) == 0)
        m->fd = int(syscall(fsmount_call, fs, close_on_exec, 0));
    close(fs);
    return 0;
}

// In a child even if this process may mount: a filter that kills a process for the attempt kills only the child.
int mount_in_child(int namespaces) noexcept {
    Mounting mounting{geteuid(), getegid(), namespaces != 0, -1};
    alignas(16) static char stack[64 * 1024];
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);  // no handler may run there
    pid_t child =
        clone(mount_tmpfs, stack + sizeof stack, CLONE_VM | CLONE_VFORK | CLONE_FILES | namespaces, &mounting);
    if (child > 0)
        while (waitpid(child, nullptr, __WCLONE) < 0 && errno == EINTR) {
        }
    sigprocmask(SIG_SETMASK, &before, nullptr);
    return mounting.fd;
}

// -1: memfd has huge pages already, the administrator has disabled them, or they are not available.
int huge_mount() noexcept {
    const char *ours = "/sys/kernel/mm/transparent_hugepage/enabled";
    if (!contains(memfd_setting, "[never]")) return -1;
    if (!contains(ours, "[madvise]") && !contains(ours, "[always]")) return -1;
    int fd = mount_in_child(0);
    return fd < 0 ? mount_in_child(CLONE_NEWUSER | CLONE_NEWNS) : fd;
}

int own_mount() noexcept {
    static const int mount = huge_mount();
    return mount;
}

int new_file() noexcept {
    const int mount = own_mount();
    int fd = mount < 0 ? -1 : openat(mount, ".", O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    return fd < 0 ? memfd_create("weft", MFD_CLOEXEC | MFD_ALLOW_SEALING) : fd;
}

// What a fault takes that gives one small page of a file; 0: it could not be measured. Of several batches the fastest
// counts: in others this thread may have lost its core.
double fault_ns() noexcept {
    constexpr size_t batches = 8, pages = 16, page = size_t(1) << page_shift, nbytes = batches * pages * page;
    int fd = new_file();
    void *memory = MAP_FAILED;
    // If there are no such pages, this is an error, while an access would be a signal.
    if (fd >= 0 && ftruncate(fd, nbytes) == 0 && fallocate(fd, 0, 0, nbytes) == 0 &&
        fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, nbytes) == 0)
        memory = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (fd >= 0) close(fd);
    if (memory == MAP_FAILED) return 0;
    madvise(memory, nbytes, MADV_NOHUGEPAGE);
    auto *at = static_cast<volatile uint8_t *>(memory);
    int64_t fastest = INT64_MAX;
    for (size_t i = 0; i < batches; ++i) {
        const int64_t began = now_ns();
        for (size_t k = 0; k < pages; ++k, at += page) *at = 0;
        fastest = std::min(fastest, now_ns() - began);
    }
    munmap(memory, nbytes);
    return double(fastest) / pages;
}

std::atomic<int> set_to{-1};  // what was set in place of a measurement

// A mark is a read lock in a file that nobody reads or writes by offset. Below `held` there is a byte for each page and
// number that is about to be held, one for the process that made the file, and one for a process that may still receive
// loans. From `held` on there is a byte for each mapped page.
constexpr int number_bits = 32;
constexpr off_t held = off_t(1) << 62, owner = held - 1, unsettled = held - 2;
// And from here on a byte for each page that the owner counts as its memory.
constexpr off_t counted = held + (off_t(1) << 61);

struct flock lock_of(short type, off_t start, off_t length) noexcept {
    struct flock lock{};
    lock.l_type = type;
    lock.l_start = start;
    lock.l_len = length;
    return lock;
}

bool set(int fd, struct flock lock) noexcept {
    return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

// The lock of another file description that conflicts with a write lock of `fd`; F_UNLCK: there is none.
struct flock conflict(int fd, off_t start, off_t length) noexcept {
    struct flock lock = lock_of(F_WRLCK, start, length);
    if (fcntl(fd, F_OFD_GETLK, &lock) != 0) lock = lock_of(F_WRLCK, start, length);
    return lock;
}

off_t number_of(size_t offset, uint64_t number) noexcept {
    return off_t(uint64_t(offset >> page_shift) << number_bits | uint32_t(number));
}

struct Pages {
    off_t first, end;
    Pages(size_t offset, size_t nbytes) noexcept
        : first(off_t(offset >> page_shift)), end(off_t((offset + nbytes - 1) >> page_shift) + 1) {}
};

// Open the file again, with these marks or not at all.
int open_anew(int fd, int flags, const struct flock &marks) noexcept {
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int opened = open(path, flags | O_CLOEXEC);
    if (opened < 0 || set(opened, marks)) return opened;
    close(opened);
    return -1;
}

}  // namespace

int SharedFile::make(size_t nbytes) noexcept {
    int fd = new_file();
    if (fd >= 0 && (ftruncate(fd, off_t(nbytes)) != 0 || !set(fd, lock_of(F_RDLCK, owner, 1)))) {
        close(fd);
        return -1;
    }
    // A file on a mount does not support seals.
    if (fd >= 0) fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    return fd;
}

// A kernel with larger small pages has far larger huge ones, too large for blocks of any size.
bool SharedFile::may_be_huge() noexcept {
    static const bool possible = contains("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "2097152\n") &&
                                 (own_mount() >= 0 || contains(memfd_setting, "[advise]") ||
                                  contains(memfd_setting, "[within_size]") || contains(memfd_setting, "[always]"));
    return possible;
}

bool SharedFile::small_pages_are_slow() noexcept {
    const int set = set_to;
    if (set == 0) return false;
    if (set == 1) return may_be_huge();
    static const bool slow = may_be_huge() && fault_ns() > slow_fault_ns;
    return slow;
}

void SharedFile::set_small_pages_are_slow(bool slow) noexcept {
    set_to = slow;
}

bool SharedFile::is_safe(int fd) noexcept {
    struct stat status;
    struct statfs system;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals >= 0 && (seals & F_SEAL_SHRINK)) return true;
    return fstat(fd, &status) == 0 && fstatfs(fd, &system) == 0 && system.f_type == TMPFS_MAGIC &&
           S_ISREG(status.st_mode) && status.st_nlink == 0 && status.st_uid == geteuid() &&
           (status.st_mode & 0777) == 0600;
}

int SharedFile::share(int fd) noexcept {
    return open_anew(fd, O_RDONLY, lock_of(F_RDLCK, unsettled, 1));
}

void SharedFile::settle(int fd) noexcept {
    set(fd, lock_of(F_UNLCK, unsettled, 1));
}

int SharedFile::hold(int fd, size_t offset, size_t nbytes) noexcept {
    Pages pages(offset, nbytes);
    return open_anew(fd, O_RDONLY, lock_of(F_RDLCK, held + pages.first, pages.end - pages.first));
}

int SharedFile::reopen(int fd) noexcept {
    int opened = open_anew(fd, O_RDONLY, lock_of(F_RDLCK, 0, 1));
    if (opened >= 0) unmark(opened, 0, 0);
    return opened;
}

bool SharedFile::mark(int fd, size_t offset, uint64_t number) noexcept {
    return set(fd, lock_of(F_RDLCK, number_of(offset, number), 1));
}

void SharedFile::unmark(int fd, size_t offset, uint64_t number) noexcept {
    set(fd, lock_of(F_UNLCK, number_of(offset, number), 1));
}

bool SharedFile::is_marked(int fd, size_t offset, size_t nbytes) noexcept {
    Pages pages(offset, nbytes);
    const off_t length = pages.end - pages.first;
    return conflict(fd, pages.first << number_bits, length << number_bits).l_type != F_UNLCK ||
           conflict(fd, held + pages.first, length).l_type != F_UNLCK;
}

// While pages change hands, their next holder has a mark below `held`. So first, nobody may be about to hold them, and
// after the lock there must again be no mark there: a later holder must have had one all the time.
bool SharedFile::punch(int fd, size_t offset, size_t nbytes) noexcept {
    if (conflict(fd, 0, held).l_type != F_UNLCK) return false;
    int own = open_anew(fd, O_RDWR, lock_of(F_UNLCK, 0, 1));
    if (own < 0) return false;
    std::vector<Pages> left{{offset, nbytes}};
    bool may = true;
    while (may && !left.empty()) {
        Pages pages = left.back();
        left.pop_back();
        const off_t length = pages.end - pages.first;
        if (length <= 0) continue;
        if (set(own, lock_of(F_WRLCK, held + pages.first, length))) {
            may = conflict(own, 0, held).l_type == F_UNLCK;
            if (may)
                fallocate(own, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, pages.first << page_shift,
                          length << page_shift);
            continue;
        }
        struct flock other = conflict(own, held + pages.first, length);
        if (other.l_type == F_UNLCK) continue;  // released just now; that process handles these pages
        Pages before = pages, after = pages;
        before.end = std::min(pages.end, other.l_start - held);
        after.first = std::max(pages.first, other.l_start + other.l_len - held);
        left.insert(left.end(), {before, after});
    }
    close(own);  // this also releases its locks
    return may;
}

bool SharedFile::count(int fd, size_t offset, size_t nbytes, bool counts) noexcept {
    Pages pages(offset, nbytes);
    return set(fd, lock_of(counts ? F_RDLCK : F_UNLCK, counted + pages.first, pages.end - pages.first));
}

bool SharedFile::is_counted(int fd, size_t offset, size_t nbytes) noexcept {
    Pages pages(offset, nbytes);
    return conflict(fd, counted + pages.first, pages.end - pages.first).l_type != F_UNLCK;
}

// A page that was written to is no longer a page of the file (Documentation/admin-guide/mm/pagemap.rst). This takes
// 0.6 ms for 100 MiB of small pages, a fiftieth of the copy.
bool SharedFile::look(const void *data, size_t nbytes, Seen &found) noexcept {
    constexpr uint64_t present = uint64_t(1) << 63, swapped = uint64_t(1) << 62, of_a_file = uint64_t(1) << 61,
                       exclusive = uint64_t(1) << 56;
    static const size_t page = size_t(sysconf(_SC_PAGESIZE));
    int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    found = {};
    uint64_t entries[512];
    size_t at = reinterpret_cast<size_t>(data) / page;
    const size_t end = (reinterpret_cast<size_t>(data) + nbytes - 1) / page + 1;
    while (at < end) {
        size_t count = std::min(end - at, std::size(entries));
        ssize_t n = pread(fd, entries, count * sizeof *entries, off_t(at * sizeof *entries));
        if (n != ssize_t(count * sizeof *entries)) break;
        for (size_t i = 0; i < count; ++i) {
            const uint64_t entry = entries[i];
            found.resident += entry & present ? page : 0;
            found.shared += (entry & present) && (entry & of_a_file) && !(entry & exclusive) ? page : 0;
            found.written += (entry & (present | swapped)) && !(entry & of_a_file) ? page : 0;
        }
        at += count;
    }
    close(fd);
    return at == end;
}

bool SharedFile::is_untouched(const void *data, size_t nbytes) noexcept {
    Seen found;
    return look(data, nbytes, found) && !found.written;
}
