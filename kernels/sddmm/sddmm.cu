// SPDX-License-Identifier: Apache-2.0
// SDDMM: blocks take positions in order and find their segments together; a group of lanes takes a
// position, as many heads at once as it has lanes for.
#include "kernels/core/chunk.cuh"
#include "kernels/core/with_dtype.cuh"
#include "kernels/segments/clear_rows.cuh"
#include "kernels/segments/segment_of.cuh"
#include "sddmm/sddmm_args.h"

namespace
{

using namespace spops;

constexpr int threads = 256, unroll = 4;
typedef segment_finder<threads, 1> finder;

struct sddmm_params {
    const int32_t *offsets, *order;
    const int2 *pairs;
    int64_t num_segments;
    const void *q, *k;
    int64_t q_stride, k_stride;
    void *out;
    int64_t out_stride;
    float scale;
    int32_t heads, head_cols;
    int32_t group_log2; // lanes of a group
    int32_t head_log2;  // lanes that share a head
};

// What a block's positions name.
struct block_pairs {
    int32_t segments[threads], rows[threads], terms[threads];
};

// The products of the positions first, first + step ... of a group, in its heads; the block has n.
template <class T, int VEC>
__device__ __forceinline__ void dot_positions(const sddmm_params &p, const block_pairs &pairs,
                                              int32_t first, int32_t step, int32_t n)
{
    const int32_t lane = (int32_t)threadIdx.x & ((1 << p.group_log2) - 1);
    const int32_t in_head = lane & ((1 << p.head_log2) - 1), head0 = lane >> p.head_log2;
    const int32_t heads_at_once = 1 << (p.group_log2 - p.head_log2);
    const T *q[unroll], *k[unroll];
    bool there[unroll];
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
        const int32_t i = first + u * step;
        there[u] = i < n;
        if (!there[u]) continue;
        q[u] = static_cast<const T *>(p.q) + pairs.segments[i] * p.q_stride;
        k[u] = static_cast<const T *>(p.k) + pairs.rows[i] * p.k_stride;
    }
    for (int32_t h0 = 0; h0 < p.heads; h0 += heads_at_once) {
        const int32_t head = h0 + head0;
        float sum[unroll] = {};
        for (int32_t c = in_head * VEC; c < p.head_cols; c += VEC << p.head_log2) {
            if (head >= p.heads) break;
            const int64_t col = (int64_t)head * p.head_cols + c;
            row_chunk<T, VEC, true> a[unroll], b[unroll];
#pragma unroll
            for (int u = 0; u < unroll; ++u) {
                if (!there[u]) continue;
                a[u].load(q[u] + col, VEC);
                b[u].load(k[u] + col, VEC);
            }
#pragma unroll
            for (int u = 0; u < unroll; ++u) {
                if (!there[u]) continue;
                float x[VEC], y[VEC];
                a[u].get(x);
                b[u].get(y);
#pragma unroll
                for (int j = 0; j < VEC; ++j)
                    sum[u] = fmaf(x[j], y[j], sum[u]);
            }
        }
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            for (int32_t m = 1 << p.head_log2 >> 1; m > 0; m >>= 1)
                sum[u] += __shfl_xor_sync(0xffffffff, sum[u], m);
            if (there[u] && in_head == 0 && head < p.heads)
                static_cast<T *>(p.out)[pairs.terms[first + u * step] * p.out_stride + head] =
                    from_f32<T>(p.scale * sum[u]);
        }
    }
}

template <class T, int VEC>
__global__ void __launch_bounds__(threads, 3) sddmm_kernel(const __grid_constant__ sddmm_params p)
{
    __shared__ finder::shared shared;
    __shared__ block_pairs pairs;
    const int64_t first = (int64_t)blockIdx.x * finder::positions;
    const int32_t num_terms = p.offsets[p.num_segments], thread = (int32_t)threadIdx.x;
    const int32_t group = thread >> p.group_log2, groups = threads >> p.group_log2;
    int32_t segment[1];

    if (first >= num_terms) return;
    const int32_t begin = (int32_t)first, position = begin + thread;
    const int32_t n = (int32_t)min((int64_t)finder::positions, num_terms - first);
    if (thread < n) {
        pairs.rows[thread] = p.pairs != nullptr ? __ldg(p.pairs + position).x : position;
        pairs.terms[thread] = p.order != nullptr ? __ldg(p.order + position) : position;
    }
    finder::find(shared, p.offsets, p.num_segments, begin, begin + n, segment);
    pairs.segments[thread] = segment[0];
    __syncthreads();
    for (int32_t i = 0; i < n; i += groups * unroll)
        dot_positions<T, VEC>(p, pairs, i + group, groups, n);
}

int floor_log2(int64_t v)
{
    int log2 = 0;
    while (log2 < 5 && (int64_t)2 << log2 <= v)
        ++log2;
    return log2;
}

template <class T, int VEC>
spops_status launch_vec(spops_context *ctx, const spops_sddmm_args *args)
{
    const spops_lists *lists = args->lists;
    sddmm_params p = {};
    p.offsets = lists->offsets;
    p.order = lists->order;
    p.pairs = (const int2 *)lists->pairs;
    p.num_segments = lists->num_segments;
    p.q = args->q.data;
    p.k = args->k.data;
    p.q_stride = args->q.row_stride;
    p.k_stride = args->k.row_stride;
    p.out = args->out.data;
    p.out_stride = args->out.row_stride;
    p.scale = args->scale;
    p.heads = (int32_t)args->out.cols;
    p.head_cols = (int32_t)(args->q.cols / args->out.cols);
    p.head_log2 = floor_log2(p.head_cols / VEC);
    p.group_log2 = p.head_log2 + floor_log2(p.heads);
    if (p.group_log2 > 5) p.group_log2 = 5;
    return launch(ctx, "sddmm: launch", sddmm_kernel<T, VEC>,
                  blocks_for(lists->max_terms, finder::positions), threads, p);
}

} // namespace

extern "C" spops_status spops_cuda_sddmm(spops_context *ctx, const spops_sddmm_args *args)
{
    const spops_lists *lists = args->lists;
    const bool all_count =
        !lists->counts_on_device && lists->host_schedule.num_terms == args->out.rows;
    const int64_t chunk = common_chunk({args->q, args->k});
    if (!all_count) SPOPS_TRY(clear_rows(ctx, "sddmm: clear", args->out));
    if (lists->num_segments == 0 || lists->max_terms == 0) return SPOPS_STATUS_OK;
    if (args->q.cols == 0) return clear_rows(ctx, "sddmm: clear", args->out);
    return with_dtype(args->q.dtype, [&](auto tag) {
        typedef typename decltype(tag)::type T;
        const bool wide = chunk > 1 && args->q.cols / args->out.cols % chunk == 0;
        return wide ? launch_vec<T, 16 / sizeof(T)>(ctx, args) : launch_vec<T, 1>(ctx, args);
    });
}
