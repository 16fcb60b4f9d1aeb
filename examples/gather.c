// SPDX-License-Identifier: Apache-2.0
/*
 * Gather: each input row is copied to every output row that names it, and read once. The reverse sums
 * gradients back. Here: features of 3 voxels to the points that lie in them.
 */
#include "try.h"

enum { VOXELS = 3, POINTS = 5, COLS = 2 };

int main(void)
{
    const int32_t voxel[POINTS] = {1, 0, 2, 1, 1}; /* of each point */
    float features[VOXELS][COLS] = {{1, 2}, {3, 4}, {5, 6}}, points[POINTS][COLS];
    float grad_points[POINTS][COLS], grad_features[VOXELS][COLS];
    const spops_matrix x = spops_matrix_dense(features, VOXELS, COLS, SPOPS_DTYPE_F32);
    const spops_matrix out = spops_matrix_dense(points, POINTS, COLS, SPOPS_DTYPE_F32);
    const spops_matrix grad_out = spops_matrix_dense(grad_points, POINTS, COLS, SPOPS_DTYPE_F32);
    const spops_matrix grad_x = spops_matrix_dense(grad_features, VOXELS, COLS, SPOPS_DTYPE_F32);
    spops_context *ctx = NULL;
    spops_segments *plan = NULL;

    for (int i = 0; i < POINTS * COLS; ++i)
        grad_points[i / COLS][i % COLS] = (float)i;
    TRY(open_cpu(&ctx));
    TRY(spops_segments_create_from_keys(ctx, VOXELS, POINTS, voxel, SPOPS_KEYS_UNSORTED, NULL,
                                        &plan));
    TRY(spops_gather_execute(ctx, plan, x, NULL, out));
    TRY(spops_gather_execute_backward(ctx, plan, grad_out, x, NULL, &grad_x, NULL));
    for (int i = 0; i < POINTS; ++i)
        printf("point %d: %g %g\n", i, points[i][0], points[i][1]);
    for (int i = 0; i < VOXELS; ++i)
        printf("gradient of voxel %d: %g %g\n", i, grad_features[i][0], grad_features[i][1]);
    spops_segments_destroy(plan);
    spops_context_destroy(ctx);
    return 0;
}
