// SPDX-License-Identifier: Apache-2.0
/*
 * Device memory: the mean of the heights in each voxel, by a plan whose keys the device has, and a
 * linear layer on it. The program copies in and out and waits; the library enqueues.
 */
#include <cuda_runtime_api.h>

#include "try.h"

enum { POINTS = 5, VOXELS = 4, COLS = 2 };

int main(void)
{
    static const int32_t voxel[POINTS] = {2, 0, 2, 3, 2};
    static const float height_m[POINTS] = {1, 0.5f, 4, 0.25f, 4}, w[COLS] = {1, -1},
                       b[COLS] = {0, 3};
    float result[VOXELS * COLS] = {0};
    spops_context_options options = spops_context_options_default();
    spops_conv_layer layer = spops_conv_layer_default();
    spops_context *ctx = NULL;
    spops_segments *voxels = NULL;
    int32_t *keys = NULL;
    float *x = NULL, *mean = NULL, *weights = NULL, *bias = NULL, *out = NULL;

    const cudaError_t error = cudaMalloc((void **)&keys, sizeof voxel);
    if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver)
        return printf("CUDA: not run: %s\n", cudaGetErrorString(error)), 0;
    TRY_CUDA(error);
    TRY_CUDA(cudaMalloc((void **)&x, sizeof height_m));
    TRY_CUDA(cudaMalloc((void **)&mean, VOXELS * sizeof *mean));
    TRY_CUDA(cudaMalloc((void **)&weights, sizeof w));
    TRY_CUDA(cudaMalloc((void **)&bias, sizeof b));
    TRY_CUDA(cudaMalloc((void **)&out, sizeof result));
    TRY_CUDA(cudaMemcpy(keys, voxel, sizeof voxel, cudaMemcpyHostToDevice));
    TRY_CUDA(cudaMemcpy(x, height_m, sizeof height_m, cudaMemcpyHostToDevice));
    TRY_CUDA(cudaMemcpy(weights, w, sizeof w, cudaMemcpyHostToDevice));
    TRY_CUDA(cudaMemcpy(bias, b, sizeof b, cudaMemcpyHostToDevice));

    options.backend = SPOPS_BACKEND_CUDA; /* on the legacy stream, as the copies are */
    TRY(spops_context_create(&options, &ctx));
    TRY(spops_segments_create_from_keys(ctx, VOXELS, POINTS, keys, SPOPS_KEYS_UNSORTED, NULL,
                                        &voxels));
    const spops_matrix rows = spops_matrix_dense(mean, VOXELS, 1, SPOPS_DTYPE_F32);
    TRY(spops_segreduce_execute(ctx, voxels, SPOPS_REDUCE_MEAN,
                                spops_matrix_dense(x, POINTS, 1, SPOPS_DTYPE_F32), NULL, rows,
                                NULL));
    layer.bias = bias;
    TRY(spops_linear_execute(ctx, rows, spops_matrix_dense(weights, 1, COLS, SPOPS_DTYPE_F32),
                             &layer, spops_matrix_dense(out, VOXELS, COLS, SPOPS_DTYPE_F32)));
    TRY_CUDA(cudaMemcpy(result, out, sizeof result, cudaMemcpyDeviceToHost)); /* waits */
    printf("CUDA: mean heights %g %g %g %g m, 3 m less these %g %g %g %g\n", result[0], result[2],
           result[4], result[6], result[1], result[3], result[5], result[7]);
    spops_segments_destroy(voxels);
    spops_context_destroy(ctx);
    void *all[] = {keys, x, mean, weights, bias, out};
    for (int i = 0; i < 6; ++i)
        TRY_CUDA(cudaFree(all[i]));
    return 0;
}
