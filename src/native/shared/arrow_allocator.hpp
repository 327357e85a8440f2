// SPDX-License-Identifier: BSD-3-Clause
// Arrow's buffers born in the pool, so that they can be lent without a copy.
#pragma once

#include "shared/pool.hpp"

void define_arrow_allocator(nb::module_ &m);
