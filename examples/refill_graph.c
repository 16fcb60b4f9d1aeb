/*
 * A plan refilled inside a captured CUDA Graph: the refill and the reduction are captured once, and
 * every frame is one launch of the graph, whatever its number of points. refill_minimal.c does the
 * same on the CPU.
 */
#include <cuda_runtime_api.h>
#include <string.h>

#include "try.h"

enum { NUM_VOXELS = 4, MAX_POINTS = 8, NUM_FRAMES = 2 };

struct frame {
    int32_t num_points, voxel[MAX_POINTS];
    float height_m[MAX_POINTS], mean_m[NUM_VOXELS]; /* in, out */
};
static const struct frame frames[NUM_FRAMES] = {
    {5, {2, 0, 2, 3, 2}, {1.0f, 0.5f, 4.0f, 0.25f, 4.0f}, {0.5f, 0, 3.0f, 0.25f}},
    {3, {1, 1, 0}, {2.0f, 3.0f, 1.0f}, {1.0f, 2.5f, 0, 0}}}; /* with the means expected */

#define TRY_CUDA(call)                                                                             \
    if ((error = (call)) != cudaSuccess)                                                           \
    return fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error)), 1

int main(void)
{
    spops_context_options context_options = spops_context_options_default();
    spops_segments_options options = spops_segments_options_default();
    spops_context *ctx = NULL;
    spops_segments *voxels = NULL;
    struct frame *data = NULL; /* managed: the host fills in a frame, the device reads it */
    cudaError_t error;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;

    error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); /* can be captured */
    if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver)
        return printf("CUDA: not run: %s\n", cudaGetErrorString(error)), 0;
    TRY_CUDA(error);
    TRY_CUDA(cudaMallocManaged((void **)&data, sizeof *data, cudaMemAttachGlobal));
    memset(data, 0, sizeof *data);
    context_options.backend = SPOPS_BACKEND_CUDA;
    context_options.stream = stream;
    TRY(spops_context_create(&context_options, &ctx));
    options.max_cols = 1;
    TRY(spops_segments_reserve(ctx, NUM_VOXELS, MAX_POINTS, &options, &voxels));

    TRY_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    TRY(spops_segments_set(ctx, voxels, &data->num_points, data->voxel, NULL, NULL));
    TRY(spops_segreduce_execute(
        ctx, voxels, SPOPS_REDUCE_MEAN,
        spops_matrix_dense(data->height_m, MAX_POINTS, 1, SPOPS_DTYPE_F32), NULL,
        spops_matrix_dense(data->mean_m, NUM_VOXELS, 1, SPOPS_DTYPE_F32), NULL));
    TRY_CUDA(cudaStreamEndCapture(stream, &graph));
    TRY_CUDA(cudaGraphInstantiateWithFlags(&exec, graph, 0));

    for (int f = 0; f < NUM_FRAMES; ++f) {
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
    spops_context_destroy(ctx);
    return 0;
}
