// SPDX-License-Identifier: BSD-3-Clause
// The pages that a process shares with its senders: one memfd, in which each link's ring is allocated, and how a sender
// maps a ring.
//
// A memfd is in no directory, so it needs no space in /dev/shm, and a killed process leaves nothing behind. It is
// sealed against shrinking, so that no access to a mapping can fail with SIGBUS, and its pages are allocated when they
// are carved, so that a shortage is an errno then, not a SIGBUS later. It grows in chunks.
//
// Pages are never carved twice: a sender that has closed its link may still have them mapped (a broken one, or its
// forked child) and would write into another link's ring. So the offsets of a freed ring are never reused. Its pages
// are punched out of the file, which frees their memory, and a chunk without rings is unmapped. A late sender's writes
// allocate memory there again, so everything between the chunks is punched again whenever a chunk is added. The offsets
// last for 2^63 B.
//
// A sender gets the descriptor of the whole file, maps its own ring and the doorbell, and closes it. That it maps no
// more is a protection against accidents, not against attackers: as the same user, an attacker could write this
// process's memory anyway.
//
// Forks. A child inherits no mapping (MADV_DONTFORK): a second writer would corrupt a ring. So the remains of a link in
// a child must neither touch its pages nor unmap them, since the child may have reused those addresses.
#pragma once

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace Ring {

/// The kernel's page size: 4 KiB, or up to 64 KiB on Arm.
inline size_t page_nbytes() noexcept {
    static const size_t nbytes = size_t(sysconf(_SC_PAGESIZE));
    return nbytes;
}

/// Pages of the arena; owns nothing.
struct Pages {
    void *data = nullptr;
    uint64_t offset = 0;
    size_t nbytes = 0;
};

/// Owns the memfd and this process's mapping of it. One thread at a time.
class Arena {
  public:
    static constexpr size_t chunk_nbytes = size_t(1) << 20;

    Arena() = default;
    Arena(const Arena &) = delete;
    ~Arena() {
        for (const Chunk &chunk : chunks) munmap(chunk.data, chunk.nbytes);
        if (file >= 0) close(file);
    }

    /// Return 0 or the kernel's errno: EPERM or ENOSYS from a syscall filter, EMFILE, ENOMEM. Call it once.
    int open() noexcept {
        constexpr unsigned not_executable = 8;  // MFD_NOEXEC_SEAL, which some systems require; Linux 6.3
        file = memfd_create("weft-rings", MFD_CLOEXEC | MFD_ALLOW_SEALING | not_executable);
        if (file < 0 && errno == EINVAL) file = memfd_create("weft-rings", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (file < 0) return errno;
        if (fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) < 0) return errno;
        // Tried here, since rings are offered if this succeeds. A shortage of memory is reported by who carves.
        if ((ftruncate(file, 0) < 0 || fallocate(file, 0, 0, 1) < 0) &&
            (errno == EPERM || errno == ENOSYS || errno == EOPNOTSUPP))
            return errno;
        return 0;
    }

    /// The descriptor for senders; owned by the arena.
    int fd() const noexcept { return file; }

    /// Allocate `nbytes` of zeroed whole pages. Return 0, or an errno with nothing changed.
    int carve(size_t nbytes, Pages &pages) noexcept { return carve(nbytes, nbytes, pages); }

    /// The same, but only the first `allocated` bytes have memory; `allocate` can provide the rest.
    int carve(size_t nbytes, size_t allocated, Pages &pages) noexcept {
        if (!nbytes || nbytes % page_nbytes() || allocated > nbytes) return EINVAL;
        if (chunks.empty() || chunks.back().nbytes - chunks.back().carved < nbytes)
            if (int error = grow(nbytes < chunk_nbytes ? chunk_nbytes : nbytes)) return error;
        Chunk &chunk = chunks.back();
        const uint64_t offset = chunk.offset + chunk.carved;
        if (int error = allocate(offset, allocated)) return error;
        pages = {static_cast<std::byte *>(chunk.data) + chunk.carved, offset, nbytes};
        chunk.carved += nbytes;
        chunk.used += nbytes;
        return 0;
    }

    /// Allocate memory for carved pages, so that accesses cannot fail. Return 0 or an errno.
    int allocate(uint64_t offset, size_t nbytes) noexcept {
        while (fallocate(file, 0, off_t(offset), off_t(nbytes)) < 0)
            if (errno != EINTR) return errno;
        return 0;
    }

    /// Free the memory; the offset is never reused.
    void free(const Pages &pages) noexcept {
        punch(pages.offset, pages.nbytes);
        for (size_t i = 0; i < chunks.size(); ++i) {
            Chunk &chunk = chunks[i];
            if (pages.offset < chunk.offset || pages.offset - chunk.offset >= chunk.nbytes) continue;
            chunk.used -= pages.nbytes;
            if (!chunk.used && i + 1 < chunks.size()) drop(i);
            return;
        }
    }

  private:
    struct Chunk {
        void *data;
        uint64_t offset;
        size_t nbytes, carved, used;
    };

    int grow(size_t nbytes) noexcept {
        rlimit limit;
        if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && size + nbytes > limit.rlim_cur) return EFBIG;  // otherwise SIGXFSZ
        try {
            chunks.reserve(chunks.size() + 1);
        } catch (...) {
            return ENOMEM;
        }
        while (ftruncate(file, off_t(size + nbytes)) < 0)
            if (errno != EINTR) return errno;
        void *data = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, off_t(size));
        // The file has grown, and cannot shrink; the unused part has no pages.
        const uint64_t offset = size;
        size += nbytes;
        if (data == MAP_FAILED) return errno;
        madvise(data, nbytes, MADV_DONTFORK);
        if (!chunks.empty() && !chunks.back().used) drop(chunks.size() - 1);
        chunks.push_back({data, offset, nbytes, 0, 0});
        uint64_t end = 0;
        for (const Chunk &chunk : chunks) {
            if (chunk.offset > end) punch(end, chunk.offset - end);
            end = chunk.offset + chunk.nbytes;
        }
        return 0;
    }

    void punch(uint64_t offset, uint64_t nbytes) noexcept {
        fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(offset), off_t(nbytes));
    }

    void drop(size_t i) noexcept {
        munmap(chunks[i].data, chunks[i].nbytes);
        chunks.erase(chunks.begin() + ptrdiff_t(i));
    }

    int file = -1;
    uint64_t size = 0;
    std::vector<Chunk> chunks;
};

/// Another process's file, whose pages can be mapped without the risk that they go: it cannot be shortened.
struct SealedFile {
    int fd;
    uint64_t nbytes = 0;

    explicit SealedFile(int descriptor) noexcept : fd(descriptor) {}

    /// EINVAL: the file can be shortened, or its pages may run out when one is touched, as huge ones may.
    int check() noexcept {
        const int seals = fcntl(fd, F_GET_SEALS);
        struct stat status;
        struct statfs system;
        if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &status) < 0) return EINVAL;
        if (fstatfs(fd, &system) < 0 || system.f_type == HUGETLBFS_MAGIC) return EINVAL;
        nbytes = uint64_t(status.st_size);
        return 0;
    }
};

/// Owns a sender's mapping of the receiver's pages.
class Mapping {
  public:
    Mapping() = default;
    Mapping(const Mapping &) = delete;
    ~Mapping() { unmap(); }

    void *data() const noexcept { return pages; }

    /// Map pages named by another process. EINVAL: there are no such pages. Call it once; the descriptor is not needed
    /// afterwards.
    int map(const SealedFile &file, uint64_t offset, size_t size, bool writable) noexcept {
        if (!size || offset % page_nbytes() || size % page_nbytes() || offset > file.nbytes ||
            size > file.nbytes - offset)
            return EINVAL;
        void *mapped =
            mmap(nullptr, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, file.fd, off_t(offset));
        if (mapped == MAP_FAILED) return errno;
        madvise(mapped, size, MADV_DONTFORK);
        pages = mapped;
        nbytes = size;
        process = getpid();
        return 0;
    }
    void unmap() noexcept {
        if (pages && process == getpid()) munmap(pages, nbytes);
        pages = nullptr;
    }

  private:
    void *pages = nullptr;
    size_t nbytes = 0;
    pid_t process = 0;  // the process that made the mapping
};

}  // namespace Ring
