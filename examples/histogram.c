// SPDX-License-Identifier: Apache-2.0
/*
 * A histogram by segmented reduction: a value's bin is its key, and the sum of ones, or of weights,
 * is the bin's height. No atomics, so the same bits on every run; many histograms at once are many
 * columns.
 */
#include "try.h"

enum { VALUES = 1000, BINS = 8 };

int main(void)
{
    int32_t bin[VALUES];
    float one[VALUES], charge[VALUES], height[BINS][2];
    spops_context *ctx = NULL;
    spops_segments *plan = NULL;

    for (int i = 0; i < VALUES; ++i) {
        const double u = (i * 37 % VALUES) / (double)VALUES; /* any values in [0, 1) */
        bin[i] = (int32_t)(u * u * BINS);
        one[i] = 1.0f;
        charge[i] = (float)(i % 2);
    }
    TRY(open_cpu(&ctx));
    TRY(spops_segments_create_from_keys(ctx, BINS, VALUES, bin, SPOPS_KEYS_UNSORTED, NULL, &plan));
    for (int c = 0; c < 2; ++c) { /* plain, and weighted */
        const spops_matrix x = spops_matrix_dense(one, VALUES, 1, SPOPS_DTYPE_F32);
        const spops_matrix w = spops_matrix_dense(charge, VALUES, 1, SPOPS_DTYPE_F32);
        const spops_matrix all = spops_matrix_dense(height, BINS, 2, SPOPS_DTYPE_F32);
        TRY(spops_segreduce_execute(ctx, plan, SPOPS_REDUCE_SUM, x, c == 0 ? NULL : &w,
                                    spops_matrix_columns(all, c, 1), NULL));
    }
    for (int b = 0; b < BINS; ++b)
        printf("bin %d: %g values, weight %g\n", b, height[b][0], height[b][1]);
    spops_segments_destroy(plan);
    spops_context_destroy(ctx);
    return 0;
}
