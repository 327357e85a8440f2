// SPDX-License-Identifier: BSD-3-Clause
#include "connection/rings.hpp"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "ucp/forks.hpp"

std::shared_ptr<SharedArena> SharedArena::of_process(int &error) noexcept {
    static std::mutex mutex;
    static std::weak_ptr<SharedArena> current;
    std::lock_guard lock(mutex);
    if (auto arena = current.lock()) return arena;
    auto fresh = std::make_unique<SharedArena>();
    error = fresh->arena.open();
    if (!error && getrandom(&fresh->id, sizeof fresh->id, 0) != sizeof fresh->id) error = errno;
    if (error) return nullptr;
    close_in_child(fresh->arena.fd());
    // In a forked child the descriptor is already closed, and another file may have its number.
    std::shared_ptr<SharedArena> shared(fresh.release(), [](SharedArena *arena) {
        if (in_forked_child) return;
        keep_in_child(arena->arena.fd());
        delete arena;
    });
    current = shared;
    return shared;
}

std::shared_ptr<Rings> Rings::of(Worker &worker) {
    if (!worker.poller) worker.poller = std::make_shared<Rings>(&worker);
    return std::static_pointer_cast<Rings>(worker.poller);
}

Rings::Rings(Worker *w) : worker(w) {
    int error = 0;
    arena = SharedArena::of_process(error);
    if (!arena) raise("NoMemoryError", std::string("Worker: the memory of its rings: ") + strerror(error), "Worker");
    const size_t page = Ring::page_nbytes();
    bits = carve(page);
    try {
        state = carve(page);
        area_pages = {new Ring::Pages(carve(Area::nbytes, Area::nbytes_of_small)), [arena = arena](Ring::Pages *pages) {
                          if (!in_forked_child) {
                              std::lock_guard lock(arena->mutex);
                              arena->arena.free(*pages);
                          }
                          delete pages;
                      }};
    } catch (...) {
        free(bits);
        if (state.data) free(state);
        throw;
    }
    area.data = static_cast<std::byte *>(area_pages->data);
    area.add(false);
    doorbell = std::make_unique<Ring::Doorbell>(bits.data, state.data);
    doorbell->fall_asleep();  // there may be no turn soon
}

Rings::~Rings() {
    if (in_forked_child) return;
    free(bits);
    free(state);
}

Ring::Pages Rings::carve(size_t nbytes, size_t allocated) {
    Ring::Pages pages;
    std::lock_guard lock(arena->mutex);
    if (int error = arena->arena.carve(nbytes, allocated, pages))
        raise("NoMemoryError",
              std::string("connect: cannot allocate memory for a ring: ") + strerror(error) +
                  (error == EFBIG ? "; raise the limit of file sizes (ulimit -f)" : ""),
              "connect");
    return pages;
}

void Rings::free(const Ring::Pages &pages) noexcept {
    std::lock_guard lock(arena->mutex);
    arena->arena.free(pages);
}

size_t Rings::add(RingEnd *link) {
    auto vacant = std::find(links.begin(), links.end(), nullptr);
    if (vacant == links.end()) {
        if (links.size() == Ring::max_links)
            raise("NoMemoryError",
                  "connect: a worker can have at most " + std::to_string(Ring::max_links) + " links on one host",
                  "connect");
        vacant = links.insert(links.end(), nullptr);
    }
    *vacant = link;
    const auto index = size_t(vacant - links.begin());
    doorbell->add(index);
    attended.push_back(link);
    return index;
}

void Rings::remove(RingEnd *link) noexcept {
    doorbell->remove(link->index);
    links[link->index] = nullptr;
    std::erase(attended, link);
    std::erase(waiting, link);
}

void Rings::attend(RingEnd *link) noexcept {
    if (doorbell->attends(link->index)) return;
    doorbell->attend(link->index);
    link->silent_turns = 0;
    attended.push_back(link);
}

void Rings::wait_for_room(RingEnd *link) noexcept {
    if (std::find(waiting.begin(), waiting.end(), link) == waiting.end()) waiting.push_back(link);
}

void Rings::collect() noexcept {
    for (RingEnd *link : links)
        if (link) link->collect();
}

bool Rings::watches() const noexcept {
    return std::any_of(waiting.begin(), waiting.end(), [](RingEnd *link) { return link->watches(); });
}

static_assert(Area::most_through_small(0) == 0 && Area::most_through_small(1 << 20) == 0);
static_assert(Area::most_through_small(2 << 20) == 8 << 20);

size_t Area::most_through_small() noexcept {
    static const size_t most = most_through_small(size_t(std::max(0L, sysconf(_SC_LEVEL2_CACHE_SIZE))));
    return most;
}

bool Rings::uses_large_piece(size_t left) noexcept {
    if (left <= Area::most_through_small()) return false;
    if (asked_for_large) return has_large;
    asked_for_large = true;
    std::lock_guard lock(arena->mutex);
    has_large =
        !arena->arena.allocate(area_pages->offset + Area::nbytes_of_small, Area::nbytes - Area::nbytes_of_small);
    if (has_large) area.add(true);
    return has_large;
}

void Rings::take_rung() noexcept {
    for (size_t word = 0; word < doorbell->words(); ++word)
        for (uint64_t rang = doorbell->take(word); rang; rang &= rang - 1) {
            RingEnd *link = links[word * 64 + size_t(std::countr_zero(rang))];
            link->silent_turns = 0;
            attended.push_back(link);
        }
}

unsigned Rings::turn() noexcept {
    take_rung();
    unsigned n = 0;
    for (size_t i = 0; i < attended.size();) {
        RingEnd *link = attended[i];
        if (unsigned got = link->receive()) {
            n += got;
            link->silent_turns = 0;
        } else if (++link->silent_turns * attended.size() >= patience) [[unlikely]] {
            doorbell->dismiss(link->index);
            if (unsigned late = link->receive()) {  // written before the bit was cleared
                n += late;
                link->silent_turns = 0;
                doorbell->attend(link->index);
            } else {
                attended[i] = attended.back();
                attended.pop_back();
                continue;
            }
        }
        ++i;
    }
    for (size_t i = 0; i < waiting.size();) {
        RingEnd *link = waiting[i];
        n += link->send_more();
        if (link->waits())
            ++i;
        else
            waiting.erase(waiting.begin() + ptrdiff_t(i));
    }
    return n;
}

// This order keeps a sender and this sleeper from missing each other: see ring/doorbell.hpp.
bool Rings::arm() noexcept {
    doorbell->fall_asleep();
    take_rung();
    bool quiet = true;
    for (size_t i = 0; i < attended.size(); ++i) quiet &= !attended[i]->receive();
    for (RingEnd *link : waiting) quiet &= !link->finds_room();
    return quiet;
}
