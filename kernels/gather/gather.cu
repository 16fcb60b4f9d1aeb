// SPDX-License-Identifier: Apache-2.0
// Gather, input-stationary: a source row is read once and written to every term.
#include <initializer_list>

#include "kernels/core/chunk.cuh"
#include "kernels/core/with_dtype.cuh"
#include "kernels/segments/few_terms.cuh"
#include "kernels/segments/walk_plan.cuh"
#include "gather/gather_args.h"

namespace
{

using namespace spops;

constexpr int threads = 256;
constexpr int unroll = 4;

struct gather_params {
    walk_params walk;
    const int2 *pairs; // out row, weight of a position; null: both are the position
    const void *x;
    int64_t x_stride;
    const void *w;
    int32_t w_dtype;
    int32_t cols;
    void *out;
    int64_t out_stride;
};

template <class T, int VEC, bool WEIGHTED>
__device__ __forceinline__ void gather_block(const gather_params &p, const walk_params &w,
                                             int32_t block)
{
    const walk_place here = walk_here(w);
    const int32_t col = (int32_t)((blockIdx.y * w.lanes + here.lane) * VEC);
    const int n = min(p.cols - col, VEC);
    const walk_task task = walk_locate(w, block);
    const walk_share share = walk_divide(w, task, here.group);
    if (task.empty || !share.active || n <= 0) return;
    T *out = static_cast<T *>(p.out) + col;
    row_chunk<T, VEC, false> row;
    row.load(static_cast<const T *>(p.x) + share.entry.segment * p.x_stride + col, n);
    float v[VEC];
    if (WEIGHTED) row.get(v);
    for (int32_t i = share.begin; i < share.end; i += unroll) {
        int2 pair[unroll];
        if (p.pairs != nullptr)
            load_pairs<true>(p.pairs, i, share.end, pair);
        else
            load_pairs<false>(p.pairs, i, share.end, pair);
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            if (i + u >= share.end) continue;
            row_chunk<T, VEC, false> chunk = row;
            if constexpr (WEIGHTED) {
                const float weight = load_weight<WEIGHT_ANY, T>(p.w, p.w_dtype, pair[u].y);
                float scaled[VEC];
#pragma unroll
                for (int j = 0; j < VEC; ++j)
                    scaled[j] = weight * v[j];
                chunk.set(scaled);
            }
            chunk.store(row_at<(VEC > 1)>(out, pair[u].x, p.out_stride), n);
        }
    }
}

template <class T, int VEC, bool WEIGHTED>
__global__ void __launch_bounds__(threads) gather_kernel(const __grid_constant__ gather_params p)
{
    walk_blocks<false>(p.walk, [&](const walk_params &w, int32_t block) {
        gather_block<T, VEC, WEIGHTED>(p, w, block);
    });
}

template <class T, int VEC>
spops_status launch_vec(spops_context *ctx, const spops_gather_args *args)
{
    const walk_launch shape = walk_plan(ctx, args->lists, (args->x.cols + VEC - 1) / VEC, threads);
    gather_params p = {};
    p.walk = shape.walk;
    p.pairs = (const int2 *)args->lists->pairs;
    p.x = args->x.data;
    p.x_stride = args->x.row_stride;
    p.w = args->w.data;
    p.w_dtype = args->w.dtype;
    p.cols = (int32_t)args->x.cols;
    p.out = args->out.data;
    p.out_stride = args->out.row_stride;
    if (p.w != nullptr)
        return launch(ctx, "gather: launch", gather_kernel<T, VEC, true>, shape.grid, threads, p);
    return launch(ctx, "gather: launch", gather_kernel<T, VEC, false>, shape.grid, threads, p);
}

// ---- Short segments, plain copies of whole chunks -----------------------------------------------

struct gather_few_params {
    few_terms_params lists;
    const uint4 *x;
    int64_t x_stride; // chunks
    uint4 *out;
    int64_t out_stride;
};

__global__ void __launch_bounds__(few_terms_threads, 6)
    gather_few(const __grid_constant__ gather_few_params p)
{
    grid_launch_dependents();
    grid_dependency_wait();
    const few_terms_place here(p.lists);
    for (int32_t chunk = here.lane; chunk < p.lists.chunks; chunk += here.lanes) {
        uint4 row[few_terms_segments];
#pragma unroll
        for (int u = 0; u < few_terms_segments; ++u) {
            // Of a segment that is not there or names nothing, another one's row, which is not used.
            const int64_t last = p.lists.num_segments - 1;
            const int64_t segment = here.first + u < last ? here.first + u : last;
            row[u] = __ldg(p.x + segment * p.x_stride + chunk);
        }
        for (int32_t step = 0; step < here.steps; ++step) {
            const few_terms_rows rows(p.lists, here, step);
#pragma unroll
            for (int u = 0; u < few_terms_segments; ++u)
#pragma unroll
                for (int t = 0; t < few_terms_step; ++t)
                    if (rows.row[u][t] >= 0) p.out[rows.row[u][t] * p.out_stride + chunk] = row[u];
        }
    }
}

bool few_fit(const spops_gather_args *args)
{
    const int vec = (int)(16 / spops_dtype_bytes(args->x.dtype));
    return has_few_terms(args->lists) && args->w.data == nullptr && args->x.cols % vec == 0 &&
           common_chunk({args->x, args->out}) == vec;
}

spops_status launch_few(spops_context *ctx, const spops_gather_args *args)
{
    const int64_t vec = 16 / (int64_t)spops_dtype_bytes(args->x.dtype);
    gather_few_params p = {};
    p.lists = few_terms_params_of(args->lists, args->x.cols / vec);
    p.x = static_cast<const uint4 *>(args->x.data);
    p.x_stride = args->x.row_stride / vec;
    p.out = static_cast<uint4 *>(args->out.data);
    p.out_stride = args->out.row_stride / vec;
    return launch<WAITS_FOR_PREVIOUS>(ctx, "gather: launch of short segments", gather_few,
                                      dim3(few_terms_blocks(p.lists)), few_terms_threads, p);
}

} // namespace

extern "C" spops_status spops_cuda_gather(spops_context *ctx, const spops_gather_args *args)
{
    if (args->lists->num_segments == 0 || args->x.cols == 0) return SPOPS_STATUS_OK;
    if (few_fit(args)) return launch_few(ctx, args);
    const bool wide = common_chunk({args->x, args->out}) > 1;
    return with_dtype(args->x.dtype, [&](auto tag) {
        typedef typename decltype(tag)::type T;
        return wide ? launch_vec<T, 16 / sizeof(T)>(ctx, args) : launch_vec<T, 1>(ctx, args);
    });
}
