// SPDX-License-Identifier: Apache-2.0
// Sorts of words against qsort, and codes along curves against their definition.
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "coords/voxel_isa.h"
#include "core/word_sort.h"
#include "tests/support/random.h"

static spops_context *cpu_context(int num_threads)
{
    spops_context *ctx = NULL;
    spops_context_options options = spops_context_options_default();
    options.backend = SPOPS_BACKEND_CPU;
    options.num_threads = num_threads;
    cr_assert_eq(spops_context_create(&options, &ctx), SPOPS_STATUS_OK);
    return ctx;
}

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

// Which keys the words have: drawn from all, from few, from one bucket but for one, in order.
enum { KEYS_ALL, KEYS_FEW, KEYS_SKEWED, KEYS_ASCENDING, NUM_KEYS };

static void check_sort(test_rng *random, spops_team team, int64_t n, int key_bits, int kind)
{
    const int low = spops_bits_below(n);
    uint64_t *words = malloc((size_t)(n + 1) * sizeof *words);
    uint64_t *spare = malloc((size_t)(n + 1) * sizeof *spare);
    uint64_t *expected = malloc((size_t)(n + 1) * sizeof *expected);
    int32_t *counts = malloc(spops_word_counts(n) * sizeof *counts);
    for (int64_t i = 0; i < n; ++i) {
        uint64_t key = test_rng_next(random) >> (64 - key_bits);
        if (kind == KEYS_FEW) key %= 7;
        if (kind == KEYS_SKEWED && i > 0) key >>= key_bits > 20 ? 20 : key_bits - 1;
        if (kind == KEYS_SKEWED && i == 0) key = ((uint64_t)1 << key_bits) - 1;
        if (kind == KEYS_ASCENDING) key = (uint64_t)i >> (low > key_bits ? low - key_bits : 0);
        words[i] = expected[i] = key << low | (uint64_t)i;
    }
    words[n] = spare[n] = 0x5a5a5a5a5a5a5a5aULL;
    // Stable: what stands below the key ascends, so that whole words do.
    qsort(expected, (size_t)n, sizeof *expected, by_value);
    const uint64_t *sorted = spops_word_sort(team, n, low, low + key_bits, words, spare, counts);
    cr_assert(memcmp(sorted, expected, (size_t)n * sizeof *expected) == 0,
              "%d words, keys of %d bits, kind %d, %d threads", (int)n, key_bits, kind, team.size);
    cr_assert(words[n] == 0x5a5a5a5a5a5a5a5aULL && spare[n] == 0x5a5a5a5a5a5a5a5aULL);
    free(counts);
    free(expected);
    free(spare);
    free(words);
}

Test(sorts, words)
{
    static const int64_t sizes[] = {0, 1, 2, 24, 25, 1000, 2048, 5000, 70000, 140000};
    static const int bits[] = {1, 9, 10, 33, 46};
    test_rng random = test_rng_make(7);
    for (int threads = 1; threads <= 3; ++threads) {
        spops_context *ctx = cpu_context(threads);
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; ++s)
            for (size_t b = 0; b < sizeof bits / sizeof *bits; ++b)
                for (int kind = 0; kind < NUM_KEYS; ++kind) {
                    if (sizes[s] > 10000 && bits[b] != 33) continue;
                    check_sort(&random, spops_team_for(ctx, (int64_t)1 << 30), sizes[s], bits[b],
                               kind);
                }
        spops_context_destroy(ctx);
    }
}

Test(sorts, order_codes)
{
    static const int bits[][SPOPS_KEY_COLUMNS] = {
        {0, 12, 12, 8, 0}, {3, 1, 0, 5, 0},  {2, 15, 15, 15, 15}, {0, 7, 0, 0, 0},
        {4, 20, 3, 0, 0},  {0, 0, 0, 0, 0},  {1, 4, 9, 2, 6},     {0, 20, 20, 20, 0},
        {0, 31, 31, 0, 0}, {5, 32, 0, 0, 0},
    };
    static const int dims[] = {3, 3, 4, 1, 2, 3, 4, 3, 2, 1};
    spops_context *ctx = cpu_context(1);
    const spops_voxel_table *table = spops_voxel_table_of(ctx);
    test_rng random = test_rng_make(8);
    for (size_t i = 0; i < sizeof dims / sizeof *dims; ++i) {
        spops_key_layout layout = {.dims = dims[i]};
        for (int c = dims[i]; c >= 0; --c) {
            layout.bits[c] = bits[i][c];
            layout.shift[c] = layout.key_bits;
            layout.key_bits += bits[i][c];
            layout.lower[c] = c == 0 ? 0 : -5;
            if (c > 0 && bits[i][c] > layout.max_axis_bits) layout.max_axis_bits = bits[i][c];
        }
        for (int curve = 0; curve < 2; ++curve) {
            const spops_curve along = spops_curve_make(&layout, curve ? SPOPS_COORDS_ORDER_HILBERT
                                                                      : SPOPS_COORDS_ORDER_MORTON);
            for (int round = 0; round < 100; ++round) {
                uint64_t keys[SPOPS_VOXEL_BLOCK], found[SPOPS_VOXEL_BLOCK];
                const int n = 1 + round % SPOPS_VOXEL_BLOCK;
                for (int k = 0; k < n; ++k)
                    keys[k] =
                        layout.key_bits > 0 ? test_rng_next(&random) >> (64 - layout.key_bits) : 0;
                table->codes(&along, n, keys, found);
                for (int k = 0; k < n; ++k)
                    cr_assert(found[k] == (curve ? spops_key_hilbert(&layout, keys[k])
                                                 : spops_key_morton(&layout, keys[k])),
                              "layout %d, curve %d", (int)i, curve);
            }
        }
    }
    spops_context_destroy(ctx);
}
