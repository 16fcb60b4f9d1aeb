// SPDX-License-Identifier: Apache-2.0
// CUB's sorts and scans over a whole device, compiled once: its headers take longer to read than most of
// our sources to compile.
#ifndef SPOPS_KERNELS_CORE_DEVICE_WIDE_H
#define SPOPS_KERNELS_CORE_DEVICE_WIDE_H

#include <cuda_runtime.h>
#include <stdint.h>

#include "core/memory.h"
#include "kernels/launchers.h"

namespace spops
{

// Keys and their values, in one of two buffers that a sort goes back and forth between.
struct sort_buffers {
    uint32_t *keys[2];
    int32_t *values[2];
    int current;
};

// The memory that sorts and scans of a launcher work in. Its workspace first says what they will need,
// then carves the most of it.
struct device_wide {
    void *temp;
    size_t bytes;

    // Key: uint32_t, uint64_t, or sort_buffers. Count: int32_t, or int2 in place.
    template <class Key> void needs_sort(int64_t n, int end_bit);
    template <class Count> void needs_scan(int64_t n);
    void carve(spops_carver *c) { temp = spops_carve(c, (int64_t)bytes, 1, 1); }

    // Stable, of n pairs by bits 0 .. end_bit - 1 of the key.
    template <class Key>
    spops_status sort(spops_context *ctx, const char *what, const Key *keys, Key *sorted_keys,
                      const int32_t *values, int32_t *sorted_values, int64_t n, int end_bit) const;
    spops_status sort(spops_context *ctx, const char *what, sort_buffers *pairs, int64_t n,
                      int end_bit) const;
    // Each of n counts becomes the sum of those before it; out may be in. Of pairs of counts, each half
    // by itself.
    spops_status scan(spops_context *ctx, const char *what, const int32_t *in, int32_t *out,
                      int64_t n) const;
    spops_status scan(spops_context *ctx, const char *what, int2 *counts, int64_t n) const;
};

} // namespace spops

#endif
