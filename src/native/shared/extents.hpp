// SPDX-License-Identifier: BSD-3-Clause
// A set of bytes of a file, as extents: which of a segment's free pages have been touched. Of segments and blocks it
// knows nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <utility>

/// Owns the extents, which are disjoint and never adjacent.
class Extents {
    using Map = std::map<size_t, size_t>;  // end by begin

  public:
    /// Add bytes of which none is in the set.
    void add(size_t begin, size_t end) {
        auto next = ends.lower_bound(begin);
        if (next != ends.begin() && std::prev(next)->second == begin) {
            begin = std::prev(next)->first;
            ends.erase(std::prev(next));
        }
        if (next != ends.end() && next->first == end) {
            end = next->second;
            ends.erase(next);
        }
        ends[begin] = end;
    }

    /// Take bytes out of the set, and return how many were in it.
    size_t remove(size_t begin, size_t end) {
        size_t removed = 0;
        for (auto it = first(begin); it != ends.end() && it->first < end; it = first(begin)) {
            auto [from, to] = *it;
            ends.erase(it);
            if (from < begin) ends[from] = begin;
            if (to > end) ends[end] = to;
            removed += std::min(to, end) - std::max(from, begin);
        }
        return removed;
    }

    size_t count(size_t begin, size_t end) const noexcept {
        size_t found = 0;
        for (auto it = first(begin); it != ends.end() && it->first < end; ++it)
            found += std::min(it->second, end) - std::max(it->first, begin);
        return found;
    }

    /// Return the last extent between `begin` and `end`; it is empty if there is none.
    std::pair<size_t, size_t> last(size_t begin, size_t end) const noexcept {
        auto it = ends.lower_bound(end);
        if (it == ends.begin() || std::prev(it)->second <= begin) return {end, end};
        --it;
        return {std::max(it->first, begin), std::min(it->second, end)};
    }

    /// Return the begin of the first extent between `begin` and `end`; `end` if there is none.
    size_t first_begin(size_t begin, size_t end) const noexcept {
        auto it = first(begin);
        return it == ends.end() ? end : std::min(std::max(it->first, begin), end);
    }

  private:
    Map ends;

    // The first extent with a byte at or after `begin`.
    Map::const_iterator first(size_t begin) const noexcept {
        auto it = ends.upper_bound(begin);
        return it != ends.begin() && std::prev(it)->second > begin ? std::prev(it) : it;
    }
};
