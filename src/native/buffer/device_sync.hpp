// SPDX-License-Identifier: BSD-3-Clause
// The GPU drivers' part in taking device memory: what is still to be done to it, and whether it is managed. A driver is
// not linked and not loaded: it is there when something has made device memory.
#pragma once

#include "ucp/ucx.hpp"

/// DLPack's and the CUDA array interface's names for the legacy default streams; of CUDA, also the driver's handle.
constexpr int cuda_default_stream = 1, rocm_default_stream = 0;

/// Wait, without the GIL, until everything put on `stream` of the device of `address` is done.
void synchronize_cuda(const void *address, uintptr_t stream, const char *op);
/// The index of the device that has this memory.
int cuda_device(uintptr_t address);
bool is_cuda_managed(const void *address, const char *op);
/// Wait, without the GIL, until everything put on the device's default stream is done.
void synchronize_rocm(int device, const char *op);
