// SPDX-License-Identifier: BSD-3-Clause
// Allocates NumPy arrays in the pool, so that they can be lent without a copy (NumPy's NEP 49).
#pragma once

#include "shared/pool.hpp"

void define_numpy_allocator(nb::module_ &m);
