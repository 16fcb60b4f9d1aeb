// SPDX-License-Identifier: Apache-2.0
// Gradients of attention of narrow heads by mma.sync in five products.
#include "kernels/attention/attention_backward_launch.cuh"
#include "kernels/attention/attention_backward_narrow_sm90.cuh"

namespace
{

using namespace spops;

// A patch and a head: a block of 16 warps, or a cluster of two blocks of 8 warps with 512 keys each.
using ALONE = attention_narrow_policy<16, 2, 1, false>;
using PAIR = attention_narrow_policy<8, 4, 2, true>;

// A round of pairs takes 0.53 to 0.57 of a round of blocks alone: the form whose rounds end first. H100, bf16, ms,
// alone and pair, where lse and delta were made in the kernel too: 94,444 rows, 2 heads 0.234, 0.201; 4 heads 0.351,
// 0.374; 68,642 rows, 4 heads 0.339, 0.312; 42,024 rows, 8 heads 0.348, 0.325; 21,311 rows, 16 heads 0.348, 0.364;
// 9,483 rows, 32 heads 0.350, 0.323.
bool takes_pairs(const spops_context *ctx, int64_t items)
{
    const int64_t processors = ctx->info.num_processors, pairs = processors / 2;
    if (pairs == 0) return false;
    return (items + pairs - 1) / pairs * 5 < (items + processors - 1) / processors * 9;
}

template <class P, class T>
spops_status launch_policy(spops_context *ctx, const attention_narrow_params &p,
                           int64_t max_patches)
{
    const char *const what = "attention_execute_backward: launch";
    const auto kernel = attention_backward_narrow_kernel<P, T>;
    SPOPS_TRY(prepare_shared(ctx, what, kernel));
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = P::CLUSTER;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)(max_patches * p.keys.heads * P::CLUSTER));
    config.blockDim = dim3(P::threads);
    config.dynamicSmemBytes = P::shared_bytes;
    config.stream = stream_of(ctx);
    config.attrs = &cluster;
    config.numAttrs = P::CLUSTER > 1 ? 1 : 0;
    cudaError_t error = cudaLaunchKernelEx(&config, kernel, p);
#ifdef SPOPS_DEBUG_SYNC
    if (error == cudaSuccess) error = cudaStreamSynchronize(config.stream);
#endif
    return spops_cuda_status(ctx, what, (int)error);
}

} // namespace

template <class T>
spops_status spops::launch_attention_backward_narrow(spops_context *ctx,
                                                     const attention_narrow_params &p,
                                                     int64_t max_patches, int64_t max_queries)
{
    // The last patch may have few queries.
    const int64_t items = (max_queries * p.keys.heads + 1023) / 1024;
    return takes_pairs(ctx, items) ? launch_policy<PAIR, T>(ctx, p, max_patches)
                                   : launch_policy<ALONE, T>(ctx, p, max_patches);
}

template <class T> spops_status spops::prepare_attention_backward_narrow(spops_context *ctx)
{
    SPOPS_TRY(prepare_shared(ctx, "attention_execute_backward: prepare",
                             attention_backward_narrow_kernel<ALONE, T>));
    return prepare_shared(ctx, "attention_execute_backward: prepare",
                          attention_backward_narrow_kernel<PAIR, T>);
}

template spops_status spops::launch_attention_backward_narrow<spops::f16>(
    spops_context *, const attention_narrow_params &, int64_t, int64_t);
template spops_status spops::launch_attention_backward_narrow<spops::bf16>(
    spops_context *, const attention_narrow_params &, int64_t, int64_t);
template spops_status spops::prepare_attention_backward_narrow<spops::f16>(spops_context *);
template spops_status spops::prepare_attention_backward_narrow<spops::bf16>(spops_context *);
