// SPDX-License-Identifier: Apache-2.0
// A stable radix sort, least digit first, of 32- or 64-bit keys with a 32-bit value each, on the CPU.
// The result depends on nothing but the input, whatever the number of threads.
#ifndef SPOPS_CORE_RADIX_SORT_H
#define SPOPS_CORE_RADIX_SORT_H

#include "core/memory.h"
#include "core/threads.h"

typedef struct spops_radix_buffers {
    void *keys[2];      // [max_items] of uint32_t or uint64_t
    int32_t *values[2]; // [max_items]
    int32_t *counts;    // [max_parts][2^digit_bits]
    int key_bytes;
    int digit_bits, max_parts; // at most; they follow from the sizes
} spops_radix_buffers;

spops_radix_buffers spops_radix_carve(int key_bytes, int64_t max_items, spops_carver *carver);

// Sort n items of keys[from], values[from] by their lowest `bits` bits. Returns where the result is
// (0 or 1).
int spops_radix_sort(spops_team team, int bits, int64_t n, const spops_radix_buffers *buffers,
                     int from);

// Turn counts [part][digit] of n items into where part `part` puts its first item of each digit.
// False if all items have the same digit, and need not move.
bool spops_radix_scan(int32_t *counts, int num_parts, int64_t num_digits, int64_t n);

#endif
