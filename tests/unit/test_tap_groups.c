// SPDX-License-Identifier: Apache-2.0
// Which taps gather-matmul-scatter multiplies together (src/tapconv/tap_groups.c): each grouping by
// hand on a small kernel, and on random sizes what every grouping must keep.
#include <criterion/criterion.h>

#include "tapconv/tap_groups.h"
#include "tests/support/random.h"

enum { MOST_TAPS = 343 };

typedef struct grouped {
    int32_t taps[MOST_TAPS], num_groups;
    spops_tap_group groups[MOST_TAPS];
} grouped;

static grouped group(spops_grouping grouping, double epsilon, int64_t batch_rows, bool mirrored,
                     int32_t num_taps, const int32_t *counts)
{
    const spops_tap_grouping how = {grouping, epsilon, batch_rows};
    grouped g;
    g.num_groups = spops_group_taps(&how, num_taps, counts, mirrored, g.taps, g.groups);
    return g;
}

// Group `i` holds these taps, padded to `rows`.
#define EXPECT_GROUP(g, i, is_batched, num_rows, ...)                                              \
    do {                                                                                           \
        const int32_t expected[] = {__VA_ARGS__};                                                  \
        const spops_tap_group *at = &(g).groups[i];                                                \
        cr_assert((g).num_groups > (i));                                                           \
        cr_assert(at->count == (int32_t)(sizeof expected / sizeof *expected), "%d taps",           \
                  at->count);                                                                      \
        cr_assert_arr_eq((g).taps + at->first, expected, sizeof expected);                         \
        cr_assert(at->batched == (is_batched) && at->rows == (num_rows));                          \
    } while (0)

//                               0   1   2   3   4   5   6    7   8   9  10  11  12
static const int32_t mirrored[] = {10, 12, 0, 11, 30, 90, 500, 90, 30, 11, 0, 12, 10};
static const int32_t plain[] = {8, 10, 0, 40, 41};

Test(tap_groups, separate)
{
    grouped g = group(SPOPS_GROUPING_SEPARATE, 0, 0, true, 13, mirrored);
    cr_assert(g.num_groups == 10);
    EXPECT_GROUP(g, 0, false, 10, 0);
    EXPECT_GROUP(g, 4, false, 90, 5);
    EXPECT_GROUP(g, 5, false, 90, 7);
    g = group(SPOPS_GROUPING_SEPARATE, 0, 0, false, 5, plain);
    cr_assert(g.num_groups == 4);
    EXPECT_GROUP(g, 2, false, 40, 3);
}

Test(tap_groups, symmetric)
{
    grouped g = group(SPOPS_GROUPING_SYMMETRIC, 0, 0, true, 13, mirrored);
    cr_assert(g.num_groups == 5);
    EXPECT_GROUP(g, 1, true, 12, 1, 11);
    EXPECT_GROUP(g, 2, true, 11, 3, 9);
    g = group(SPOPS_GROUPING_SYMMETRIC, 0, 0, false, 5, plain);
    cr_assert(g.num_groups == 4);
    EXPECT_GROUP(g, 0, false, 8, 0);
}

Test(tap_groups, fixed)
{
    grouped g = group(SPOPS_GROUPING_FIXED, 0, 0, true, 13, mirrored);
    cr_assert(g.num_groups == 2);
    EXPECT_GROUP(g, 0, true, 12, 0, 1, 3, 9, 11, 12);
    EXPECT_GROUP(g, 1, true, 90, 4, 5, 7, 8);
    g = group(SPOPS_GROUPING_FIXED, 0, 0, false, 5, plain);
    cr_assert(g.num_groups == 1);
    EXPECT_GROUP(g, 0, true, 41, 0, 1, 3, 4);
}

Test(tap_groups, adaptive)
{
    // 1 - 10 / 12 = 0.17 and 1 - 30 / 90 = 0.67.
    grouped g = group(SPOPS_GROUPING_ADAPTIVE, 0.2, 1000, true, 13, mirrored);
    cr_assert(g.num_groups == 3);
    EXPECT_GROUP(g, 0, true, 12, 0, 1, 3, 9, 11, 12);
    EXPECT_GROUP(g, 1, true, 30, 4, 8);
    EXPECT_GROUP(g, 2, true, 90, 5, 7);
    // From S pairs on a product each.
    g = group(SPOPS_GROUPING_ADAPTIVE, 0.2, 30, true, 13, mirrored);
    EXPECT_GROUP(g, 0, true, 12, 0, 1, 3, 9, 11, 12);
    EXPECT_GROUP(g, 1, false, 30, 4, 8);
    EXPECT_GROUP(g, 2, false, 90, 5, 7);
    // 0: sizes must be the same; 1: all together.
    g = group(SPOPS_GROUPING_ADAPTIVE, 0.0, 1000, true, 13, mirrored);
    cr_assert(g.num_groups == 5);
    g = group(SPOPS_GROUPING_ADAPTIVE, 1.0, 1000, true, 13, mirrored);
    cr_assert(g.num_groups == 1);
    EXPECT_GROUP(g, 0, true, 90, 0, 1, 3, 4, 5, 7, 8, 9, 11, 12);
    g = group(SPOPS_GROUPING_ADAPTIVE, 0.25, 1000, false, 5, plain);
    cr_assert(g.num_groups == 2);
    EXPECT_GROUP(g, 0, true, 10, 0, 1);
    EXPECT_GROUP(g, 1, true, 41, 3, 4);
}

// Every tap with pairs is in one group, but for the middle of a mirrored kernel; a group's size is that
// of its longest, and ADAPTIVE keeps to epsilon.
Test(tap_groups, hold_every_tap_once)
{
    test_rng rng = test_rng_make(41);
    for (int round = 0; round < 500; ++round) {
        const int32_t num_taps = 1 + 2 * (int32_t)test_rng_below(&rng, MOST_TAPS / 2 + 1);
        const bool is_mirrored = test_rng_below(&rng, 2) != 0;
        const spops_grouping grouping = (spops_grouping)(1 + test_rng_below(&rng, 4));
        const double epsilon = 0.1 * (double)test_rng_below(&rng, 11);
        int32_t counts[MOST_TAPS], seen[MOST_TAPS] = {0};
        for (int32_t k = 0; k < num_taps; ++k) {
            counts[k] = test_rng_below(&rng, 3) == 0 ? 0 : (int32_t)test_rng_below(&rng, 1000);
            if (is_mirrored && k > num_taps / 2) counts[k] = counts[num_taps - 1 - k];
        }
        const grouped g = group(grouping, epsilon, (int64_t)test_rng_below(&rng, 1000), is_mirrored,
                                num_taps, counts);
        for (int32_t i = 0; i < g.num_groups; ++i) {
            int32_t longest = 0, shortest = INT32_MAX;
            for (int32_t t = 0; t < g.groups[i].count; ++t) {
                const int32_t k = g.taps[g.groups[i].first + t];
                ++seen[k];
                longest = counts[k] > longest ? counts[k] : longest;
                shortest = counts[k] < shortest ? counts[k] : shortest;
            }
            cr_assert(g.groups[i].rows == longest);
            if (grouping == SPOPS_GROUPING_ADAPTIVE)
                cr_assert(1.0 - (double)shortest / longest <= epsilon);
        }
        for (int32_t k = 0; k < num_taps; ++k)
            cr_assert(seen[k] == (counts[k] > 0 && !(is_mirrored && k == num_taps / 2)), "tap %d",
                      k);
    }
}
