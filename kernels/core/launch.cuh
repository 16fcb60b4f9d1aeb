// SPDX-License-Identifier: Apache-2.0
// Launching: one call that returns the launch's own status on the context, and leaves errors the
// caller had before alone.
#ifndef SPOPS_KERNELS_CORE_LAUNCH_CUH
#define SPOPS_KERNELS_CORE_LAUNCH_CUH

#include <cuda_runtime.h>

#include "kernels/launchers.h"

namespace spops
{

inline cudaStream_t stream_of(const spops_context *ctx)
{
    return static_cast<cudaStream_t>(ctx->stream);
}

// As many blocks as a processor of the architecture that is compiled for can hold, at most `blocks`: what
// __launch_bounds__ may ask for.
constexpr int blocks_held(int threads, int blocks)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 750
    constexpr int most_threads = 1024;
#elif defined(__CUDA_ARCH__) && (__CUDA_ARCH__ / 10 == 86 || __CUDA_ARCH__ / 10 == 87 ||           \
                                 __CUDA_ARCH__ / 10 == 89 || __CUDA_ARCH__ / 100 == 12)
    constexpr int most_threads = 1536;
#else
    constexpr int most_threads = 2048;
#endif
    return blocks * threads < most_threads ? blocks : most_threads / threads;
}

// May the kernel start before the one launched before it has ended? Only kernels that wait for it
// themselves (grid_dependency_wait) may.
enum launch_order { AFTER_PREVIOUS, WAITS_FOR_PREVIOUS };

constexpr size_t default_shared_bytes = 48 << 10; // a kernel has to ask for more

// Let a kernel have as much dynamic shared memory as a block can: when a plan is made that runs it,
// not at each launch. Loads the kernel, once a context.
template <class... Params>
spops_status prepare_shared(spops_context *ctx, const char *what, void (*kernel)(Params...))
{
    const void *const address = (const void *)kernel;
    if (spops_address_set_has(&ctx->prepared_kernels, address)) return SPOPS_STATUS_OK;
    cudaFuncAttributes attributes = {};
    cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     ctx->block_shared_bytes - (int)attributes.sharedSizeBytes);
    if (error == cudaSuccess) spops_address_set_add(&ctx->prepared_kernels, address);
    return spops_cuda_status(ctx, what, (int)error);
}

// With `shared` bytes of dynamic shared memory, of a kernel that is prepared for them.
template <launch_order ORDER, class... Params, class... Args>
spops_status launch_prepared(spops_context *ctx, const char *what, void (*kernel)(Params...),
                             dim3 grid, unsigned threads, size_t shared, Args... args)
{
    if (grid.x == 0 || grid.y == 0) return SPOPS_STATUS_OK;
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = stream_of(ctx);
    if (ORDER == WAITS_FOR_PREVIOUS && ctx->info.compute_capability >= 90) {
        config.attrs = &early;
        config.numAttrs = 1;
    }
    cudaError_t error = cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
#ifdef SPOPS_DEBUG_SYNC
    if (error == cudaSuccess) error = cudaStreamSynchronize(config.stream);
#endif
    return spops_cuda_status(ctx, what, (int)error);
}

// The same of a kernel that also runs without a plan: there the first launch of a context prepares it.
template <launch_order ORDER, class... Params, class... Args>
spops_status launch_preparing(spops_context *ctx, const char *what, void (*kernel)(Params...),
                              dim3 grid, unsigned threads, size_t shared, Args... args)
{
    if (shared > default_shared_bytes) SPOPS_TRY(prepare_shared(ctx, what, kernel));
    return launch_prepared<ORDER>(ctx, what, kernel, grid, threads, shared, args...);
}

template <launch_order ORDER = AFTER_PREVIOUS, class... Params, class... Args>
spops_status launch(spops_context *ctx, const char *what, void (*kernel)(Params...), dim3 grid,
                    unsigned threads, Args... args)
{
    return launch_prepared<ORDER>(ctx, what, kernel, grid, threads, (size_t)0, args...);
}

// Blocks that wait for each other: all of them run at once, or the launch fails.
template <class... Params, class... Args>
spops_status launch_together(spops_context *ctx, const char *what, void (*kernel)(Params...),
                             dim3 grid, unsigned threads, Args... args)
{
    cudaLaunchAttribute together = {};
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.stream = stream_of(ctx);
    config.attrs = &together;
    config.numAttrs = 1;
    return spops_cuda_status(
        ctx, what, (int)cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...));
}

// Bits that numbers up to max_value need: of the keys of a radix sort.
inline int bits_for(uint64_t max_value)
{
    int bits = 1;
    while (bits < 64 && max_value >> bits != 0)
        ++bits;
    return bits;
}

// Blocks of `threads` that give every one of n items a thread.
inline dim3 blocks_for(int64_t n, int threads)
{
    return dim3((unsigned)((n + threads - 1) / threads));
}

} // namespace spops

#endif
