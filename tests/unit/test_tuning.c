// SPDX-License-Identifier: Apache-2.0
// The choices of the tuning tables (kernels/X/X_tuning.h), which are functions of numbers and need no
// device: what each architecture takes, and that every row names a variant that is compiled.
#include <criterion/criterion.h>
#include <string.h>

#include "kernels/bevpool/bev_spans_tuning.h"
#include "kernels/coords/coords_tuning.h"
#include "kernels/attention/attention_tuning.h"
#include "kernels/igemm/igemm_tuning.h"
#include "kernels/segreduce/segreduce_tuning.h"
#include "spops/spops.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const int32_t architectures[] = {75, 80, 86, 87, 89, 90, 100, 110, 120};

// ---- Segmented sums -----------------------------------------------------------------------------

static bool has_sum_variant(int32_t variant)
{
#define X(number, unroll, resident)                                                                \
    if (variant == (number)) return true;
    SPOPS_SEGREDUCE_VARIANTS(X)
#undef X
    return false;
}

Test(tuning, sum_rows_are_compiled)
{
    int32_t compiled = 0;
    for (size_t i = 0; i < COUNT(spops_segreduce_rows); ++i)
        cr_assert(has_sum_variant(spops_segreduce_rows[i].variant), "row %zu", i);
    for (int32_t v = 1; v <= 100; ++v)
        compiled += has_sum_variant(v);
    cr_assert(compiled == SPOPS_SEGREDUCE_NUM_VARIANTS, "%d variants", compiled);
    for (size_t i = 0; i < COUNT(spops_segsum_rows); ++i)
        cr_assert(spops_segsum_rows[i].thread_cols == 8 || spops_segsum_rows[i].thread_cols == 16);
}

Test(tuning, sums_take_more_blocks_where_there_are_many)
{
    for (size_t a = 0; a < COUNT(architectures); ++a) {
        for (spops_dtype dtype = SPOPS_DTYPE_F32; dtype <= SPOPS_DTYPE_BF16; ++dtype) {
            for (int regime = 0; regime < 2; ++regime) {
                for (int64_t cols = 4; cols <= 1024; cols *= 2) {
                    const spops_tuning_case at = {architectures[a], (spops_regime)regime, dtype,
                                                  cols};
                    const int32_t few = cols < 33 ? 3 : 1;
                    const int32_t many = at.compute_capability < 80 ? few : 2;
                    cr_assert(spops_segreduce_variant(&at, 0, 132) == few);
                    cr_assert(spops_segreduce_variant(&at, 12 * 132 - 1, 132) == few);
                    cr_assert(spops_segreduce_variant(&at, 12 * 132, 132) == many, "sm_%d",
                              architectures[a]);
                    cr_assert(spops_segreduce_variant(&at, INT64_C(1) << 40, 132) == many);
                }
            }
        }
    }
}

Test(tuning, narrow_sums_take_16_columns_of_wide_rows)
{
    for (size_t a = 0; a < COUNT(architectures); ++a) {
        spops_tuning_case at = {architectures[a], (spops_regime)0, SPOPS_DTYPE_F8E4M3, 255};
        cr_assert(spops_segsum_thread_cols(&at) == 8);
        at.cols = 256;
        cr_assert(spops_segsum_thread_cols(&at) == 16);
    }
}

// A row's key, one part after the other.
Test(tuning, keys)
{
    const spops_tuning_key key = {80, (int32_t)SPOPS_REGIME_DRAM_BOUND, 1u << SPOPS_DTYPE_F16, 64};
    spops_tuning_case at = {80, SPOPS_REGIME_DRAM_BOUND, SPOPS_DTYPE_F16, 64};
    cr_assert(spops_tuning_matches(&key, &at));
    at.compute_capability = 75;
    cr_assert(!spops_tuning_matches(&key, &at));
    at.compute_capability = 90;
    at.regime = SPOPS_REGIME_L2_RESIDENT;
    cr_assert(!spops_tuning_matches(&key, &at));
    at.regime = SPOPS_REGIME_DRAM_BOUND;
    at.dtype = SPOPS_DTYPE_BF16;
    cr_assert(!spops_tuning_matches(&key, &at));
    at.dtype = SPOPS_DTYPE_F16;
    at.cols = 63;
    cr_assert(!spops_tuning_matches(&key, &at));
    at.cols = 1024;
    cr_assert(spops_tuning_matches(&key, &at));
}

// ---- Spans --------------------------------------------------------------------------------------

Test(tuning, pool_rows_are_compiled)
{
    int32_t compiled = 0;
    for (size_t i = 0; i < COUNT(spops_bev_pool_rows); ++i)
        cr_assert(spops_bev_pool_variant_width(spops_bev_pool_rows[i].variant) ==
                      spops_bev_pool_rows[i].width,
                  "row %zu", i);
    for (int32_t v = 1; v <= 100; ++v)
        compiled += spops_bev_pool_variant_width(v) != 0;
    cr_assert(compiled == SPOPS_BEV_POOL_NUM_VARIANTS, "%d variants", compiled);
    cr_assert(spops_bev_pool_variant_width(0) == 0);
}

// An H200's 228 KB a multiprocessor, and blocks of which so many fit.
static int32_t pool_variant(int32_t architecture, int32_t fit, int32_t num_wedges, int64_t cols)
{
    const int32_t shared = 228 << 10, bytes = shared / fit - 1024;
    const spops_bev_pool_case at = {architecture,          132, shared, num_wedges,
                                    {bytes, bytes, bytes}, cols};
    return spops_bev_pool_variant(&at);
}

Test(tuning, pool_blocks)
{
    for (size_t a = 0; a < COUNT(architectures); ++a) {
        const int32_t sm = architectures[a];
        if (sm < 80) continue; // such a device has no spans
        // Four fit, and there are more than two a multiprocessor: blocks of five warps.
        cr_assert(pool_variant(sm, 4, 265, 64) == 2, "sm_%d", sm);
        cr_assert(pool_variant(sm, 4, 264, 64) == 1, "sm_%d", sm);
        cr_assert(pool_variant(sm, 3, 265, 64) == 1, "sm_%d", sm);
        cr_assert(pool_variant(sm, 4, 265, 80) == 4, "sm_%d", sm);
        cr_assert(pool_variant(sm, 4, 264, 80) == 3, "sm_%d", sm);
        cr_assert(pool_variant(sm, 2, 9999, 80) == 3, "sm_%d", sm);
        // Two do not fit: one of twelve.
        cr_assert(pool_variant(sm, 1, 132, 128) == 6, "sm_%d", sm);
        cr_assert(pool_variant(sm, 2, 132, 128) == 5, "sm_%d", sm);
        cr_assert(pool_variant(sm, 4, 9999, 256) == 5, "sm_%d", sm);
    }
    // The blocks of a launch count: 160 columns are two blocks of 80 a wedge.
    cr_assert(pool_variant(90, 4, 133, 160) == 4);
    cr_assert(pool_variant(90, 4, 132, 160) == 3);
}

Test(tuning, pool_widths)
{
    static const struct {
        int64_t cols;
        int32_t width;
    } widths[] = {{8, 64},    {64, 64},  {72, 80},   {80, 80},   {88, 128},
                  {128, 128}, {136, 80}, {160, 80},  {168, 64},  {192, 64},
                  {200, 80},  {240, 80}, {248, 128}, {256, 128}, {320, 64}};
    for (size_t i = 0; i < COUNT(widths); ++i) {
        const int32_t width = spops_bev_pool_widths[spops_bev_pool_width(widths[i].cols)];
        cr_assert(width == widths[i].width, "%d columns: %d", (int)widths[i].cols, width);
        for (int32_t v = 1; v <= SPOPS_BEV_POOL_NUM_VARIANTS; ++v)
            cr_assert(spops_bev_pool_accepts(v, widths[i].cols) ==
                      (spops_bev_pool_variant_width(v) != 80 || width == 80));
    }
    cr_assert(!spops_bev_pool_accepts(0, 64));
    cr_assert(!spops_bev_pool_accepts(SPOPS_BEV_POOL_NUM_VARIANTS + 1, 64));
}

static bool has_groups(int32_t groups)
{
#define X(number)                                                                                  \
    if (groups == (number)) return true;
    SPOPS_BEV_GRAD_GROUPS(X)
#undef X
    return false;
}

Test(tuning, gradient_groups)
{
    for (size_t i = 0; i < COUNT(spops_bev_grad_rows); ++i)
        cr_assert(has_groups(spops_bev_grad_rows[i].groups), "row %zu", i);
    for (size_t a = 0; a < COUNT(architectures); ++a) {
        cr_assert(spops_bev_grad_groups(architectures[a], 8) == 2);
        cr_assert(spops_bev_grad_groups(architectures[a], 32) == 2);
        cr_assert(spops_bev_grad_groups(architectures[a], 40) == 5);
        cr_assert(spops_bev_grad_groups(architectures[a], 80) == 5);
        cr_assert(spops_bev_grad_groups(architectures[a], 88) == 8);
        cr_assert(spops_bev_grad_groups(architectures[a], 128) == 8);
        cr_assert(spops_bev_grad_groups(architectures[a], 256) == 16);
    }
}

// ---- Coordinates --------------------------------------------------------------------------------

Test(tuning, searches)
{
    for (size_t a = 0; a < COUNT(architectures); ++a) {
        cr_assert(spops_search_choice(architectures[a], 256e3, 1000) == SPOPS_COORDS_SEARCH_GRID);
        cr_assert(spops_search_choice(architectures[a], 256e3 + 1, 1000) ==
                  SPOPS_COORDS_SEARCH_HASH);
        cr_assert(spops_search_choice(architectures[a], 1.0, 0) == SPOPS_COORDS_SEARCH_HASH);
        cr_assert(spops_search_choice(architectures[a], 1.0, 399999) == SPOPS_COORDS_SEARCH_GRID);
        cr_assert(spops_search_choice(architectures[a], 1.0, 400000) == SPOPS_COORDS_SEARCH_SORTED);
        cr_assert(spops_search_choice(architectures[a], 4096e6 + 1, 1000000) ==
                  SPOPS_COORDS_SEARCH_HASH);
    }
}

// ---- Tiles of implicit GEMM ---------------------------------------------------------------------

// The sets that were measured, and what comes next to a bound.
Test(tuning, pairs_of_tiles)
{
    static const struct {
        int64_t tiles, row_bytes, cols;
        int32_t taps_a_row;
        bool whole;
        int32_t tile, single, f32; // single: where there are no pairs; f32: of those rows
    } rows[] = {
        {225, 256, 128, 13, false, 20, 4, 4},
        {225, 192, 96, 13, false, 19, 18, 18},
        {225, 128, 128, 13, false, 4, 4, 4},
        {225, 256, 128, 0, false, 4, 4, 4},
        {225, 256, 128, 1, false, 20, 4, 4},
        {225, 512, 128, 0, false, 4, 4, 4},
        {225, 256, 65, 13, false, 19, 18, 18},
        {225, 256, 64, 13, false, 2, 2, 2},
        {225, 256, 129, 13, false, 5, 5, 5},
        {225, 256, 128, 13, true, 4, 4, 4},
        {395, 130, 128, 4, false, 20, 4, 4},
        {395, 256, 256, 8, false, 5, 5, 5},
        {396, 256, 256, 14, false, 5, 5, 5},
        {396, 256, 128, 4, false, 4, 4, 4},
        {397, 256, 128, 7, false, 4, 4, 4},
        {397, 256, 96, 7, false, 18, 18, 18},
        {397, 256, 128, 8, false, 20, 4, 4},
        {396, 128, 128, 8, false, 4, 4, 4},
        {396, 512, 128, 4, false, 20, 4, 4},
        {396, 510, 128, 4, false, 4, 4, 4},
        {396, 512, 128, 0, true, 4, 4, 4},
        {1055, 256, 128, 8, true, 4, 4, 4},
        {1055, 128, 128, 14, false, 4, 4, 4},
        {1056, 128, 128, 0, false, 20, 4, 4},
        {1056, 66, 96, 0, true, 19, 18, 18},
        {100000, 256, 128, 4, true, 20, 4, 4},
        {100000, 256, 256, 4, false, 5, 5, 5},
        // Single tiles that come out even: from 2.55 and 2.85 tiles a multiprocessor to 3.
        {336, 256, 128, 9, false, 20, 4, 4},
        {337, 256, 128, 9, false, 4, 4, 4},
        {337, 256, 128, 5, false, 4, 4, 4},
        {337, 256, 128, 4, false, 20, 4, 4},
        {337, 192, 96, 9, false, 18, 18, 18},
        {376, 256, 128, 10, false, 20, 4, 4},
        {377, 256, 128, 10, false, 4, 4, 4},
        {377, 192, 96, 10, false, 19, 18, 18},
        {377, 512, 128, 10, false, 20, 4, 4},
        {396, 256, 128, 14, false, 4, 4, 4},
        {397, 256, 128, 14, false, 20, 4, 4},
        {377, 256, 128, 0, false, 4, 4, 4},
        {377, 256, 128, 13, true, 4, 4, 4},
        // 256 columns in tiles of 128: above 2 tiles a multiprocessor, up to 2.5 or 2.7.
        {264, 512, 256, 2, false, 5, 5, 5},
        {265, 512, 256, 2, false, 4, 4, 5},
        {356, 512, 256, 4, false, 4, 4, 5},
        {357, 512, 256, 4, false, 5, 5, 5},
        {330, 64, 256, 6, false, 4, 4, 5},
        {331, 512, 256, 6, false, 5, 5, 5},
        {330, 512, 256, 7, false, 5, 5, 5},
        {330, 512, 256, 0, false, 5, 5, 5},
        {330, 512, 129, 2, false, 4, 4, 5},
        {330, 512, 257, 2, false, 5, 5, 5},
        {330, 512, 256, 2, true, 4, 4, 4},
        // Up to 64 columns, one block a multiprocessor: few tiles, or 2.4 to 4.1 of them of 4 to 6 taps.
        {132, 128, 64, 0, false, 21, 21, 2},
        {133, 128, 64, 14, false, 2, 2, 2},
        {132, 64, 32, 27, false, 22, 22, 1},
        {132, 64, 33, 27, true, 21, 21, 2},
        {133, 64, 32, 6, false, 1, 1, 1},
        {316, 128, 64, 6, false, 2, 2, 2},
        {317, 128, 64, 6, false, 21, 21, 2},
        {317, 64, 64, 6, false, 2, 2, 2},
        {317, 128, 64, 7, false, 2, 2, 2},
        {317, 128, 32, 6, false, 1, 1, 1},
        {541, 512, 64, 4, true, 21, 21, 2},
        {541, 512, 64, 3, false, 2, 2, 2},
        {542, 512, 64, 4, false, 2, 2, 2}};
    for (size_t i = 0; i < COUNT(rows); ++i) {
        spops_igemm_case at = {.max_tiles = rows[i].tiles,
                               .cols = rows[i].cols,
                               .num_processors = 132,
                               .sm90 = true,
                               .records = true,
                               .whole = rows[i].whole,
                               .has_pairs = true,
                               .row_bytes = rows[i].row_bytes,
                               .taps_a_row = rows[i].taps_a_row};
        cr_assert_eq(spops_igemm_tile(&at), rows[i].tile, "row %zu", i);
        at.has_pairs = false;
        cr_assert_eq(spops_igemm_tile(&at), rows[i].single, "row %zu", i);
        at.f32 = true;
        cr_assert_eq(spops_igemm_tile(&at), rows[i].f32, "row %zu", i);
    }
    const spops_igemm_case ahead = {.max_tiles = 132,
                                    .cols = 64,
                                    .num_processors = 132,
                                    .sm90 = true,
                                    .records = true,
                                    .row_bytes = 128,
                                    .reads_ahead = true};
    cr_assert_eq(spops_igemm_tile(&ahead), 2);
    cr_assert_eq(spops_igemm_pair_cost(395, 132), 2);
    cr_assert_eq(spops_igemm_pair_cost(396, 132), 4);
    for (int32_t n = 1; n <= SPOPS_IGEMM_NUM_TILES; ++n) {
        const int32_t single = spops_igemm_single_tile(n);
        cr_assert_eq(single != n, spops_igemm_pair_columns(n) > 0);
        cr_assert_eq(spops_igemm_kernel_of(single), spops_igemm_kernel_of(n));
    }
}

Test(tuning, every_product_has_a_tile_of_its_kind)
{
    static const int64_t columns[] = {1, 32, 33, 64, 65, 128, 129, 256, 257, 1000};
    static const int64_t tiles[] = {0, 1, 66, 67, 132, 133, 1000, 100000};
    for (int kind = 0; kind < 6;
         ++kind) // rows of groups, of a map, of lists, on sm_80 and on sm_90
        for (size_t c = 0; c < COUNT(columns); ++c)
            for (size_t t = 0; t < COUNT(tiles); ++t) {
                const spops_igemm_case at = {.max_tiles = tiles[t],
                                             .cols = columns[c],
                                             .num_processors = 132,
                                             .sm90 = kind >= 3,
                                             .records = kind % 3 > 0,
                                             .adds = kind % 3 == 2};
                spops_igemm_case whole = at;
                whole.whole = at.records;
                const spops_igemm_kernel expected = !at.sm90  ? SPOPS_IGEMM_SM80
                                                    : at.adds ? SPOPS_IGEMM_SM90_ADDS
                                                              : SPOPS_IGEMM_SM90;
                cr_assert_eq(spops_igemm_kernel_of(spops_igemm_tile(&at)), expected);
                cr_assert_eq(spops_igemm_kernel_of(spops_igemm_tile(&whole)), expected);
            }
    // Sums that are whole: narrower tiles where there are fewer.
    static const int64_t few_tiles[] = {30, 30, 75, 75, 167, 537, 537};
    static const int64_t of_columns[] = {128, 256, 128, 256, 256, 128, 256};
    static const int32_t expected_tile[] = {1, 3, 3, 4, 4, 4, 5};
    for (size_t i = 0; i < COUNT(few_tiles); ++i) {
        const spops_igemm_case at = {.max_tiles = few_tiles[i],
                                     .cols = of_columns[i],
                                     .num_processors = 132,
                                     .sm90 = true,
                                     .records = true,
                                     .whole = true};
        cr_assert_eq(spops_igemm_tile(&at), expected_tile[i], "%d", (int)i);
    }
    // Rows added first: the number of tiles decides nothing where sums are whole.
    for (size_t c = 0; c < COUNT(columns); ++c)
        for (size_t t = 1; t < COUNT(tiles); ++t) {
            const spops_igemm_case few = {.max_tiles = tiles[0],
                                          .cols = columns[c],
                                          .num_processors = 132,
                                          .sm90 = true,
                                          .records = true,
                                          .adds = true,
                                          .whole = true};
            spops_igemm_case many = few;
            many.max_tiles = tiles[t];
            cr_assert_eq(spops_igemm_tile(&few), spops_igemm_tile(&many));
        }
    for (int units = 0; units < 2; ++units)
        for (size_t x = 0; x < COUNT(columns); ++x)
            for (size_t g = 0; g < COUNT(columns); ++g)
                cr_assert_eq(spops_igemm_kernel_of(
                                 spops_igemm_wgrad_tile(units != 0, columns[x], columns[g])),
                             units != 0 ? SPOPS_IGEMM_WGRAD_UNITS : SPOPS_IGEMM_WGRAD);
}

// Rows lie in the order in which they are tried, a new one has the next number.
static void expect_each_once(const int32_t *numbers, size_t num)
{
    for (size_t i = 0; i < num; ++i) {
        cr_assert(numbers[i] >= 1 && numbers[i] <= (int32_t)num, "there is a tile %d of %zu",
                  (int)numbers[i], num);
        for (size_t j = 0; j < i; ++j)
            cr_assert_neq(numbers[i], numbers[j], "there are two tiles %d", (int)numbers[i]);
    }
}

Test(tuning, tiles_of_products_are_numbered)
{
    const int32_t next = SPOPS_IGEMM_NUM_TILES + 1;
    static const int32_t numbers[] = {
#define SPOPS_TILE(number, ...) number,
        SPOPS_IGEMM_SM90_TILES(SPOPS_TILE) SPOPS_IGEMM_SM90_PAIRS(SPOPS_TILE)
            SPOPS_IGEMM_SM80_TILES(SPOPS_TILE) SPOPS_IGEMM_WGRAD_TILES(SPOPS_TILE)
#undef SPOPS_TILE
    };
    expect_each_once(numbers, COUNT(numbers));
    cr_assert_eq(COUNT(numbers), SPOPS_IGEMM_NUM_TILES);
    for (int32_t n = 1; n < next; ++n)
        cr_assert_neq(spops_igemm_kernel_of(n), SPOPS_IGEMM_NONE);
    cr_assert_eq(spops_igemm_kernel_of(0), SPOPS_IGEMM_NONE);
    cr_assert_eq(spops_igemm_kernel_of(next), SPOPS_IGEMM_NONE);
    for (int32_t n = 1; n < next; ++n) { // one that is asked for runs, and none beside it
        cr_assert(spops_igemm_leaves(0, n) && spops_igemm_leaves(n, n));
        for (int32_t m = 1; m < next; ++m)
            cr_assert(m == n || spops_igemm_leaves(n, m) ==
                                    (spops_igemm_is_gradient(n) != spops_igemm_is_gradient(m)));
    }
}

// ---- Tiles of attention -------------------------------------------------------------------------

Test(tuning, tiles_of_attention_are_numbered)
{
    int32_t numbers[SPOPS_ATTENTION_NUM_TILES];
    for (int i = 0; i < SPOPS_ATTENTION_NUM_TILES; ++i) {
        numbers[i] = spops_attention_rows[i].number;
        cr_assert_eq(spops_attention_row_of(numbers[i]), &spops_attention_rows[i]);
    }
    expect_each_once(numbers, COUNT(numbers));
    cr_assert_null(spops_attention_row_of(0));
    cr_assert_null(spops_attention_row_of(SPOPS_ATTENTION_NUM_TILES + 1));
}

// The kernel of every head dim, on every device: sm_90 for f16 and bf16 where it has the dim.
Test(tuning, every_head_has_a_tile)
{
    bool chosen[SPOPS_ATTENTION_NUM_TILES] = {false};
    for (int i = 0; i < 128; ++i) {
        spops_attention_case at = {.backward = i & 1,
                                   .sm90 = i & 2,
                                   .sm80 = i & 4 || i & 2,
                                   .small = i & 8,
                                   .pairs = i & 32,
                                   .fused = i & 64,
                                   .bytes = i & 16 ? 4 : 2};
        if (at.bytes == 2 && !at.sm80) continue; // refused before
        for (at.dim = 1; at.dim <= 256; ++at.dim) {
            const int32_t tile = spops_attention_tile(&at, 0);
            cr_assert(tile > 0 && spops_attention_suits(&at, spops_attention_row_of(tile)),
                      "dim %d", (int)at.dim);
            cr_assert_eq(spops_attention_tile(&at, tile), tile);
            chosen[tile - 1] = true;
            const bool own = at.dim == 16 || at.dim == 32 || at.dim == 48 || at.dim == 64 ||
                             at.dim == 96 || at.dim == 128 || at.dim == 256;
            const bool sm90 = spops_attention_row_of(tile)->kernel == SPOPS_ATTENTION_SM90;
            cr_assert_eq(sm90,
                         at.sm90 && at.bytes == 2 &&
                             (at.backward ? at.dim % 8 == 0 && at.dim <= 128 : own),
                         "dim %d", (int)at.dim);
        }
        cr_assert_eq(spops_attention_tile(&at, -1), 0);
        cr_assert_eq(spops_attention_tile(&at, SPOPS_ATTENTION_NUM_TILES + 1), 0);
    }
    for (int i = 0; i < SPOPS_ATTENTION_NUM_TILES; ++i)
        cr_assert(chosen[i], "no heads take tile %d", i + 1);
}
