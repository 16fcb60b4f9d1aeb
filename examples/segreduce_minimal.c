// SPDX-License-Identifier: Apache-2.0
/*
 * Segmented reduction: points with a voxel each, in any order; per voxel their mean, the highest
 * point and which one it is, and the gradient of the mean.
 */
#include <spops/spops.h>
#include <stdio.h>

enum { NUM_VOXELS = 3, NUM_POINTS = 6 };

#define TRY(call)                                                                                  \
    if ((call) != SPOPS_STATUS_OK) {                                                               \
        fprintf(stderr, "%s\n", spops_last_error(ctx));                                            \
        goto done;                                                                                 \
    }

int main(void)
{
    const int32_t voxel[NUM_POINTS] = {2, 0, 2, 0, 2, 0};
    float height_m[NUM_POINTS] = {1.0f, 0.5f, 4.0f, 0.25f, 4.0f, 0.75f};
    float mean_m[NUM_VOXELS], highest_m[NUM_VOXELS], grad_mean[NUM_VOXELS] = {3.0f, 1.0f, 6.0f};
    float grad_height[NUM_POINTS];
    int32_t highest[NUM_VOXELS];
    const spops_matrix x = spops_matrix_dense(height_m, NUM_POINTS, 1, SPOPS_DTYPE_F32);
    const spops_matrix grad_x = spops_matrix_dense(grad_height, NUM_POINTS, 1, SPOPS_DTYPE_F32);
    const spops_matrix arg = spops_matrix_dense(highest, NUM_VOXELS, 1, SPOPS_DTYPE_I32);
    spops_context_options context_options = spops_context_options_default();
    spops_segments_options options = spops_segments_options_default();
    spops_context *ctx = NULL;
    spops_segments *voxels = NULL;
    int result = 1;

    context_options.backend = SPOPS_BACKEND_CPU;
    TRY(spops_context_create(&context_options, &ctx));
    options.max_cols = 1;
    options.gradients = SPOPS_GRADIENTS_LINEAR;
    TRY(spops_segments_create_from_keys(ctx, NUM_VOXELS, NUM_POINTS, voxel, SPOPS_KEYS_UNSORTED,
                                        &options, &voxels));
    TRY(spops_segreduce_execute(ctx, voxels, SPOPS_REDUCE_MEAN, x, NULL,
                                spops_matrix_dense(mean_m, NUM_VOXELS, 1, SPOPS_DTYPE_F32), NULL));
    TRY(spops_segreduce_execute(ctx, voxels, SPOPS_REDUCE_MAX, x, NULL,
                                spops_matrix_dense(highest_m, NUM_VOXELS, 1, SPOPS_DTYPE_F32),
                                &arg));
    TRY(spops_segreduce_execute_backward(
        ctx, voxels, SPOPS_REDUCE_MEAN,
        spops_matrix_dense(grad_mean, NUM_VOXELS, 1, SPOPS_DTYPE_F32), x, NULL, &grad_x, NULL));
    TRY(spops_context_wait_sync(ctx));
    for (int v = 0; v < NUM_VOXELS; ++v)
        printf("voxel %d: mean %g m, highest %g m (point %d)\n", v, mean_m[v], highest_m[v],
               highest[v]);
    printf("gradient of the points:");
    for (int p = 0; p < NUM_POINTS; ++p)
        printf(" %g", grad_height[p]);
    printf("\n");
    result = 0;

done:
    spops_segments_destroy(voxels);
    spops_context_destroy(ctx);
    return result;
}
