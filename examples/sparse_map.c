// SPDX-License-Identifier: Apache-2.0
/* From a lidar scan (simulated) to the map of a sparse convolution: points, voxels of 0.2 m with the
 * mean of their points, and the pairs of a submanifold 3 x 3 x 3 convolution. */
#include <math.h>

#include "try.h"

/* 32 beams of 900 rays, 1.7 m above a road between two walls. Returns how many hit something. */
enum { BEAMS = 32, RAYS = 900, DIMS = 3 };
static float points_m[BEAMS * RAYS][DIMS], mean_m[BEAMS * RAYS][DIMS];

static int64_t scan_street(void)
{
    int64_t n = 0;
    for (int i = 0; i < BEAMS * RAYS; ++i) {
        const double pitch = (i / RAYS - 24) * 0.015, yaw = i % RAYS * (6.283185307179586 / RAYS);
        const double d[DIMS] = {cos(yaw) * cos(pitch), sin(yaw) * cos(pitch), sin(pitch)};
        const double wall_m = 7.9 / fabs(d[1]), road_m = d[2] < 0 ? -1.7 / d[2] : 1e9;
        const double range_m = wall_m < road_m ? wall_m : road_m;
        for (int a = 0; a < DIMS && range_m < 60; ++a)
            points_m[n][a] = (float)(d[a] * range_m);
        n += range_m < 60;
    }
    return n;
}

int main(void)
{
    const int64_t num_points = scan_street();
    const spops_matrix points = spops_matrix_dense(points_m, num_points, DIMS, SPOPS_DTYPE_F32);
    const spops_kernel_shape kernel = spops_kernel_shape_cube(DIMS, 3, 1, 1);
    spops_voxels_options options = spops_voxels_options_default();
    spops_kernel_map_options map_options = spops_kernel_map_options_default();
    spops_context *ctx = NULL;
    spops_voxels *voxels = NULL;
    spops_kernel_map *map = NULL;
    int64_t num_voxels = 0;
    spops_kernel_map_view view = spops_kernel_map_view_default();

    TRY(open_cpu(&ctx));
    for (int a = 0; a < DIMS; ++a)
        options.size_m[a] = 0.2;
    options.max_cols = DIMS;
    TRY(spops_voxels_create(ctx, points, NULL, &options, &voxels));
    TRY(spops_coords_get_num_rows_sync(ctx, spops_voxels_coords(voxels), &num_voxels));
    TRY(spops_segreduce_execute(ctx, spops_voxels_segments(voxels), SPOPS_REDUCE_MEAN, points, NULL,
                                spops_matrix_dense(mean_m, num_voxels, DIMS, SPOPS_DTYPE_F32),
                                NULL));
    map_options.contents = SPOPS_MAP_PAIRS;
    TRY(spops_kernel_map_create(ctx, SPOPS_MAP_SUBMANIFOLD, &kernel, spops_voxels_coords(voxels),
                                NULL, &map_options, &map));
    TRY(spops_kernel_map_get_view(ctx, map, &view));
    printf("%d points, %d voxels; mean of the first: (%.2f, %.2f, %.2f) m\n", (int)num_points,
           (int)num_voxels, mean_m[0][0], mean_m[0][1], mean_m[0][2]);
    printf("%d pairs, %.1f a voxel\n", (int)view.tap_offsets[view.num_taps],
           (double)view.tap_offsets[view.num_taps] / (double)num_voxels);
    spops_kernel_map_destroy(map);
    spops_voxels_destroy(voxels);
    spops_context_destroy(ctx);
    return 0;
}
