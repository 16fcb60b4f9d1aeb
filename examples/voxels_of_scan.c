// SPDX-License-Identifier: Apache-2.0
/*
 * Voxels and their mean features of a scan in a file:
 *   voxels_of_scan SCAN.npy|.bin|.pcd [SIZE_M]
 */
#include "points_file.h"
#include "try.h"

int main(int argc, char **argv)
{
    spops_voxels_options options = spops_voxels_options_default();
    spops_context *ctx = NULL;
    spops_voxels *voxels = NULL;
    int64_t n = 0, m = 0, num = 0;
    float *scan = argc > 1 ? points_read(argv[1], &n, &m) : NULL;
    if (scan == NULL) return fprintf(stderr, "usage: %s SCAN.npy|.bin|.pcd [SIZE_M]\n", argv[0]), 2;
    const spops_matrix points = spops_matrix_dense(scan, n, m, SPOPS_DTYPE_F32);
    TRY(open_cpu(&ctx));
    options.dims = 3; /* what follows x y z are features only */
    for (int a = 0; a < 3; ++a)
        options.size_m[a] = argc > 2 ? atof(argv[2]) : 0.1;
    TRY(spops_voxels_create(ctx, points, NULL, &options, &voxels));
    TRY(spops_coords_get_num_rows_sync(ctx, spops_voxels_coords(voxels), &num));
    float *mean = malloc((size_t)(num * m) * sizeof *mean);
    if (mean == NULL) return 1;
    TRY(spops_segreduce_execute(ctx, spops_voxels_segments(voxels), SPOPS_REDUCE_MEAN, points, NULL,
                                spops_matrix_dense(mean, num, m, SPOPS_DTYPE_F32), NULL));
    printf("%lld points, %lld voxels of %g m; mean of the first: %.3f %.3f %.3f\n", (long long)n,
           (long long)num, options.size_m[0], mean[0], mean[1], mean[2]);
    spops_voxels_destroy(voxels);
    spops_context_destroy(ctx);
    return free(mean), free(scan), 0;
}
