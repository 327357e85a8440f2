// SPDX-License-Identifier: BSD-3-Clause
// Synchronization with device memory through the GPU drivers: pending work on it, and whether it is managed. Drivers
// are neither linked nor loaded here: a driver is already loaded if anything has made device memory.
#pragma once

#include "ucp/ucx.hpp"

/// The legacy default streams in DLPack and the CUDA array interface; for CUDA also the driver's handle.
constexpr int cuda_default_stream = 1, rocm_default_stream = 0;

/// Wait, without the GIL, for all work submitted to `stream` of the device that owns `address`.
void synchronize_cuda(const void *address, uintptr_t stream, const char *op);
/// The index of the device that owns this memory.
int cuda_device(uintptr_t address);
bool is_cuda_managed(const void *address, const char *op);
/// Wait, without the GIL, for all work submitted to the device's default stream.
void synchronize_rocm(int device, const char *op);
