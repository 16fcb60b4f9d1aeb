// SPDX-License-Identifier: Apache-2.0
/*
 * Two sparse convolutions on a scan of one's own:
 *   convolve_scan SCAN.pcd|.bin|.npy [SIZE_M]
 * Points become voxels, each the mean of its points; 3x3x3 layers lead to 16 and to 8 columns.
 */
#include <math.h>

#include "points_file.h"
#include "try.h"

enum { TAPS = 27, FIRST = 16, SECOND = 8 };

static float *numbers(int64_t n) /* weights of no training */
{
    float *w = (float *)malloc((size_t)n * sizeof *w + 1);
    for (int64_t i = 0; w != NULL && i < n; ++i)
        w[i] = (float)sin(0.7 * (double)i) / 16;
    return w;
}

int main(int argc, char **argv)
{
    spops_context *ctx = NULL;
    spops_voxels *voxels = NULL;
    spops_kernel_map *map = NULL;
    spops_sparseconv *conv = NULL;
    spops_voxels_options size = spops_voxels_options_default();
    spops_conv_layer layer = spops_conv_layer_default();
    const spops_kernel_shape kernel = spops_kernel_shape_cube(3, 3, 1, 1);
    const spops_dtype f32 = SPOPS_DTYPE_F32;
    int64_t n, m, num;
    double sum = 0;
    float *scan = argc > 1 ? points_read(argv[1], &n, &m) : NULL;
    if (scan == NULL) return fprintf(stderr, "usage: %s SCAN.pcd|.bin|.npy [SIZE_M]\n", argv[0]), 2;

    TRY(open_cpu(&ctx));
    const spops_matrix points = spops_matrix_dense(scan, n, m, f32);
    size.dims = 3; /* what follows x y z are features only */
    for (int a = 0; a < 3; ++a)
        size.size_m[a] = argc > 2 ? atof(argv[2]) : 0.2;
    TRY(spops_voxels_create(ctx, points, NULL, &size, &voxels));
    TRY(spops_coords_get_num_rows_sync(ctx, spops_voxels_coords(voxels), &num));
    TRY(spops_kernel_map_create(ctx, SPOPS_MAP_SUBMANIFOLD, &kernel, spops_voxels_coords(voxels),
                                NULL, NULL, &map));
    TRY(spops_sparseconv_create(ctx, map, NULL, &conv));

    float *w1 = numbers(TAPS * m * FIRST), *w2 = numbers(TAPS * FIRST * SECOND);
    const spops_matrix x = spops_matrix_dense(numbers(num * m), num, m, f32);
    const spops_matrix y = spops_matrix_dense(numbers(num * FIRST), num, FIRST, f32);
    const spops_matrix z = spops_matrix_dense(numbers(num * SECOND), num, SECOND, f32);
    TRY(spops_segreduce_execute(ctx, spops_voxels_segments(voxels), SPOPS_REDUCE_MEAN, points, NULL,
                                x, NULL));
    layer.activation = SPOPS_ACTIVATION_RELU; /* after the sum over taps */
    TRY(spops_sparseconv_execute(ctx, conv, x, spops_matrix_dense(w1, TAPS * m, FIRST, f32), &layer,
                                 y));
    TRY(spops_sparseconv_execute(ctx, conv, y, spops_matrix_dense(w2, TAPS * FIRST, SECOND, f32),
                                 NULL, z));
    for (int64_t i = 0; i < num * SECOND; ++i)
        sum += fabs((double)((float *)z.data)[i]);
    printf("%lld points, %lld voxels of %g m; mean of |features|: %.4g\n", (long long)n,
           (long long)num, size.size_m[0], num > 0 ? sum / (double)(num * SECOND) : 0.0);
    spops_sparseconv_destroy(conv);
    spops_kernel_map_destroy(map);
    spops_voxels_destroy(voxels);
    spops_context_destroy(ctx);
    free(scan), free(w1), free(w2), free(x.data), free(y.data), free(z.data);
    return 0;
}
