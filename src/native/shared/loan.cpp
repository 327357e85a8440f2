// SPDX-License-Identifier: BSD-3-Clause
#include "shared/loan.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include "shared/mappings.hpp"
#include "shared/shared_file.hpp"
#include "ucp/forks.hpp"

namespace {

std::mutex loans_mutex;
// By address. Never destroyed: loans may outlive static destructors.
auto &loans = *new std::map<const uint8_t *, Loan *>;

std::mutex left_mutex;
// Segments that may have unheld memory of a dead owner.
auto &left_behind = *new std::vector<std::weak_ptr<Borrowed>>;
std::atomic<bool> any_left = false;
int64_t next_sweep_ns = 0;
constexpr int64_t sweep_ns = 10'000'000;  // between checks whether an owner lives, or unsettled descriptors remain

// The loan that contains all of `data`, or null.
Loan *find(const void *data, size_t nbytes) noexcept {
    auto *address = static_cast<const uint8_t *>(data);
    auto at = loans.upper_bound(address);
    if (at == loans.begin()) return nullptr;
    Loan *loan = std::prev(at)->second;
    size_t within = size_t(address - loan->base);
    return within > loan->lease->nbytes || nbytes > loan->lease->nbytes - within ? nullptr : loan;
}

}  // namespace

Borrowed::~Borrowed() {
    if (!in_forked_child) close(fd);
}

void Borrowed::leave(const std::shared_ptr<Borrowed> &segment) noexcept {
    SharedFile::settle(segment->fd);
    segment->left = true;
    give_back(segment, 0, segment->nbytes);
}

void Borrowed::give_back(const std::shared_ptr<Borrowed> &segment, size_t offset, size_t nbytes) noexcept {
    if (SharedFile::punch(segment->fd, offset, nbytes) || segment->behind.exchange(true)) return;
    std::lock_guard lock(left_mutex);
    left_behind.push_back(segment);
    any_left = true;
}

void Borrowed::sweep() noexcept {
    if (!any_left) return;
    std::lock_guard lock(left_mutex);
    const int64_t now = now_ns();
    if (now < next_sweep_ns) return;
    next_sweep_ns = now + sweep_ns;
    std::erase_if(left_behind, [](auto &behind) {
        auto segment = behind.lock();
        if (segment) segment->behind = false;  // `give_back` registers it again for later pages
        if (!segment || SharedFile::punch(segment->fd, 0, segment->nbytes)) return true;
        segment->behind = true;
        return false;
    });
    any_left = !left_behind.empty();
}

Lease::Lease(std::shared_ptr<Lender> l, uint64_t id, std::shared_ptr<Borrowed> b, size_t n, size_t at) noexcept
    : lender(std::move(l)), number(id), segment(std::move(b)), nbytes(n), offset(at) {}

Lease::~Lease() {
    if (in_forked_child) return;
    lender->lease_over(number);
    if (segment->left) Borrowed::give_back(segment, offset, nbytes);
}

Loan::Loan(std::shared_ptr<Lease> l, void *address) noexcept
    : lease(std::move(l)), base(static_cast<uint8_t *>(address)) {
    set_flag();
    std::lock_guard lock(loans_mutex);
    loans[base] = this;
    Pool::borrowed += lease->nbytes;
    ++Mappings::taken;
}

Loan::~Loan() {
    if (!in_forked_child) {
        std::lock_guard lock(loans_mutex);
        loans.erase(base);
        Pool::borrowed -= lease->nbytes;
        --Mappings::taken;
    }
    munmap(base, lease->nbytes);
}

// MADV_DONTDUMP is one of the flags without side effects here: the owner's core dump has the pages.
void Loan::set_flag() noexcept {
    const bool counted = SharedFile::is_counted(lease->segment->fd, lease->offset, lease->nbytes);
    if (counted == flagged) return;
    if (madvise(base, lease->nbytes, counted ? MADV_DONTDUMP : MADV_DODUMP) == 0) flagged = counted;
}

void Loan::flag_all() noexcept {
    std::lock_guard lock(loans_mutex);
    for (auto &[base, loan] : loans) loan->set_flag();
}

// Check only the loans' own pages: smaps walks all of the process's, which took a tenth of a busy worker's time.
Loan::Counted Loan::counted_elsewhere() noexcept {
    Counted counted{0, 0, true};
    std::lock_guard lock(loans_mutex);
    for (auto &[base, loan] : loans) {
        const size_t nbytes = loan->lease->nbytes;
        loan->set_flag();
        SharedFile::Seen found;
        counted.known &= SharedFile::look(base, nbytes, found) && (loan->flagged || !found.shared);
        const size_t elsewhere = loan->flagged ? found.shared : 0;
        counted.resident += elsewhere;
        counted.mapped += nbytes + elsewhere - std::min(found.resident, nbytes);
    }
    return counted;
}

bool Loan::is_flagged(const void *data, size_t nbytes) noexcept {
    std::lock_guard lock(loans_mutex);
    const Loan *loan = find(data, nbytes);
    return loan && loan->flagged;
}

Pin Loan::pin(const void *data, size_t nbytes) noexcept {
    Pin pin;
    if (in_forked_child) return pin;
    {
        std::lock_guard lock(loans_mutex);
        const Loan *loan = find(data, nbytes);
        if (!loan) return pin;
        pin.lease = loan->lease;
        pin.segment_id = loan->lease->segment->id;
        pin.fd = loan->lease->segment->fd;
        pin.offset = loan->lease->offset + size_t(static_cast<const uint8_t *>(data) - loan->base);
    }
    if (!SharedFile::is_untouched(data, nbytes)) pin = Pin();
    return pin;
}
