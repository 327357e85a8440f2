// SPDX-License-Identifier: BSD-3-Clause
// Each thing that a ring, a doorbell and an arena promise, by itself. One process, one thread.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <csignal>
#include <cstddef>

#include "common.hpp"

namespace {

struct Both {
    std::vector<uint64_t> memory;
    std::byte *pages;
    size_t nbytes;
    Ring::Writer writer;
    Ring::Reader reader;
    explicit Both(size_t nbytes = 4096)
        : memory(nbytes / 8 + 16),
          pages(reinterpret_cast<std::byte *>((uintptr_t(memory.data()) + 127) & ~uintptr_t(127))),
          nbytes(nbytes),
          writer(pages, nbytes),
          reader(pages, nbytes) {}
    std::atomic<uint64_t> &tail() { return *reinterpret_cast<std::atomic<uint64_t> *>(pages); }
    uint64_t &word(size_t offset) { return *reinterpret_cast<uint64_t *>(pages + sizeof(Ring::Cursor) + offset); }

    bool append(uint64_t number, size_t nbytes) {
        std::vector<std::byte> bytes = make_content(number, nbytes);
        Random random(number);
        std::vector<iovec> parts = split(bytes, random);
        Ring::Gather from{parts.data(), parts.size()};
        return writer.append(Ring::Kind::message, from, nbytes);
    }
    bool write(uint64_t number, size_t nbytes) {
        if (!append(number, nbytes)) return false;
        writer.publish();
        return true;
    }
    void read(uint64_t number, size_t nbytes) {
        Ring::Record record;
        CHECK(reader.peek(record) && record.kind == Ring::Kind::message && record.nbytes == nbytes);
        std::vector<std::byte> got(nbytes);
        record.copy(got.data(), 0, nbytes);
        CHECK(got == make_content(number, nbytes));
        reader.consume();
    }
    bool is_empty() {
        Ring::Record record;
        return !reader.peek(record) && reader.fault() == Ring::Fault::none;
    }
};

void empty_and_zero_length() {
    Both both;
    CHECK(both.is_empty());
    CHECK(both.write(1, 0));
    both.read(1, 0);
    CHECK(both.is_empty());
    CHECK(!both.reader.release());
}

void records_wrap_at_every_offset() {
    for (size_t nbytes = 0; nbytes < 300; ++nbytes) {
        Both both;
        for (uint64_t number = 0; number < 200; ++number) {
            const size_t size = number % 3 ? nbytes : nbytes / 2 + 1;
            CHECK(both.write(number, size));
            both.read(number, size);
            both.reader.release();
        }
    }
}

void the_largest_record_fits_wherever_the_ring_is_empty() {
    Both both;
    const size_t most = both.writer.max_payload();
    CHECK(!both.write(0, most + 1));
    for (uint64_t number = 0; number < 300; ++number) {
        CHECK(both.write(number, most));
        CHECK(!both.write(0, 0) || number == UINT64_MAX);
        both.read(number, most);
        both.reader.release();
        CHECK(both.write(number, 8));  // moves on
        both.read(number, 8);
        both.reader.release();
        if (!both.writer.want(most)) {
            CHECK(both.is_empty() && both.reader.release());
            CHECK(both.is_empty() && !both.reader.release());  // answered once
        }
    }
}

void a_full_ring_takes_nothing_and_loses_nothing() {
    Both both;
    uint64_t written = 0, read = 0;
    while (both.write(written, 40)) ++written;
    CHECK(written == (4096 - 128 - 8) / 64);
    CHECK(!both.writer.want(40));
    for (int turn = 0; turn < 1000; ++turn) {
        both.read(read++, 40);
        both.reader.release();
        while (both.write(written, 40)) ++written;
    }
    while (read < written) both.read(read++, 40);
    CHECK(both.is_empty());
}

void whoever_waits_for_room_is_told_once() {
    Both both;
    uint64_t written = 0;
    while (both.write(written, 100)) ++written;
    CHECK(!both.writer.want(100));
    for (uint64_t number = 0; number < written; ++number) both.read(number, 100);
    CHECK(both.is_empty());
    CHECK(both.reader.release());
    CHECK(both.is_empty() && !both.reader.release());
    both.writer.stop_waiting();
    CHECK(both.write(written, 100));
    both.read(written, 100);
    CHECK(both.is_empty() && !both.reader.release());
}

void a_record_written_while_room_is_wanted_keeps_the_request() {
    Both both;
    CHECK(both.write(0, 100));
    CHECK(!both.writer.want(both.writer.max_payload()));
    CHECK(both.write(1, 8));  // fits
    both.read(0, 100);
    both.read(1, 8);
    CHECK(both.is_empty() && both.reader.release());
    CHECK(both.writer.want(both.writer.max_payload()));
}

void what_is_not_published_does_not_exist() {
    Both both;
    CHECK(both.append(1, 10) && both.append(2, 0) && both.append(3, 77));
    CHECK(both.is_empty());
    both.writer.publish();
    both.writer.publish();
    both.read(1, 10);
    both.read(2, 0);
    both.read(3, 77);
    CHECK(both.is_empty());
    // Old payloads that look like records are none.
    Both again;
    for (int i = 0; i < 500; ++i) {
        uint64_t looks[4] = {uint64_t(1) << 32 | 8, uint64_t(1) << 32 | 8, uint64_t(1) << 32, uint64_t(2) << 32};
        iovec iov{looks, size_t(8 + i % 25)};
        Ring::Gather from{&iov, 1};
        CHECK(try_write(again.writer, Ring::Kind::piece, from, iov.iov_len));
        Ring::Record record;
        CHECK(again.reader.peek(record) && record.kind == Ring::Kind::piece && record.nbytes == iov.iov_len);
        again.reader.consume();
        CHECK(again.is_empty());
        again.reader.release();
    }
}

void a_header_and_its_data_wrap_together() {
    Both both;
    for (uint64_t number = 0; number < 2000; ++number) {
        const size_t header_nbytes = number % 41, nbytes = header_nbytes + number % 701;
        const std::vector<std::byte> all = make_content(number, nbytes);
        CHECK(both.writer.append(Ring::Kind::message, all.data(), header_nbytes, all.data() + header_nbytes,
                                 nbytes - header_nbytes, uint32_t(header_nbytes)));
        CHECK(both.is_empty());
        both.writer.publish();
        Ring::Record record;
        CHECK(both.reader.peek(record) && record.note == header_nbytes);
        CHECK(reinterpret_cast<uintptr_t>(record.first) % Ring::step_nbytes == Ring::word_nbytes);
        both.read(number, nbytes);
        both.reader.release();
    }
    const std::vector<std::byte> all = make_content(0, 4096);
    CHECK(!both.writer.append(Ring::Kind::message, all.data(), 8, all.data(), both.writer.max_payload() - 7, 8));
}

void payloads_are_read_from_any_offset() {
    for (size_t shift = 0; shift < 4096; shift += 40) {
        Both both;
        if (shift) {
            CHECK(both.write(0, shift < 3880 ? shift : 3880));
            both.read(0, shift < 3880 ? shift : 3880);
            both.reader.release();
        }
        if (!both.write(9, 1000)) continue;
        Ring::Record record;
        CHECK(both.reader.peek(record));
        for (size_t offset = 0; offset <= 1000; offset += 37) {
            std::byte got[1000];
            const size_t n = (1000 - offset) / 2;
            record.copy(got, offset, n);
            for (size_t i = 0; i < n; ++i) CHECK(got[i] == content(9, offset + i));
        }
    }
}

void a_bad_record_is_named() {
    for (auto [word, fault] : {std::pair{uint64_t(0x55), Ring::Fault::bad_kind},
                               {uint64_t(8) << 32, Ring::Fault::bad_kind},
                               {uint64_t(1) << 63, Ring::Fault::bad_kind},
                               {uint64_t(1) << 32 | 0xffffffff, Ring::Fault::bad_length},
                               {uint64_t(2) << 32 | (4096 - 128 - 71), Ring::Fault::bad_length}}) {
        Both both;
        both.word(0) = word;
        Ring::Record record;
        CHECK(!both.reader.peek(record) && both.reader.fault() == fault);
        both.word(0) = 0;
        CHECK(both.write(1, 8));
        CHECK(!both.reader.peek(record) && both.reader.fault() == fault);  // for good
        both.reader.consume();
        CHECK(!both.reader.release());
        CHECK(Ring::name_of(fault)[0] == 'b');
    }
}

void a_bad_cursor_is_named() {
    for (uint64_t tail :
         {uint64_t(4), uint64_t(3848), uint64_t(8000), UINT64_MAX, UINT64_MAX - 7, uint64_t(1) << 63, uint64_t(24)}) {
        Both both;
        uint64_t written = 0;
        while (both.write(written, 100)) ++written;
        for (uint64_t number = 0; number < written; ++number) both.read(number, 100);
        both.reader.release();
        while (both.write(written, 100)) ++written;
        both.tail() = tail;
        CHECK(!both.write(0, 100) && both.writer.fault() == Ring::Fault::bad_tail);
        both.tail() = 3968;
        CHECK(!both.write(0, 0) && !both.writer.want(0));
    }
}

void bells_ring() {
    alignas(4096) static Ring::DoorbellBits bits;
    static Ring::DoorbellState state;
    Ring::Doorbell doorbell(&bits, &state);
    CHECK(doorbell.words() == 0);
    doorbell.add(5);
    doorbell.add(700);
    CHECK(doorbell.words() == 11 && doorbell.attends(5) && !doorbell.attends(6));
    Ring::Bell five(&bits, &state, 5), six(&bits, &state, 6), far(&bits, &state, 700);
    CHECK(!five.ring() && doorbell.take(0) == 0);  // it is attended to as it is
    doorbell.dismiss(5);
    doorbell.dismiss(700);
    CHECK(doorbell.take(0) == 0 && doorbell.take(10) == 0);
    CHECK(!five.ring() && !six.ring() && !far.ring());
    CHECK(doorbell.take(0) == 1 << 5 && doorbell.take(0) == 0 && doorbell.attends(5));
    CHECK(doorbell.take(10) == uint64_t(1) << 700 % 64);
    doorbell.fall_asleep();
    CHECK(five.ring() && !five.ring() && far.ring());  // one byte in each sleep
    doorbell.wake_up();
    CHECK(!five.ring());
    doorbell.fall_asleep();
    CHECK(five.ring());
    doorbell.wake_up();
    // Anybody may set and clear anything.
    bits.words[0] = UINT64_MAX;
    CHECK(doorbell.take(0) == 0);
    bits.words[0] = 0;
    CHECK(doorbell.attends(5) && !five.ring() && bits.words[0] == 1 << 5);
    doorbell.remove(5);
    bits.words[0] = UINT64_MAX;
    CHECK(doorbell.take(0) == 0 && !doorbell.attends(5));
}

void arenas_are_carved() {
    const size_t page = Ring::page_nbytes();
    Ring::Arena arena;
    CHECK(arena.open() == 0);
    Ring::Pages first, second, large;
    CHECK(arena.carve(0, first) == EINVAL && arena.carve(100, first) == EINVAL);
    CHECK(arena.carve(16 * page, first) == 0 && arena.carve(16 * page, second) == 0);
    CHECK(first.offset + first.nbytes <= second.offset);
    CHECK(arena.carve(3 * Ring::Arena::chunk_nbytes, large) == 0);
    for (size_t i = 0; i < first.nbytes; ++i) CHECK(static_cast<char *>(first.data)[i] == 0);
    struct stat before, after;
    CHECK(fstat(arena.fd(), &before) == 0);
    CHECK(ftruncate(arena.fd(), 0) < 0 && errno == EPERM);
    CHECK(fcntl(arena.fd(), F_ADD_SEALS, F_SEAL_WRITE) < 0);
    Ring::Mapping mapping, readable, none;
    Ring::SealedFile file(arena.fd());
    CHECK(none.map(file, 0, page, true) == EINVAL);  // not yet checked
    CHECK(file.check() == 0);
    CHECK(mapping.map(file, second.offset, second.nbytes, true) == 0);
    std::memset(mapping.data(), 'x', second.nbytes);
    CHECK(static_cast<char *>(second.data)[second.nbytes - 1] == 'x' && static_cast<char *>(first.data)[0] == 0);
    CHECK(readable.map(file, second.offset, second.nbytes, false) == 0);
    CHECK(static_cast<char *>(readable.data())[0] == 'x');
    CHECK(none.map(file, 1, page, true) == EINVAL);
    CHECK(none.map(file, 0, 0, true) == EINVAL);
    CHECK(none.map(file, 0, uint64_t(1) << 40, true) == EINVAL);
    CHECK(none.map(file, ~(uint64_t(page) - 1), page, true) == EINVAL);
    CHECK(none.map(file, uint64_t(before.st_size), page, true) == EINVAL);
    CHECK(Ring::SealedFile(-1).check() == EINVAL);
    const int open_file = memfd_create("can be shortened", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(ftruncate(open_file, off_t(page)) == 0 && Ring::SealedFile(open_file).check() == EINVAL);
    const int huge = memfd_create("of huge pages", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
    CHECK(huge < 0 || (ftruncate(huge, 1 << 21) == 0 && fcntl(huge, F_ADD_SEALS, F_SEAL_SHRINK) == 0));
    CHECK(Ring::SealedFile(huge).check() == EINVAL);
    // What is carved without memory takes none before it is asked for.
    Ring::Pages later;
    CHECK(arena.carve(page, 2 * page, later) == EINVAL);
    CHECK(arena.carve(64 * page, page, later) == 0 && fstat(arena.fd(), &after) == 0);
    CHECK(size_t(after.st_blocks - before.st_blocks) * 512 == page);
    CHECK(arena.allocate(later.offset, later.nbytes) == 0 && fstat(arena.fd(), &after) == 0);
    CHECK(size_t(after.st_blocks - before.st_blocks) * 512 == later.nbytes);
    arena.free(later);
    // What is freed is given back, and its offset is never carved again.
    arena.free(first);
    arena.free(large);
    CHECK(fstat(arena.fd(), &after) == 0);
    CHECK(size_t(before.st_blocks - after.st_blocks) * 512 == first.nbytes + large.nbytes);
    Ring::Pages third;
    for (int i = 0; i < 100; ++i) {
        CHECK(arena.carve(16 * page, third) == 0 && third.offset >= large.offset + large.nbytes);
        std::memset(third.data, 1, third.nbytes);
        arena.free(third);
    }
    CHECK(static_cast<char *>(mapping.data())[7] == 'x');
}

size_t held_by(const Ring::Arena &arena) {
    struct stat status;
    CHECK(fstat(arena.fd(), &status) == 0);
    return size_t(status.st_blocks) * 512;
}

/// A writer learns late that its ring was freed, and what it writes until then takes memory again.
void late_writers_take_no_memory_for_long() {
    const size_t page = Ring::page_nbytes(), chunk = Ring::Arena::chunk_nbytes;
    Ring::Arena arena;
    Ring::Pages kept;
    CHECK(arena.open() == 0 && arena.carve(page, kept) == 0);
    for (size_t i = 0; i < 20 * chunk / (4 * page); ++i) {
        Ring::Pages pages;
        Ring::Mapping late;
        CHECK(arena.carve(4 * page, pages) == 0);
        Ring::SealedFile file(arena.fd());
        CHECK(file.check() == 0 && late.map(file, pages.offset, pages.nbytes, true) == 0);
        arena.free(pages);
        std::memset(late.data(), 1, pages.nbytes);
    }
    CHECK(held_by(arena) <= 3 * chunk);
}

/// Run it in a child; the status that it ended with.
template <typename Function>
int in_child(Function function) {
    const pid_t child = fork();
    if (child == 0) {
        alarm(10);
        function();
        _exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    return status;
}

void a_limit_of_file_size_is_an_error() {
    CHECK(in_child([] {
              rlimit limit{4096, 4096};
              CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
              Ring::Arena arena;
              Ring::Pages pages;
              CHECK(arena.open() == 0 && arena.carve(Ring::page_nbytes(), pages) == EFBIG);
          }) == 0);
}

void a_filter_that_refuses_memfd_is_an_error() {
    CHECK(in_child([] {
              sock_filter code[] = {
                  BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                  BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_memfd_create, 0, 1),
                  BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                  BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
              };
              sock_fprog program{4, code};
              CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
              if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
                  dprintf(STDOUT_FILENO, "not tried: this machine takes no seccomp filter\n");
                  return;
              }
              Ring::Arena arena;
              CHECK(arena.open() == EPERM && arena.fd() < 0);
          }) == 0);
}

void a_forked_child_has_none_of_the_pages() {
    Ring::Arena arena;
    Ring::Pages pages;
    Ring::Mapping mapping;
    CHECK(arena.open() == 0 && arena.carve(Ring::page_nbytes(), pages) == 0);
    Ring::SealedFile file(arena.fd());
    CHECK(file.check() == 0 && mapping.map(file, pages.offset, pages.nbytes, true) == 0);
    for (void *data : {pages.data, mapping.data()}) {
        const int status = in_child([data] { *static_cast<volatile char *>(data) = 1; });
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    }
    CHECK(*static_cast<char *>(pages.data) == 0);
    // Something of the child's own may lie where they lay.
    CHECK(in_child([&] {
              const size_t page = Ring::page_nbytes();
              void *own =
                  mmap(mapping.data(), page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
              CHECK(own == mapping.data());
              mapping.~Mapping();
              *static_cast<volatile char *>(own) = 1;
          }) == 0);
}

void a_copy_is_exact_at_every_place() {
    constexpr size_t most = 1024 * 1024 + 4096, page = 4096;
    const std::vector<std::byte> source = make_content(1, most + 2 * page);
    std::vector<std::byte> target(most + 3 * page), expected(target.size());
    for (size_t nbytes : {size_t(0), size_t(1), size_t(2047), size_t(2048), size_t(2049), size_t(4096), size_t(65537),
                          most - page, most - page + 1})
        for (size_t after : {0, 1, 15, 16, 17, 32, 33, 63, 64, 65, 2048, 4032, 4080, 4095}) {
            const size_t at = (uintptr_t(source.data()) - uintptr_t(target.data()) + after) % page;
            std::fill(target.begin(), target.end(), std::byte(7));
            std::fill(expected.begin(), expected.end(), std::byte(7));
            std::copy_n(source.begin(), nbytes, expected.begin() + ptrdiff_t(at));
            copy_bytes(target.data() + at, source.data(), nbytes);
            CHECK(target == expected);
        }
}

}  // namespace

/// `unit emulated`: not what qemu-user lacks, MADV_DONTFORK.
int main(int argc, char **) {
    empty_and_zero_length();
    records_wrap_at_every_offset();
    the_largest_record_fits_wherever_the_ring_is_empty();
    a_full_ring_takes_nothing_and_loses_nothing();
    whoever_waits_for_room_is_told_once();
    a_record_written_while_room_is_wanted_keeps_the_request();
    what_is_not_published_does_not_exist();
    a_header_and_its_data_wrap_together();
    payloads_are_read_from_any_offset();
    a_bad_record_is_named();
    a_bad_cursor_is_named();
    a_copy_is_exact_at_every_place();
    bells_ring();
    arenas_are_carved();
    late_writers_take_no_memory_for_long();
    a_limit_of_file_size_is_an_error();
    a_filter_that_refuses_memfd_is_an_error();
    if (argc == 1)
        a_forked_child_has_none_of_the_pages();
    else
        printf("not tried: MADV_DONTFORK\n");
    printf("unit: all hold\n");
}
