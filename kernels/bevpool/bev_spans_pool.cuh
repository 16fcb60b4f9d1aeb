// SPDX-License-Identifier: Apache-2.0
// The kernel that pools wedges, and the choice of its block, for each dtype of features.
#ifndef SPOPS_KERNELS_BEVPOOL_BEV_SPANS_POOL_CUH
#define SPOPS_KERNELS_BEVPOOL_BEV_SPANS_POOL_CUH

#include <algorithm>

#include "kernels/bevpool/bev_spans_sums.cuh"
#include "spops/device/grid_dependency.cuh"

namespace spops::pool
{

template <class X, class B>
__global__ void __launch_bounds__(B::threads, B::held)
    pool_kernel(const __grid_constant__ pool_params p)
{
    constexpr int warps = B::warps, COLS = B::cols;
    typedef typename row_words<X>::half_type H; // what features and weights are, once loaded
    extern __shared__ float4 shared[];
    __shared__ int32_t next_bundle; // of those that are not shared, nor any warp's first
    const wedge_layout<COLS> at(p);
    const uint32_t base = shared_address(shared);
    const uint32_t features = kept(base + at.features), weights = kept(base + at.weights);
    const uint32_t all_spans = kept(base + at.spans), all_rows = kept(base + at.rows);
    const uint32_t bundles = kept(base + at.bundles);
    const int32_t col = (int32_t)blockIdx.y * COLS;
    const int lane = (int)(threadIdx.x % warp), g = lane / 4;
    union {
        int4 words[2];
        spops_bev_wedge wedge;
    };
    const bool turned = p.turned && blockIdx.y % 2 != 0;
    const spops_bev_wedge *its = p.wedges + (turned ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
    words[0] = __ldg(reinterpret_cast<const int4 *>(its));
    words[1] = __ldg(reinterpret_cast<const int4 *>(its) + 1);
    const spops_bev_wedge w = wedge;
    copy_plan<B::threads>(all_spans, p.spans + (int64_t)w.first_step * bundle_parts,
                          w.num_steps * bundle_parts * (int)sizeof(spops_bev_span));
    copy_plan<B::threads>(all_rows, p.rows + (int64_t)w.first_bundle * bundle_parts,
                          w.num_bundles * bundle_parts * (int)sizeof(int32_t));
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < w.num_bundles; i += B::threads)
        copy_async<8>(bundles + i * 8, p.bundles + w.first_bundle + i, 1u);
    if (threadIdx.x == 0) next_bundle = max((int)w.num_shared, warps);
    grid_dependency_wait();   // weights and features may come from the kernel before
    grid_launch_dependents(); // not sooner: the next one clears cells before it waits

    close_copies();
    const loaded_scales scales = load_scales(p.feat_scale, p.depth_scale, p.out_scale);
    const bool loaded = load_wedge<X, B>(p, w, col, features, weights);
    const float scale = scales.product();
    wait_copies<0>();
    const bool finite = __syncthreads_and(loaded);
    bundle_sums<H, COLS> sums(p, w, col, features, weights);
    const auto take = [&] {
        int32_t b = 0;
        if (lane == 0)
            asm volatile("atom.shared.add.s32 %0, [%1], 1;"
                         : "=r"(b)
                         : "r"(shared_address(&next_bundle))
                         : "memory");
        return __shfl_sync(whole_warp, b, 0);
    };
    const int32_t first = (int32_t)threadIdx.x / warp;
    int32_t next;
    for (int32_t b = first; b < w.num_bundles; b = next) {
        const uint2 bundle = load_shared2(bundles + b * 8);
        const uint32_t spans = all_spans + bundle.x * bundle_parts * (int)sizeof(spops_bev_span);
        const uint32_t rows = all_rows + b * bundle_parts * (int)sizeof(int32_t);
        const int32_t row[2] = {load_shared_word(rows + g * 4),
                                load_shared_word(rows + g * 4 + 32)};
        const bool is_shared = b < w.num_shared;
        if (!finite) {
            next = b + warps;
            const bundle_place place = {features,     weights,           spans,    rows,
                                        w.num_depths, (int32_t)bundle.y, is_shared};
            store_apart<H, COLS>(p, place, col, scale);
            continue;
        }
        sums.add_steps(spans, (int)bundle.y);
        next = is_shared && b + warps < w.num_shared ? b + warps : take(); // while sums are stored
        if (is_shared)
            sums.store_parts(row);
        else
            sums.store(row, scale);
    }
}

// ---- Launching ----------------------------------------------------------------------------------

template <class X, class B>
spops_status launch_pool(spops_context *ctx, pool_params p, int32_t num_wedges)
{
    const int64_t rounds = spops_bev_pool_rounds(p.cols, B::cols);
    const dim3 grid((unsigned)num_wedges, (unsigned)rounds);
    const int32_t processors = ctx->info.num_processors;
    const int half = spops_bev_pool_share(ctx->processor_shared_bytes, 2);
    int bytes = wedge_layout<B::cols>(p).bytes;
    if (B::warps == 8) {
        // No more blocks than multiprocessors should have one each. But they start early, and those
        // that are done with the kernel before might get two: each asks for so much that no second
        // one fits. Otherwise a multiprocessor's two blocks should have about equally much to do
        // together.
        p.turned = num_wedges <= processors && bytes <= half;
        if (num_wedges * rounds <= processors) bytes = std::max(bytes, half + 1);
    }
    return launch_prepared<WAITS_FOR_PREVIOUS>(ctx, "bev_spans: pool", pool_kernel<X, B>, grid,
                                               B::threads, (size_t)bytes, p);
}

template <class Feature>
spops_status pool_wedges(spops_context *ctx, const pool_params &p, int32_t variant,
                         int32_t num_wedges)
{
    switch (variant) {
#define X(number, columns, warps)                                                                  \
    case number: return launch_pool<Feature, pool_block<columns, warps>>(ctx, p, num_wedges);
        SPOPS_BEV_POOL_VARIANTS(X)
#undef X
    default: return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED, "bev_spans: no such variant");
    }
}

template <class Feature> spops_status prepare_pool(spops_context *ctx, int32_t variant)
{
    switch (variant) {
#define X(number, columns, warps)                                                                  \
    case number:                                                                                   \
        return prepare_shared(ctx, "bev_spans: prepare",                                           \
                              pool_kernel<Feature, pool_block<columns, warps>>);
        SPOPS_BEV_POOL_VARIANTS(X)
#undef X
    default: return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED, "bev_spans: no such variant");
    }
}

} // namespace spops::pool

#endif
