// A stable sort of 64-bit keys with a 32-bit value each, on the CPU. The result depends on nothing
// but the input, whatever the number of threads.
#ifndef SPOPS_COORDS_RADIX_SORT_H
#define SPOPS_COORDS_RADIX_SORT_H

#include "core/memory.h"

typedef struct spops_radix_buffers {
    uint64_t *keys[2];  // [max_items]
    int32_t *values[2]; // [max_items]
    int32_t *counts;
} spops_radix_buffers;

spops_radix_buffers spops_radix_carve(int64_t max_items, spops_carver *carver);

// Sort n items of keys[from], values[from] by their lowest `bits` bits. Returns where the result is
// (0 or 1).
int spops_radix_sort(int num_threads, int bits, int64_t n, const spops_radix_buffers *buffers,
                     int from);

// Part `part` of `num_parts` of n items begins here.
static inline int64_t spops_part_begin(int64_t n, int64_t part, int64_t num_parts)
{
    return n / num_parts * part + (part < n % num_parts ? part : n % num_parts);
}

#endif
