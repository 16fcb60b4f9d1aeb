// SPDX-License-Identifier: Apache-2.0
/*
 * Point convolution: points along a line learn, by a few steps of gradient descent, to give the
 * difference of what their neighbours carry. A tap is where a neighbour lies: behind, at, or ahead of the point.
 */
#include "try.h"

enum { N = 12, TAPS = 3, STEPS = 100 }; /* taps along an axis */

int main(void)
{
    float points[N][3] = {{0}}, x[N], wanted[N] = {0}, out[N], grad[N];
    float w[TAPS * TAPS * TAPS] = {0}, grad_w[TAPS * TAPS * TAPS], loss = 0.0f;
    const spops_matrix in = spops_matrix_dense(x, N, 1, SPOPS_DTYPE_F32);
    const spops_matrix weights = spops_matrix_dense(w, TAPS * TAPS * TAPS, 1, SPOPS_DTYPE_F32);
    const spops_matrix y = spops_matrix_dense(out, N, 1, SPOPS_DTYPE_F32);
    const spops_matrix grad_y = spops_matrix_dense(grad, N, 1, SPOPS_DTYPE_F32);
    const spops_matrix grad_weights =
        spops_matrix_dense(grad_w, TAPS * TAPS * TAPS, 1, SPOPS_DTYPE_F32);
    const spops_point_cloud cloud = {spops_matrix_dense(points, N, 3, SPOPS_DTYPE_F32), NULL, 0};
    spops_neighbors_options search = spops_neighbors_options_default();
    spops_pointconv_options options = spops_pointconv_options_default();
    spops_context *ctx = NULL;
    spops_neighbors *neighbors = NULL;
    spops_pointconv *conv = NULL;

    for (int i = 0; i < N; ++i) { /* every metre, in no order */
        points[i][0] = (float)(i * 5 % N);
        x[i] = (float)(i * 7 % N) - 5.5f;
    }
    for (int i = 0; i < N; ++i)
        for (int j = 0; j < N; ++j) {
            if (points[j][0] == points[i][0] + 1) wanted[i] += x[j];
            if (points[j][0] == points[i][0] - 1) wanted[i] -= x[j];
        }
    TRY(open_cpu(&ctx));
    search.radius_m = 1.0f;
    search.taps = TAPS;
    search.tap_size_m = 1.0f;
    TRY(spops_neighbors_create(ctx, NULL, &cloud, &search, &neighbors));
    options.backward = 1;
    TRY(spops_pointconv_create(ctx, neighbors, &options, &conv));
    for (int step = 0; step < STEPS; ++step) {
        TRY(spops_pointconv_execute(ctx, conv, in, weights, NULL, y));
        loss = 0.0f;
        for (int i = 0; i < N; ++i) {
            grad[i] = out[i] - wanted[i];
            loss += 0.5f * grad[i] * grad[i];
        }
        TRY(spops_pointconv_execute_backward(ctx, conv, grad_y, in, weights, NULL, NULL,
                                             &grad_weights, NULL));
        for (int k = 0; k < TAPS * TAPS * TAPS; ++k)
            w[k] -= 0.005f * grad_w[k];
    }
    printf("loss %.3f; behind %.2f, at %.2f, ahead %.2f\n", loss, w[4], w[13], w[22]);
    spops_pointconv_destroy(conv);
    spops_neighbors_destroy(neighbors);
    spops_context_destroy(ctx);
    return 0;
}
