// SPDX-License-Identifier: Apache-2.0
// The rank of a term in its segment, against counting the terms before it.
#include <criterion/criterion.h>
#include <stdlib.h>

#include "spops/segments.h"
#include "tests/support/launch.h"
#include "tests/support/random.h"
#include "tests/support/relation.h"

// Ranks into memory that begins at no multiple of 16 bytes, with a number before and one after them.
static void check_ranks(test_device *d, const spops_segments *plan, const int32_t *keys,
                        int64_t num, int64_t num_segments, int64_t max_terms, int32_t *seen)
{
    const int64_t shift = num % 3, n = shift + max_terms + 1;
    int32_t *all = malloc((size_t)n * sizeof *all), *there;
    const int32_t *ranks = all + shift;

    cr_assert(all != NULL);
    for (int64_t t = 0; t < n; ++t)
        all[t] = 77;
    there = test_upload_i32(d, all, n);
    test_expect_ok(d->ctx, spops_rank_execute(d->ctx, plan, there + shift), "rank");
    test_download_i32(d, all, there, n);
    cr_assert(ranks[max_terms] == 77 && (shift == 0 || all[shift - 1] == 77));
    for (int64_t s = 0; s < num_segments; ++s)
        seen[s] = 0;
    for (int64_t t = 0; t < max_terms; ++t) {
        const bool counts = t < num && keys[t] >= 0 && keys[t] < num_segments;
        const int32_t expected = counts ? seen[keys[t]]++ : -1;
        cr_assert(ranks[t] == expected, "term %d of %d: rank %d, expected %d", (int)t, (int)num,
                  ranks[t], expected);
    }
    test_free(d, there);
    free(all);
}

static int compare(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

static void check_backend(spops_backend_kind backend)
{
    enum { MAX_TERMS = 8500001, MAX_SEGMENTS = 400000 };
    static const struct {
        int64_t terms, segments;
    } sizes[] = {{0, 0},
                 {0, 5},
                 {1, 1},
                 {7, 3},
                 {300, 1},
                 {5000, 700},
                 {5000, 2},
                 {64, 700},
                 {20999, 9000},
                 {21000, 3},
                 {4000, 9000},
                 {1200000, 300000}, // by bins on a GPU, and
                 {1199999, 1},      // with segments that these have no room for
                 {MAX_TERMS, MAX_SEGMENTS}};
    static int32_t keys[MAX_TERMS], seen[MAX_SEGMENTS];
    test_device d;

    if (!test_open(&d, backend, LAUNCH_STREAM)) return;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
        const int64_t n = sizes[i].terms, k = sizes[i].segments;
        if (test_quick() && n == MAX_TERMS) continue;
        test_rng rng = test_rng_make(9100 + i);
        spops_segments *plan = NULL;
        int32_t *there, *num;
        for (int64_t t = 0; t < n; ++t)
            keys[t] = (int32_t)test_rng_below(&rng, k);
        there = test_upload_i32(&d, keys, n);
        test_expect_ok(
            d.ctx,
            spops_segments_create_from_keys(d.ctx, k, n, there, SPOPS_KEYS_UNSORTED, NULL, &plan),
            "create");
        check_ranks(&d, plan, keys, n, k, n, seen);
        spops_segments_destroy(plan);
        test_free(&d, there);
        if (n == 0 || n > 1000000) continue;
        qsort(keys, (size_t)n, sizeof *keys, compare); // terms in the order of the lists
        there = test_upload_i32(&d, keys, n);
        test_expect_ok(
            d.ctx,
            spops_segments_create_from_keys(d.ctx, k, n, there, SPOPS_KEYS_SORTED, NULL, &plan),
            "create from sorted keys");
        check_ranks(&d, plan, keys, n, k, n, seen);
        spops_segments_destroy(plan);
        test_free(&d, there);
        test_rng_shuffle_i32(&rng, keys, n);
        keys[n / 2] = -1; // left out, as are those from 3 / 4 on
        const int32_t used = (int32_t)(3 * n / 4);
        there = test_upload_i32(&d, keys, n);
        num = test_upload_i32(&d, &used, 1);
        test_expect_ok(d.ctx, spops_segments_reserve(d.ctx, k, n, NULL, &plan), "reserve");
        check_ranks(&d, plan, keys, 0, k, n, seen);
        test_expect_ok(d.ctx, spops_segments_update(d.ctx, plan, num, there, NULL, NULL), "set");
        check_ranks(&d, plan, keys, used, k, n, seen);
        spops_segments_destroy(plan);
        test_free(&d, there);
        test_free(&d, num);
    }
    test_close(&d);
}

Test(rank, counts_cpu)
{
    check_backend(SPOPS_BACKEND_CPU);
}

Test(rank, counts_cuda)
{
    check_backend(SPOPS_BACKEND_CUDA);
}
