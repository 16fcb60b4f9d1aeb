// SPDX-License-Identifier: Apache-2.0
/*
 * Attention: points fall into buckets, the points of a bucket attend to each other, and then those of
 * two buckets together. The rows stay where they are; what changes is the plan. Last, a gradient.
 */
#include "try.h"

#include <math.h>

enum { N = 8, BUCKET_ROWS = 4, PARTS = 3 }; /* of a row: query, key, value, each of one column */

/* One column of the packed rows. */
static spops_matrix part(float (*rows)[PARTS], int which)
{
    return spops_matrix_columns(spops_matrix_dense(rows, N, PARTS, SPOPS_DTYPE_F32), which, 1);
}

static void print(const char *what, const float *values, int step)
{
    printf("%s:", what);
    for (int i = 0; i < N; ++i)
        printf(" %.3g", values[i * step]);
    printf("\n");
}

int main(void)
{
    /* Two groups, 10 m apart, in no order. */
    float points[N][3] = {{0, 1, 0}, {10, 0, 1}, {1, 1, 0},  {11, 1, 1},
                          {0, 0, 1}, {11, 0, 0}, {10, 1, 0}, {1, 0, 1}};
    float weight[N] = {1, 1, 1, 3, 1, 2, 2, 5}, value[N] = {0, 4, 8, 8, 4, 0, 4, 4};
    float rows[N][PARTS], grads[N][PARTS], grad_o[N], o[N], lse[N];
    const spops_matrix out = spops_matrix_dense(o, N, 1, SPOPS_DTYPE_F32);
    const spops_point_cloud cloud = {spops_matrix_dense(points, N, 3, SPOPS_DTYPE_F32), NULL, 0};
    spops_buckets_options bucket = spops_buckets_options_default();
    spops_patch_window window = spops_patch_window_default();
    spops_attention_options options = spops_attention_options_default();
    const spops_matrix grad_v = part(grads, 2);
    spops_context *ctx = NULL;
    spops_buckets *buckets = NULL;
    spops_patches *near = NULL, *all = NULL;

    for (int i = 0; i < N; ++i) {
        rows[i][0] = 1.0f; /* with scale 1, a key counts as much as its weight says */
        rows[i][1] = logf(weight[i]);
        rows[i][2] = value[i];
        grad_o[i] = 1.0f;
    }
    options.scale = 1.0f;
    TRY(open_cpu(&ctx));
    bucket.bucket_rows = BUCKET_ROWS;
    bucket.hashes[0] = SPOPS_BUCKET_HASH_ZORDER_DIV;
    bucket.bits = 4; /* cells of 1 m, 16 of them an axis */
    TRY(spops_buckets_create(ctx, &cloud, &bucket, &buckets));
    TRY(spops_patches_create_from_buckets(ctx, buckets, NULL, &near)); /* a patch a bucket */
    window.buckets = 2;
    TRY(spops_patches_create_from_buckets(ctx, buckets, &window, &all));
    TRY(spops_attention_reserve(ctx, near, 1, SPOPS_DTYPE_F32, &options, 1));
    TRY(spops_attention_reserve(ctx, all, 1, SPOPS_DTYPE_F32, &options, 1));

    TRY(spops_attention_execute(ctx, near, part(rows, 0), part(rows, 1), part(rows, 2), &options,
                                out, NULL));
    print("in buckets", o, 1);
    TRY(spops_attention_execute(ctx, all, part(rows, 0), part(rows, 1), part(rows, 2), &options,
                                out, lse));
    print("in windows of two", o, 1);
    TRY(spops_attention_execute_backward(
        ctx, all, spops_matrix_dense(grad_o, N, 1, SPOPS_DTYPE_F32), part(rows, 0), part(rows, 1),
        part(rows, 2), out, lse, &options, NULL, NULL, &grad_v, NULL, NULL, NULL));
    print("gradient of the values", &grads[0][2], PARTS);
    spops_patches_destroy(all);
    spops_patches_destroy(near);
    spops_buckets_destroy(buckets);
    spops_context_destroy(ctx);
    return 0;
}
