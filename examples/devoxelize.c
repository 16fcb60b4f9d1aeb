// SPDX-License-Identifier: Apache-2.0
/*
 * From voxels back to points: features of voxels interpolated at points, between the voxels' centres.
 * The relation has weights; the features of points are its weighted sum, with gradients.
 */
#include "try.h"

enum { POINTS = 4, DIMS = 2 };

int main(void)
{
    /* Voxels of 1 m that hold a point; a voxel's feature is its mean x, so points get theirs back
       where they have neighbours on both sides. */
    float points_m[POINTS][DIMS] = {{0.5f, 0.5f}, {1.5f, 0.5f}, {2.5f, 0.5f}, {1.75f, 0.5f}};
    float mean_x[POINTS], at_point[POINTS];
    const spops_matrix points = spops_matrix_dense(points_m, POINTS, DIMS, SPOPS_DTYPE_F32);
    spops_voxels_options options = spops_voxels_options_default();
    spops_devoxels_options back = spops_devoxels_options_default();
    spops_context *ctx = NULL;
    spops_voxels *voxels = NULL;
    spops_devoxels *devoxels = NULL;
    int64_t num_voxels = 0;

    TRY(open_cpu(&ctx));
    for (int a = 0; a < DIMS; ++a)
        options.size_m[a] = 1.0; /* which `back` takes from the voxels */
    TRY(spops_voxels_create(ctx, points, NULL, &options, &voxels));
    TRY(spops_coords_get_num_rows_sync(ctx, spops_voxels_coords(voxels), &num_voxels));
    const spops_matrix features = spops_matrix_dense(mean_x, num_voxels, 1, SPOPS_DTYPE_F32);
    TRY(spops_segreduce_execute(ctx, spops_voxels_segments(voxels), SPOPS_REDUCE_MEAN,
                                spops_matrix_columns(points, 0, 1), NULL, features, NULL));
    back.interpolation = SPOPS_DEVOXELS_INTERPOLATION_LINEAR;
    back.missing = SPOPS_DEVOXELS_MISSING_RESCALE;
    TRY(spops_devoxels_create(ctx, spops_voxels_coords(voxels), points, NULL, &back, &devoxels));
    const spops_matrix weights = spops_devoxels_weights(devoxels);
    TRY(spops_segreduce_execute(ctx, spops_devoxels_segments(devoxels), SPOPS_REDUCE_SUM, features,
                                &weights, spops_matrix_dense(at_point, POINTS, 1, SPOPS_DTYPE_F32),
                                NULL));
    for (int i = 0; i < POINTS; ++i)
        printf("x = %g m: %g\n", points_m[i][0], at_point[i]);
    spops_devoxels_destroy(devoxels);
    spops_voxels_destroy(voxels);
    spops_context_destroy(ctx);
    return 0;
}
