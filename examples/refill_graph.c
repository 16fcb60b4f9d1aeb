// SPDX-License-Identifier: Apache-2.0
/*
 * A plan refilled inside a captured CUDA Graph: the refill and the reduction are captured once, and
 * every frame is one launch, whatever its number of points. refill_minimal.c is the CPU's.
 */
#include <cuda_runtime_api.h>
#include <string.h>

#include "try.h"

enum { VOXELS = 4, POINTS = 8, FRAMES = 2 };
struct frame {
    int32_t num_points, voxel[POINTS];
    float height_m[POINTS], mean_m[VOXELS]; /* in, out */
};
static const struct frame frames[FRAMES] = {
    {5, {2, 0, 2, 3, 2}, {1.0f, 0.5f, 4.0f, 0.25f, 4.0f}, {0.5f, 0, 3.0f, 0.25f}},
    {3, {1, 1, 0}, {2.0f, 3.0f, 1.0f}, {1.0f, 2.5f, 0, 0}}}; /* with the means expected */

int main(void)
{
    spops_context_options context_options = spops_context_options_default();
    spops_context *ctx = NULL;
    spops_segments *voxels = NULL;
    struct frame *data = NULL; /* managed: the host fills in a frame, the device reads it */
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;

    const cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver)
        return printf("CUDA: not run: %s\n", cudaGetErrorString(error)), 0;
    TRY_CUDA(error);
    TRY_CUDA(cudaMallocManaged((void **)&data, sizeof *data, cudaMemAttachGlobal));
    const spops_matrix height = spops_matrix_dense(data->height_m, POINTS, 1, SPOPS_DTYPE_F32);
    const spops_matrix mean = spops_matrix_dense(data->mean_m, VOXELS, 1, SPOPS_DTYPE_F32);
    context_options.backend = SPOPS_BACKEND_CUDA;
    context_options.stream = stream; /* one that can be captured */
    TRY(spops_context_create(&context_options, &ctx));
    TRY(spops_segments_reserve(ctx, VOXELS, POINTS, NULL, &voxels));

    TRY_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    TRY(spops_segments_update(ctx, voxels, &data->num_points, data->voxel, NULL, NULL));
    TRY(spops_segreduce_execute(ctx, voxels, SPOPS_REDUCE_MEAN, height, NULL, mean, NULL));
    TRY_CUDA(cudaStreamEndCapture(stream, &graph));
    TRY_CUDA(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    for (int f = 0; f < FRAMES; ++f) {
        *data = frames[f];
        memset(data->mean_m, 0xff, sizeof data->mean_m); /* NaN: the run has to write them */
        TRY_CUDA(cudaGraphLaunch(exec, stream));
        TRY_CUDA(cudaStreamSynchronize(stream));
        printf("CUDA: frame %d: %d points, mean heights %g %g %g %g m\n", f, (int)data->num_points,
               data->mean_m[0], data->mean_m[1], data->mean_m[2], data->mean_m[3]);
        if (memcmp(data->mean_m, frames[f].mean_m, sizeof data->mean_m) != 0) return 1;
    }
    TRY_CUDA(cudaGraphExecDestroy(exec));
    TRY_CUDA(cudaGraphDestroy(graph));
    spops_segments_destroy(voxels);
    return spops_context_destroy(ctx), 0;
}
