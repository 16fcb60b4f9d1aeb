#include "coords/radix_sort.h"

#include <string.h>

#define DIGIT_BITS     11 // the counters of a part fit the first-level cache
#define NUM_DIGITS     (1 << DIGIT_BITS)
#define MAX_PARTS      16
#define MIN_PART_ITEMS 8192

spops_radix_buffers spops_radix_carve(int64_t max_items, spops_carver *carver)
{
    spops_radix_buffers b;
    for (int i = 0; i < 2; ++i) {
        b.keys[i] = spops_carve(carver, max_items, 1, sizeof(uint64_t));
        b.values[i] = spops_carve(carver, max_items, 1, sizeof(int32_t));
    }
    b.counts = spops_carve(carver, MAX_PARTS, NUM_DIGITS, sizeof(int32_t));
    return b;
}

static int num_parts_for(int num_threads, int64_t n)
{
    const int64_t parts = n / MIN_PART_ITEMS;
    int64_t most = num_threads < MAX_PARTS ? num_threads : MAX_PARTS;
    if (parts < most) most = parts;
    return most < 1 ? 1 : (int)most;
}

// Turn counts [part][digit] into where part `part` puts its first item of each digit. False if all
// items have the same digit, and need not move.
static bool scan_counts(int32_t *counts, int num_parts, int num_digits, int64_t n)
{
    int32_t sum = 0;
    for (int d = 0; d < num_digits; ++d) {
        const int32_t before = sum;
        for (int part = 0; part < num_parts; ++part) {
            int32_t *count = &counts[part * NUM_DIGITS + d];
            const int32_t own = *count;
            *count = sum;
            sum += own;
        }
        if (sum - before == n) return false;
    }
    return true;
}

int spops_radix_sort(int num_threads, int bits, int64_t n, const spops_radix_buffers *buffers,
                     int from)
{
    const int num_passes = (bits + DIGIT_BITS - 1) / DIGIT_BITS;
    const int digit_bits = num_passes > 0 ? (bits + num_passes - 1) / num_passes : 0;
    const int num_digits = 1 << digit_bits, num_parts = num_parts_for(num_threads, n);
    const uint64_t mask = (uint64_t)num_digits - 1;

    for (int pass = 0; pass < num_passes && n > 1; ++pass) {
        const int shift = pass * digit_bits, to = from ^ 1;
        const uint64_t *keys = buffers->keys[from];
        const int32_t *values = buffers->values[from];
#pragma omp parallel for num_threads(num_parts) if (num_parts > 1) schedule(static, 1)
        for (int part = 0; part < num_parts; ++part) {
            int32_t *counts = buffers->counts + part * NUM_DIGITS;
            const int64_t end = spops_part_begin(n, part + 1, num_parts);
            memset(counts, 0, (size_t)num_digits * sizeof *counts);
            for (int64_t i = spops_part_begin(n, part, num_parts); i < end; ++i)
                ++counts[keys[i] >> shift & mask];
        }
        if (!scan_counts(buffers->counts, num_parts, num_digits, n)) continue;
#pragma omp parallel for num_threads(num_parts) if (num_parts > 1) schedule(static, 1)
        for (int part = 0; part < num_parts; ++part) {
            int32_t *next = buffers->counts + part * NUM_DIGITS;
            const int64_t end = spops_part_begin(n, part + 1, num_parts);
            for (int64_t i = spops_part_begin(n, part, num_parts); i < end; ++i) {
                const int32_t place = next[keys[i] >> shift & mask]++;
                buffers->keys[to][place] = keys[i];
                buffers->values[to][place] = values[i];
            }
        }
        from = to;
    }
    return from;
}
