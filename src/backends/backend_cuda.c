// SPDX-License-Identifier: Apache-2.0
// The CUDA backend: its table, opening a device, and device memory. Kernels and their launchers are
// in kernels/. Every slot makes the context's device current and gives the caller's back, and reads
// the status of its own calls only, so that earlier CUDA errors of the caller's stay where they
// are.
#include "kernels/launchers.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

// Ranges in a profiler's timeline. A toolkit may be installed without them; a library built with
// them looks for a profiler at run time and does nothing where there is none.
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define PUSH_RANGE(name) ((void)nvtxRangePushA(name))
#define POP_RANGE()      ((void)nvtxRangePop())
#else
#define PUSH_RANGE(name) ((void)0)
#define POP_RANGE()      ((void)0)
#endif

static void forget_error(cudaError_t error)
{
    if (error != cudaSuccess && cudaPeekAtLastError() == error) (void)cudaGetLastError();
}

spops_status spops_cuda_status(spops_context *ctx, const char *what, int cuda_error)
{
    const cudaError_t error = (cudaError_t)cuda_error;

    if (error == cudaSuccess) return SPOPS_STATUS_OK;
    forget_error(error);
    return spops_fail(
        ctx, error == cudaErrorMemoryAllocation ? SPOPS_STATUS_OUT_OF_MEMORY : SPOPS_STATUS_CUDA,
        "%s: %s", what, cudaGetErrorString(error));
}

// The caller's current device while the context's takes its place.
typedef struct device_guard {
    int previous; // -1: nothing to give back
} device_guard;

static spops_status enter_device(spops_context *ctx, device_guard *guard)
{
    int current;

    guard->previous = -1;
    SPOPS_TRY(spops_cuda_status(ctx, "cudaGetDevice", cudaGetDevice(&current)));
    if (current == ctx->info.device) return SPOPS_STATUS_OK;
    SPOPS_TRY(spops_cuda_status(ctx, "cudaSetDevice", cudaSetDevice(ctx->info.device)));
    guard->previous = current;
    return SPOPS_STATUS_OK;
}

static void leave_device(const device_guard *guard)
{
    if (guard->previous >= 0) forget_error(cudaSetDevice(guard->previous));
}

// Whether work enqueued now would be captured, or would break a capture. The second is what the
// legacy stream says while another stream of this thread is captured.
static bool stream_is_captured(const spops_context *ctx)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    const cudaError_t error = cudaStreamIsCapturing((cudaStream_t)ctx->stream, &capture);
    forget_error(error);
    return error == cudaErrorStreamCaptureImplicit || capture != cudaStreamCaptureStatusNone;
}

// What waits or allocates must not be met by a capture, which it would invalidate.
static spops_status refuse_capture(spops_context *ctx, const char *what)
{
    if (!stream_is_captured(ctx)) return SPOPS_STATUS_OK;
    return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                      "%s: the stream is being captured, expected one that is not", what);
}

// ---- Opening ------------------------------------------------------------------------------------

static spops_status find_device(spops_context *ctx, int device)
{
    int driver = 0, count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);

    if (error == cudaErrorInsufficientDriver) {
        forget_error(error);
        forget_error(cudaDriverGetVersion(&driver));
        if (driver == 0) {
            return spops_fail(
                ctx, SPOPS_STATUS_BACKEND_UNAVAILABLE,
                "context_create: no NVIDIA driver that can be loaded was found on this host");
        }
        return spops_fail(ctx, SPOPS_STATUS_BACKEND_UNAVAILABLE,
                          "context_create: the NVIDIA driver is for CUDA %d.%d, expected at least "
                          "%d.%d",
                          driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
                          CUDART_VERSION % 1000 / 10);
    }
    if (error != cudaSuccess) {
        forget_error(error);
        return spops_fail(ctx, SPOPS_STATUS_BACKEND_UNAVAILABLE,
                          "context_create: cudaGetDeviceCount: %s", cudaGetErrorString(error));
    }
    if (device < 0 || device >= count) {
        return spops_fail(ctx, SPOPS_STATUS_BACKEND_UNAVAILABLE,
                          "context_create: device is %d, expected less than the %d CUDA devices "
                          "of this host",
                          device, count);
    }
    return SPOPS_STATUS_OK;
}

static spops_status read_info(spops_context *ctx, int device)
{
    struct cudaDeviceProp properties;
    spops_device_info *info = &ctx->info;

    memset(&properties, 0, sizeof properties);
    SPOPS_TRY(spops_cuda_status(ctx, "context_create: cudaGetDeviceProperties",
                                cudaGetDeviceProperties(&properties, device)));
    info->struct_size = sizeof *info;
    info->backend = SPOPS_BACKEND_CUDA;
    info->device = device;
    info->compute_capability = properties.major * 10 + properties.minor;
    info->num_processors = properties.multiProcessorCount;
    info->cache_bytes = properties.l2CacheSize;
    info->memory_bytes = (int64_t)properties.totalGlobalMem;
    ctx->block_shared_bytes = (int)properties.sharedMemPerBlockOptin;
    ctx->processor_shared_bytes = (int)properties.sharedMemPerMultiprocessor;
    snprintf(info->name, sizeof info->name, "%.127s", properties.name);
    snprintf(info->isa, sizeof info->isa, "sm_%d", (int)info->compute_capability);
    return SPOPS_STATUS_OK;
}

// A pool that keeps what is freed, so that plans built again and again do not go to the driver.
// None where the caller allocates, or where the device has no pools: then *pool stays NULL.
static spops_status create_pool(spops_context *ctx, int device, cudaMemPool_t *pool)
{
    struct cudaMemPoolProps properties;
    uint64_t keep = UINT64_MAX;
    int supported = 0;
    spops_status status = SPOPS_STATUS_OK;

    *pool = NULL;
    if (ctx->allocator.device_alloc != NULL) return SPOPS_STATUS_OK;
    SPOPS_TRY(spops_cuda_status(
        ctx, "context_create: cudaDeviceGetAttribute",
        cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, device)));
    if (!supported) return SPOPS_STATUS_OK;
    memset(&properties, 0, sizeof properties);
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = device;
    SPOPS_TRY(spops_cuda_status(ctx, "context_create: cudaMemPoolCreate",
                                cudaMemPoolCreate(pool, &properties)));
    status =
        spops_cuda_status(ctx, "context_create: cudaMemPoolSetAttribute",
                          cudaMemPoolSetAttribute(*pool, cudaMemPoolAttrReleaseThreshold, &keep));
    if (status != SPOPS_STATUS_OK) {
        forget_error(cudaMemPoolDestroy(*pool));
        *pool = NULL;
    }
    return status;
}

// The library must hold code for this device: better said now than by the first launch.
static spops_status probe_kernels(spops_context *ctx, int device)
{
    const cudaError_t error = (cudaError_t)spops_cuda_probe();
    if (error == cudaSuccess) return SPOPS_STATUS_OK;
    forget_error(error);
    return spops_fail(ctx, SPOPS_STATUS_BACKEND_UNAVAILABLE,
                      "context_create: the library has no code for CUDA device %d (%s): %s", device,
                      ctx->info.isa, cudaGetErrorString(error));
}

static spops_status open_cuda(spops_context *ctx, int device)
{
    spops_status status = SPOPS_STATUS_OK;
    device_guard guard = {-1};
    cudaMemPool_t pool = NULL;
    int current = -1;
    cudaError_t error;

    SPOPS_TRY(find_device(ctx, device));
    SPOPS_TRY(spops_cuda_status(ctx, "context_create: cudaGetDevice", cudaGetDevice(&current)));
    // Also where the device is current already: this is what starts it.
    error = cudaSetDevice(device);
    if (error != cudaSuccess) {
        forget_error(error);
        status = spops_fail(ctx, SPOPS_STATUS_BACKEND_UNAVAILABLE,
                            "context_create: CUDA device %d does not open: %s", device,
                            cudaGetErrorString(error));
    }
    if (current != device) guard.previous = current;
    if (status == SPOPS_STATUS_OK) status = read_info(ctx, device);
    if (status == SPOPS_STATUS_OK) status = probe_kernels(ctx, device);
    if (status == SPOPS_STATUS_OK) status = create_pool(ctx, device, &pool);
    leave_device(&guard);
    ctx->backend_state = pool;
    return status;
}

static void close_cuda(spops_context *ctx)
{
    device_guard guard;

    if (enter_device(ctx, &guard) != SPOPS_STATUS_OK) return;
    if (!stream_is_captured(ctx)) forget_error(cudaStreamSynchronize((cudaStream_t)ctx->stream));
    if (ctx->backend_state != NULL) {
        forget_error(cudaMemPoolDestroy((cudaMemPool_t)ctx->backend_state));
    }
    leave_device(&guard);
}

// ---- Memory and order ---------------------------------------------------------------------------
// Each slot is a function that runs on the context's device (ON_DEVICE below makes it one).

static spops_status alloc_here(spops_context *ctx, size_t bytes, void **ptr)
{
    const cudaStream_t stream = (cudaStream_t)ctx->stream;
    const cudaMemPool_t pool = (cudaMemPool_t)ctx->backend_state;
    cudaError_t error;

    *ptr = NULL;
    if (!ctx->allocates_captured) SPOPS_TRY(refuse_capture(ctx, "device memory"));
    if (ctx->allocator.device_alloc != NULL) {
        *ptr = ctx->allocator.device_alloc(ctx->allocator.user, bytes, ctx->stream);
        error = *ptr != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
    } else if (pool == NULL) {
        error = cudaMalloc(ptr, bytes);
    } else {
        error = cudaMallocFromPoolAsync(ptr, bytes, pool, stream);
        if (error == cudaErrorMemoryAllocation) {
            // The pool may hold as much, in pieces that are too small: give them back, try again.
            forget_error(error);
            forget_error(cudaStreamSynchronize(stream));
            forget_error(cudaMemPoolTrimTo(pool, 0));
            error = cudaMallocFromPoolAsync(ptr, bytes, pool, stream);
        }
    }
    if (error == cudaSuccess) return SPOPS_STATUS_OK;
    *ptr = NULL;
    forget_error(error);
    return spops_fail(
        ctx, error == cudaErrorMemoryAllocation ? SPOPS_STATUS_OUT_OF_MEMORY : SPOPS_STATUS_CUDA,
        "%s: out of device memory: %zu bytes could not be allocated: %s", ctx->call, bytes,
        cudaGetErrorString(error));
}

static void free_here(spops_context *ctx, void *ptr, size_t bytes)
{
    if (ctx->allocator.device_free != NULL) {
        ctx->allocator.device_free(ctx->allocator.user, ptr, bytes, ctx->stream);
    } else if (ctx->backend_state != NULL && !stream_is_captured(ctx)) {
        forget_error(cudaFreeAsync(ptr, (cudaStream_t)ctx->stream));
    } else {
        // Not a node of somebody's graph: freed now, without disturbing a capture.
        enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
        forget_error(cudaThreadExchangeStreamCaptureMode(&mode));
        forget_error(cudaFree(ptr));
        forget_error(cudaThreadExchangeStreamCaptureMode(&mode));
    }
}

static spops_status wait_here(spops_context *ctx)
{
    SPOPS_TRY(refuse_capture(ctx, "wait"));
    return spops_cuda_status(ctx, "wait: cudaStreamSynchronize",
                             cudaStreamSynchronize((cudaStream_t)ctx->stream));
}

static spops_status transfer_here(spops_context *ctx, void *dst, const void *src, size_t bytes,
                                  enum cudaMemcpyKind kind)
{
    const char *what = kind == cudaMemcpyHostToDevice ? "upload" : "download";
    const cudaStream_t stream = (cudaStream_t)ctx->stream;
    cudaError_t error;

    if (bytes == 0) return SPOPS_STATUS_OK;
    SPOPS_TRY(refuse_capture(ctx, what));
    error = cudaMemcpyAsync(dst, src, bytes, kind, stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
    return spops_cuda_status(ctx,
                             kind == cudaMemcpyHostToDevice ? "upload: cudaMemcpyAsync"
                                                            : "download: cudaMemcpyAsync",
                             error);
}

static spops_status upload_here(spops_context *ctx, void *dst, const void *src, size_t bytes)
{
    return transfer_here(ctx, dst, src, bytes, cudaMemcpyHostToDevice);
}

static spops_status download_here(spops_context *ctx, void *dst, const void *src, size_t bytes)
{
    return transfer_here(ctx, dst, src, bytes, cudaMemcpyDeviceToHost);
}

static spops_status copy_here(spops_context *ctx, void *dst, const void *src, size_t bytes)
{
    if (bytes == 0) return SPOPS_STATUS_OK;
    return spops_cuda_status(
        ctx, "copy: cudaMemcpyAsync",
        cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, (cudaStream_t)ctx->stream));
}

static spops_status fill_zero_here(spops_context *ctx, void *dst, size_t bytes)
{
    if (bytes == 0) return SPOPS_STATUS_OK;
    return spops_cuda_status(ctx, "fill_zero: cudaMemsetAsync",
                             cudaMemsetAsync(dst, 0, bytes, (cudaStream_t)ctx->stream));
}

// On a stream of its own: the context's may be the legacy stream, which cannot be captured, and may have
// work that must not become a part of the graph.
static spops_status capture_here(spops_context *ctx, spops_status (*enqueue)(void *user),
                                 void *user, void **graph)
{
    void *const stream = ctx->stream;
    cudaStream_t own = NULL;
    cudaGraph_t captured = NULL;
    cudaGraphExec_t exec = NULL;
    spops_status status;

    *graph = NULL;
    SPOPS_TRY(refuse_capture(ctx, "graph"));
    SPOPS_TRY(spops_cuda_status(ctx, "graph: cudaStreamCreateWithFlags",
                                cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking)));
    status = spops_cuda_status(ctx, "graph: cudaStreamBeginCapture",
                               cudaStreamBeginCapture(own, cudaStreamCaptureModeThreadLocal));
    if (status == SPOPS_STATUS_OK) {
        ctx->stream = own;
        status = enqueue(user);
        ctx->stream = stream;
        const cudaError_t error = cudaStreamEndCapture(own, &captured);
        if (status != SPOPS_STATUS_OK)
            forget_error(error); // what failed first has the message
        else
            status = spops_cuda_status(ctx, "graph: cudaStreamEndCapture", error);
    }
    if (status == SPOPS_STATUS_OK)
        status = spops_cuda_status(ctx, "graph: cudaGraphInstantiateWithFlags",
                                   cudaGraphInstantiateWithFlags(&exec, captured, 0));
    if (captured != NULL) forget_error(cudaGraphDestroy(captured));
    forget_error(cudaStreamDestroy(own));
    *graph = exec;
    return status;
}

static spops_status launch_graph_here(spops_context *ctx, void *graph)
{
    return spops_cuda_status(ctx, "graph: cudaGraphLaunch",
                             cudaGraphLaunch((cudaGraphExec_t)graph, (cudaStream_t)ctx->stream));
}

static void destroy_graph_cuda(spops_context *ctx, void *graph)
{
    device_guard guard;
    if (enter_device(ctx, &guard) != SPOPS_STATUS_OK) return;
    forget_error(cudaGraphExecDestroy((cudaGraphExec_t)graph));
    leave_device(&guard);
}

static void free_cuda(spops_context *ctx, void *ptr, size_t bytes)
{
    device_guard guard;
    if (enter_device(ctx, &guard) != SPOPS_STATUS_OK) return;
    free_here(ctx, ptr, bytes);
    leave_device(&guard);
}

static bool is_capturing_cuda(spops_context *ctx)
{
    device_guard guard;
    bool captured;
    // A stream knows its device; the special ones (legacy, per thread) are the current device's. This
    // is asked by execute calls.
    if (ctx->stream != NULL && ctx->stream != cudaStreamLegacy &&
        ctx->stream != cudaStreamPerThread)
        return stream_is_captured(ctx);
    if (enter_device(ctx, &guard) != SPOPS_STATUS_OK) return false;
    captured = stream_is_captured(ctx);
    leave_device(&guard);
    return captured;
}

// ---- The table ----------------------------------------------------------------------------------

// Defines `name`: `function` with the context's device current.
#define ON_DEVICE(name, function, parameters, arguments)                                           \
    static spops_status name parameters                                                            \
    {                                                                                              \
        device_guard guard;                                                                        \
        spops_status status;                                                                       \
        SPOPS_TRY(enter_device(ctx, &guard));                                                      \
        status = function arguments;                                                               \
        leave_device(&guard);                                                                      \
        return status;                                                                             \
    }
// clang-format off
ON_DEVICE(alloc_cuda, alloc_here, (spops_context *ctx, size_t bytes, void **ptr), (ctx, bytes, ptr))
ON_DEVICE(upload_cuda, upload_here, (spops_context *ctx, void *dst, const void *src, size_t bytes), (ctx, dst, src, bytes))
ON_DEVICE(download_cuda, download_here, (spops_context *ctx, void *dst, const void *src, size_t bytes), (ctx, dst, src, bytes))
ON_DEVICE(copy_cuda, copy_here, (spops_context *ctx, void *dst, const void *src, size_t bytes), (ctx, dst, src, bytes))
ON_DEVICE(fill_zero_cuda, fill_zero_here, (spops_context *ctx, void *dst, size_t bytes), (ctx, dst, bytes))
ON_DEVICE(wait_cuda, wait_here, (spops_context *ctx), (ctx))
ON_DEVICE(capture_cuda, capture_here, (spops_context *ctx, spops_status (*enqueue)(void *user), void *user, void **graph), (ctx, enqueue, user, graph))
ON_DEVICE(launch_graph_cuda, launch_graph_here, (spops_context *ctx, void *graph), (ctx, graph))
// clang-format on

// The slots: launchers with the context's device current, each a range in a profiler's timeline.
#define DEFINE_CPU(definition)
#define DEFINE_CUDA(definition)       definition
#define DEFINE_BOTH(definition)       definition
#define SPOPS_SLOT(name, type, where) DEFINE_##where(DEFINE_SLOT(name, type))
#define DEFINE_SLOT(name, type)                                                                    \
    static spops_status name##_cuda(spops_context *ctx, const struct type *args)                   \
    {                                                                                              \
        device_guard guard;                                                                        \
        spops_status status;                                                                       \
        SPOPS_TRY(enter_device(ctx, &guard));                                                      \
        PUSH_RANGE("spops_" #name);                                                                \
        status = spops_cuda_##name(ctx, args);                                                     \
        POP_RANGE();                                                                               \
        leave_device(&guard);                                                                      \
        return status;                                                                             \
    }
#define SPOPS_SLOT_BYTES(name, type, where) DEFINE_##where(DEFINE_BYTES(name, type))
#define DEFINE_BYTES(name, type)                                                                   \
    static size_t name##_cuda(spops_context *ctx, const struct type *args)                         \
    {                                                                                              \
        device_guard guard;                                                                        \
        size_t bytes;                                                                              \
        if (enter_device(ctx, &guard) != SPOPS_STATUS_OK) return SIZE_MAX;                         \
        bytes = spops_cuda_##name(ctx, args);                                                      \
        leave_device(&guard);                                                                      \
        return bytes;                                                                              \
    }
#include "core/backend_slots.def"

static const spops_backend backend_cuda = {
    .kind = SPOPS_BACKEND_CUDA,
    .name = "cuda",
    .lacks_dtypes = 1u << SPOPS_DTYPE_F64,

    .open = open_cuda,
    .close = close_cuda,
    .alloc = alloc_cuda,
    .free = free_cuda,
    .upload = upload_cuda,
    .download = download_cuda,
    .copy = copy_cuda,
    .fill_zero = fill_zero_cuda,
    .wait = wait_cuda,
    .is_capturing = is_capturing_cuda,
    .capture = capture_cuda,
    .launch_graph = launch_graph_cuda,
    .destroy_graph = destroy_graph_cuda,

#define FILL_CPU(name, function)
#define FILL_CUDA(name, function)                    .name = function,
#define FILL_BOTH(name, function)                    .name = function,
#define SPOPS_SLOT(name, type, where)                FILL_##where(name, name##_cuda)
#define SPOPS_SLOT_BYTES(name, type, where)          FILL_##where(name, name##_cuda)
#define SPOPS_SLOT_HOST(returned, name, type, where) FILL_##where(name, spops_cuda_##name)
#include "core/backend_slots.def"
};

const spops_backend *spops_backend_cuda(void)
{
    return &backend_cuda;
}
