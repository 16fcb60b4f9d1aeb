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

// For keys of either width, which is a constant where this is inlined.
static inline __attribute__((always_inline)) int
sort(bool wide, int num_threads, int bits, int64_t n, const spops_radix_buffers *b, int from)
{
    const int num_passes = (bits + b->digit_bits - 1) / b->digit_bits;
    const int digit_bits = num_passes > 0 ? (bits + num_passes - 1) / num_passes : 0;
    const int64_t num_digits = (int64_t)1 << digit_bits, parts = n >> (digit_bits + 1);
    const uint32_t mask = (uint32_t)num_digits - 1;
    int num_parts = num_threads < b->max_parts ? num_threads : b->max_parts;

    if (parts < num_parts) num_parts = parts < 1 ? 1 : (int)parts;
    for (int pass = 0; pass < num_passes && n > 1; ++pass) {
        const int shift = pass * digit_bits, to = from ^ 1;
        const uint32_t *keys_32 = (const uint32_t *)b->keys[from];
        const uint64_t *keys_64 = (const uint64_t *)b->keys[from];
        uint32_t *to_32 = (uint32_t *)b->keys[to];
        uint64_t *to_64 = (uint64_t *)b->keys[to];
        const int32_t *values = b->values[from];
        int32_t *to_values = b->values[to];
#define DIGIT(i) (wide ? (uint32_t)(keys_64[i] >> shift) & mask : keys_32[i] >> shift & mask)
#pragma omp parallel for num_threads(num_parts) if (num_parts > 1) schedule(static, 1)
        for (int part = 0; part < num_parts; ++part) {
            int32_t *counts = b->counts + part * num_digits;
            const int64_t end = spops_part_begin(n, part + 1, num_parts);
            memset(counts, 0, (size_t)num_digits * sizeof *counts);
            for (int64_t i = spops_part_begin(n, part, num_parts); i < end; ++i)
                ++counts[DIGIT(i)];
        }
        if (!spops_radix_scan(b->counts, num_parts, num_digits, n)) continue;
#pragma omp parallel for num_threads(num_parts) if (num_parts > 1) schedule(static, 1)
        for (int part = 0; part < num_parts; ++part) {
            int32_t *next = b->counts + part * num_digits;
            const int64_t end = spops_part_begin(n, part + 1, num_parts);
            for (int64_t i = spops_part_begin(n, part, num_parts); i < end; ++i) {
                const int32_t place = next[DIGIT(i)]++;
                if (wide)
                    to_64[place] = keys_64[i];
                else
                    to_32[place] = keys_32[i];
                to_values[place] = values[i];
            }
        }
#undef DIGIT
        from = to;
    }
    return from;
}

int spops_radix_sort(int num_threads, int bits, int64_t n, const spops_radix_buffers *buffers,
                     int from)
{
    return buffers->key_bytes == 8 ? sort(true, num_threads, bits, n, buffers, from)
                                   : sort(false, num_threads, bits, n, buffers, from);
}
