// SPDX-License-Identifier: Apache-2.0
// Events: the order between streams of ranks.
#include <cuda_runtime_api.h>

#include "comm/comm_args.h"
#include "kernels/launchers.h"

spops_status spops_cuda_comm_event_create(spops_context *ctx, const spops_comm_event_args *args)
{
    cudaEvent_t event = NULL;
    const spops_status status =
        spops_cuda_status(ctx, "comm_create: cudaEventCreateWithFlags",
                          (int)cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    *args->event = status == SPOPS_STATUS_OK ? event : NULL;
    return status;
}

spops_status spops_cuda_comm_event_record(spops_context *ctx, const spops_comm_event_args *args)
{
    return spops_cuda_status(
        ctx, "comm: cudaEventRecord",
        (int)cudaEventRecord((cudaEvent_t)*args->event, (cudaStream_t)ctx->stream));
}

spops_status spops_cuda_comm_event_wait(spops_context *ctx, const spops_comm_event_args *args)
{
    return spops_cuda_status(
        ctx, "comm: cudaStreamWaitEvent",
        (int)cudaStreamWaitEvent((cudaStream_t)ctx->stream, (cudaEvent_t)*args->event, 0));
}

// Of any context, also after it ended.
int32_t spops_cuda_comm_event_destroy(const spops_context *ctx, const spops_comm_event_args *args)
{
    (void)ctx;
    return *args->event != NULL ? (int32_t)cudaEventDestroy((cudaEvent_t)*args->event) : 0;
}
