// SPDX-License-Identifier: Apache-2.0
/*
 * Sparse convolution: points become voxels, and a 3x3x3 layer with a bias and ReLU learns, by a few
 * steps of gradient descent, to give what a layer with other weights gives.
 */
#include "try.h"

enum { N = 300, MOST = 300, IN = 2, OUT = 3, ROWS_W = 27 * IN, STEPS = 300 };

static spops_matrix matrix(float *data, int64_t rows, int64_t cols)
{
    return spops_matrix_dense(data, rows, cols, SPOPS_DTYPE_F32);
}

int main(void)
{
    static float points[N][3], features[N * IN], x[MOST * IN], out[MOST * OUT], wanted[MOST * OUT];
    static float grad[MOST * OUT], w[ROWS_W * OUT], grad_w[ROWS_W * OUT];
    const float bias[OUT] = {5, 5, 5};
    const spops_kernel_shape kernel = spops_kernel_shape_cube(3, 3, 1, 1);
    spops_voxels_options size = spops_voxels_options_default();
    spops_sparseconv_options options = spops_sparseconv_options_default();
    spops_conv_layer layer = spops_conv_layer_default();
    spops_context *ctx = NULL;
    spops_voxels *voxels = NULL;
    spops_kernel_map *map = NULL;
    spops_sparseconv *conv = NULL;
    int64_t num = 0;

    for (int i = 0; i < N; ++i) { /* some of 10 x 10 x 3 cells of half a metre */
        for (int a = 0; a < 3; ++a)
            points[i][a] = (float)(i * (7 + 6 * a) % (a == 2 ? 30 : 100)) * 0.05f;
        for (int c = 0; c < IN; ++c)
            features[i * IN + c] = (float)((i * 31 + c * 17) % 13) / 6 - 1;
    }
    for (int i = 0; i < ROWS_W * OUT; ++i)
        w[i] = (float)(i % 5) / 5 - 0.4f; /* what is to be found */
    TRY(open_cpu(&ctx));
    size.size_m[0] = size.size_m[1] = size.size_m[2] = 0.5;
    TRY(spops_voxels_create(ctx, matrix(&points[0][0], N, 3), NULL, &size, &voxels));
    TRY(spops_coords_get_num_rows_sync(ctx, spops_voxels_coords(voxels), &num));
    TRY(spops_segreduce_execute(ctx, spops_voxels_segments(voxels), SPOPS_REDUCE_MEAN,
                                matrix(features, N, IN), NULL, matrix(x, num, IN), NULL));
    TRY(spops_kernel_map_create(ctx, SPOPS_MAP_SUBMANIFOLD, &kernel, spops_voxels_coords(voxels),
                                NULL, NULL, &map));
    options.backward = 1;
    TRY(spops_sparseconv_create(ctx, map, &options, &conv));
    layer.bias = bias;
    layer.activation = SPOPS_ACTIVATION_RELU;

    const spops_matrix in = matrix(x, num, IN), y = matrix(out, num, OUT);
    const spops_matrix weights = matrix(w, ROWS_W, OUT), to_w = matrix(grad_w, ROWS_W, OUT);
    TRY(spops_sparseconv_execute(ctx, conv, in, weights, &layer, matrix(wanted, num, OUT)));
    for (int i = 0; i < ROWS_W * OUT; ++i)
        w[i] = 0;
    double first = 0, loss = 0;
    for (int step = 0; step < STEPS; ++step) {
        TRY(spops_sparseconv_execute(ctx, conv, in, weights, &layer, y));
        loss = 0;
        for (int64_t i = 0; i < num * OUT; ++i) {
            grad[i] = out[i] > 0 ? out[i] - wanted[i] : 0; /* of the sum: ReLU's first */
            loss += 0.5 * (out[i] - wanted[i]) * (out[i] - wanted[i]) / (double)num;
        }
        if (step == 0) first = loss;
        TRY(spops_sparseconv_execute_backward(ctx, conv, matrix(grad, num, OUT), in, weights, NULL,
                                              NULL, &to_w, NULL));
        for (int i = 0; i < ROWS_W * OUT; ++i)
            w[i] -= 0.5f / (float)num * grad_w[i];
    }
    printf("%d voxels; loss %.3f, then %.3f\n", (int)num, first, loss);
    spops_sparseconv_destroy(conv);
    spops_kernel_map_destroy(map);
    spops_voxels_destroy(voxels);
    spops_context_destroy(ctx);
    return 0;
}
