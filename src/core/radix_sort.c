// SPDX-License-Identifier: Apache-2.0
#include "core/radix_sort.h"

#include <string.h>

// A digit has at most 2^14 values: one pass sorts by the cells of a grid of 128 x 128, and the
// counters of a thread still fit its second-level cache. Keys of 64 bits need several passes in any
// case, and are faster with counters that fit the first level.
#define MAX_DIGIT_BITS_32 14
#define MAX_DIGIT_BITS_64 11
#define MAX_PARTS         64

spops_radix_buffers spops_radix_carve(int key_bytes, int64_t max_items, spops_carver *carver)
{
    const int most = key_bytes == 4 ? MAX_DIGIT_BITS_32 : MAX_DIGIT_BITS_64;
    spops_radix_buffers b;
    int64_t parts;

    memset(&b, 0, sizeof b); // workspaces in blocks hold it: the same bytes each time
    b.key_bytes = key_bytes;
    b.digit_bits = key_bytes == 4 ? 8 : MAX_DIGIT_BITS_64;
    // More counters than items would cost more than another pass.
    while (b.digit_bits < most && (int64_t)2 << b.digit_bits <= max_items / 4)
        ++b.digit_bits;
    parts = max_items >> (b.digit_bits + 1);
    b.max_parts = parts < 1 ? 1 : parts < MAX_PARTS ? (int)parts : MAX_PARTS;
    for (int i = 0; i < 2; ++i) {
        b.keys[i] = spops_carve(carver, max_items, 1, (size_t)key_bytes);
        b.values[i] = (int32_t *)spops_carve(carver, max_items, 1, sizeof(int32_t));
    }
    b.counts =
        (int32_t *)spops_carve(carver, b.max_parts, (int64_t)1 << b.digit_bits, sizeof(int32_t));
    return b;
}

bool spops_radix_scan(int32_t *counts, int num_parts, int64_t num_digits, int64_t n)
{
    int32_t sum = 0;
    for (int64_t d = 0; d < num_digits; ++d) {
        const int32_t before = sum;
        for (int part = 0; part < num_parts; ++part) {
            int32_t *count = &counts[part * num_digits + d];
            const int32_t own = *count;
            *count = sum;
            sum += own;
        }
        if (sum - before == n) return false;
    }
    return true;
}

typedef struct radix_pass {
    const void *keys;
    const int32_t *values;
    void *to_keys;
    int32_t *to_values, *counts;
    int64_t num_digits;
    int shift;
} radix_pass;

// For keys of either width, which is a constant where these are inlined.
#define ALWAYS_INLINE static inline __attribute__((always_inline))

ALWAYS_INLINE uint32_t digit(const radix_pass *p, bool wide, int64_t i)
{
    const uint32_t mask = (uint32_t)p->num_digits - 1;
    return wide ? (uint32_t)(((const uint64_t *)p->keys)[i] >> p->shift) & mask
                : ((const uint32_t *)p->keys)[i] >> p->shift & mask;
}

ALWAYS_INLINE void count_digits(const radix_pass *p, bool wide, int64_t part, int64_t begin,
                                int64_t end)
{
    int32_t *counts = p->counts + part * p->num_digits;
    memset(counts, 0, (size_t)p->num_digits * sizeof *counts);
    for (int64_t i = begin; i < end; ++i)
        ++counts[digit(p, wide, i)];
}

ALWAYS_INLINE void move_items(const radix_pass *p, bool wide, int64_t part, int64_t begin,
                              int64_t end)
{
    int32_t *next = p->counts + part * p->num_digits;
    for (int64_t i = begin; i < end; ++i) {
        const int32_t place = next[digit(p, wide, i)]++;
        if (wide)
            ((uint64_t *)p->to_keys)[place] = ((const uint64_t *)p->keys)[i];
        else
            ((uint32_t *)p->to_keys)[place] = ((const uint32_t *)p->keys)[i];
        p->to_values[place] = p->values[i];
    }
}

static void count_32(const void *pass, int64_t part, int64_t begin, int64_t end)
{
    count_digits((const radix_pass *)pass, false, part, begin, end);
}

static void count_64(const void *pass, int64_t part, int64_t begin, int64_t end)
{
    count_digits((const radix_pass *)pass, true, part, begin, end);
}

static void move_32(const void *pass, int64_t part, int64_t begin, int64_t end)
{
    move_items((const radix_pass *)pass, false, part, begin, end);
}

static void move_64(const void *pass, int64_t part, int64_t begin, int64_t end)
{
    move_items((const radix_pass *)pass, true, part, begin, end);
}

int spops_radix_sort(spops_team team, int bits, int64_t n, const spops_radix_buffers *b, int from)
{
    const bool wide = b->key_bytes == 8;
    const int num_passes = (bits + b->digit_bits - 1) / b->digit_bits;
    const int digit_bits = num_passes > 0 ? (bits + num_passes - 1) / num_passes : 0;
    const int64_t num_digits = (int64_t)1 << digit_bits, parts = n >> (digit_bits + 1);
    int num_parts = spops_team_parts(team, b->max_parts);

    if (parts < num_parts) num_parts = parts < 1 ? 1 : (int)parts;
    for (int pass = 0; pass < num_passes && n > 1; ++pass) {
        const int to = from ^ 1;
        const radix_pass p = {b->keys[from], b->values[from], b->keys[to],      b->values[to],
                              b->counts,     num_digits,      pass * digit_bits};
        spops_parallel_parts(team, num_parts, n, wide ? count_64 : count_32, &p);
        if (!spops_radix_scan(b->counts, num_parts, num_digits, n)) continue;
        spops_parallel_parts(team, num_parts, n, wide ? move_64 : move_32, &p);
        from = to;
    }
    return from;
}
