// SPDX-License-Identifier: Apache-2.0
// Both gradients of a weighted sum in one walk over the by-row lists: a row's lanes read each
// grad_out row of its terms once, adds it up for grad_x, and takes its dot product with the row for
// grad_w. For plans in which no two terms share a weight, so that a dot product has one writer.
#include <initializer_list>

#include "kernels/segreduce/oneterm.cuh"
#include "kernels/segreduce/reduce_functors.cuh"
#include "spops/device/segreduce_backward.cuh"
#include "kernels/core/scan.cuh"

namespace
{

using namespace spops;

constexpr int threads = 256, warp = 32;

struct sumgrad_params {
    walk_params walk; // groups do not straddle warps
    int32_t groups_per_warp;
    backward_params sums; // grad is grad_x
    void *grad_w;
};

__device__ __forceinline__ walk_place place_in_warp(const sumgrad_params &p)
{
    const walk_params &w = p.walk;
    const int32_t lane = (int32_t)(threadIdx.x % warp);
    const int32_t group = (int32_t)((uint32_t)lane * (uint32_t)w.lanes_inverse >> 16);
    walk_place here;
    here.lane = lane - group * w.lanes;
    here.group = group < p.groups_per_warp
                     ? (int32_t)(threadIdx.x / warp) * p.groups_per_warp + group
                     : w.groups; // no group's: idle
    return here;
}

// Sums of v[u] over the lanes of a group, valid in lane 0. The whole warp comes here.
template <int UNROLL>
__device__ __forceinline__ void sum_over_group(float (&v)[UNROLL], int32_t lane, int32_t lanes)
{
#pragma unroll
    for (int step = 1; step < warp; step *= 2) {
        if (step >= lanes) break;
        const bool takes = lane % (2 * step) == 0 && lane + step < lanes;
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const float other = __shfl_down_sync(0xffffffffu, v[u], (unsigned)step);
            v[u] += takes ? other : 0.0f;
        }
    }
}

// VEC columns of a row: a chunk, or of rows without a tail two.
template <class T, int VEC, bool FULL> struct row_part {
    static constexpr int chunks = VEC * sizeof(T) > 16 ? 2 : 1, columns = VEC / chunks;
    static_assert(FULL || chunks == 1, "");
    static constexpr int unroll = 4 / chunks; // terms on their way at once
    // Blocks of a multiprocessor that leave enough registers.
    static constexpr int blocks_held = columns > 4 && chunks > 1 ? 3 : 4;
    typename chunk_of<T, columns, FULL>::type chunk[chunks];

    __device__ __forceinline__ void clear()
    {
        for (int c = 0; c < chunks; ++c)
            chunk[c].clear();
    }
    __device__ __forceinline__ void load(const T *p, int n, const void *end)
    {
        for (int c = 0; c < chunks; ++c)
            chunk[c].load(p + c * columns, n, end);
    }
    __device__ __forceinline__ void get(float (&v)[VEC]) const
    {
        for (int c = 0; c < chunks; ++c) {
            float its[columns];
            chunk[c].get(its);
            for (int j = 0; j < columns; ++j)
                v[c * columns + j] = its[j];
        }
    }
};

// What a step reads: absent terms have weight 0 and a row of zeros, so that they add nothing.
template <class T, int VEC, bool FULL> struct term_rows {
    row_part<T, VEC, FULL> row[row_part<T, VEC, FULL>::unroll];
    float weight[row_part<T, VEC, FULL>::unroll];
};

template <int WEIGHT, class T, int VEC, bool FULL, int UNROLL>
__device__ __forceinline__ void load_terms(const backward_params &p, const T *grad_out,
                                           const int2 (&pair)[UNROLL], int32_t count, int n,
                                           term_rows<T, VEC, FULL> &terms)
{
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        terms.row[u].clear();
        terms.weight[u] = 0.0f;
        if (u < count) {
            terms.row[u].load(row_at<FULL>(grad_out, pair[u].x, p.grad_out_stride), n,
                              p.grad_out_end);
            terms.weight[u] = load_weight<WEIGHT, T>(p.w, p.w_dtype, pair[u].y);
        }
    }
}

// The output row's terms begin .. end - 1. Every lane of the warp makes the same number of steps,
// because the dot products shuffle.
template <class T, class W, int WEIGHT, int VEC, bool FULL>
__device__ __forceinline__ void fold_both(const sumgrad_params &params, int32_t out_row,
                                          int32_t begin, int32_t end, int32_t lane, int32_t col,
                                          int n, spops_sum (&acc)[VEC])
{
    constexpr int unroll = row_part<T, VEC, FULL>::unroll;
    const backward_params &p = params.sums;
    const T *grad_out = static_cast<const T *>(p.grad_out) + col;
    W *grad_w = static_cast<W *>(params.grad_w);
    const int32_t count = n > 0 ? end - begin : 0;
    const int32_t steps = warp_max(count);
    row_part<T, VEC, FULL> x_row;
    float x[VEC];
    int2 pair[unroll];
    load_pairs<true>(p.pairs, begin, begin + count, pair);
    x_row.clear();
    if (count > 0)
        x_row.load(row_at<FULL>(static_cast<const T *>(p.x) + col, out_row, p.x_stride), n,
                   p.x_end);
    x_row.get(x);
    for (int32_t i = 0; i < steps; i += unroll) {
        term_rows<T, VEC, FULL> terms;
        float dot[unroll];
        int32_t weight_of[unroll];
        load_terms<WEIGHT>(p, grad_out, pair, count - i, n, terms);
#pragma unroll
        for (int u = 0; u < unroll; ++u)
            weight_of[u] = pair[u].y;
        load_pairs<true>(p.pairs, begin + i + unroll, begin + count, pair);
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            float g[VEC];
            terms.row[u].get(g);
            dot[u] = 0.0f;
#pragma unroll
            for (int j = 0; j < VEC; ++j) {
                acc[j].v += terms.weight[u] * g[j];
                dot[u] += x[j] * g[j];
            }
        }
        sum_over_group(dot, lane, params.walk.lanes);
#pragma unroll
        for (int u = 0; u < unroll; ++u)
            if (lane == 0 && i + u < count) grad_w[weight_of[u]] = from_f32<W>(dot[u]);
    }
}

template <class T, int VEC, bool FULL>
__device__ __forceinline__ void write_part(const backward_params &p, int32_t out_row, int32_t col,
                                           int n, const float (&v)[VEC])
{
    constexpr int columns = row_part<T, VEC, FULL>::columns;
#pragma unroll
    for (int c = 0; c < VEC; c += columns) {
        float its[columns];
#pragma unroll
        for (int j = 0; j < columns; ++j)
            its[j] = v[c + j];
        write_row<T, columns>(p, out_row, col + c, n, its);
    }
}

template <class T, class W, int WEIGHT, int VEC, bool FULL>
__global__ void __launch_bounds__(threads, (row_part<T, VEC, FULL>::blocks_held))
    sumgrad_kernel(const __grid_constant__ sumgrad_params params)
{
    __shared__ spops_sum shared[threads * VEC];
    walk_blocks<false>(params.walk, [&](const walk_params &w, int32_t block) {
        const backward_params &p = params.sums;
        const walk_place here = place_in_warp(params);
        const int32_t col = here.lane * VEC;
        const int n = min(p.cols - col, VEC);
        const walk_task task = walk_locate(w, block);
        if (task.empty) {
            const float zeros[VEC] = {};
            for (int32_t i = here.group; i < task.segments && here.group < w.groups; i += w.groups)
                if (n > 0) write_part<T, VEC, FULL>(p, task.first[i].segment, col, n, zeros);
            return;
        }
        const walk_share share = walk_divide(w, task, here.group);
        const bool writer = share.active && share.member == 0 && n > 0;
        int32_t out_row = share.entry.segment;
        spops_sum acc[VEC];
#pragma unroll
        for (int j = 0; j < VEC; ++j)
            acc[j] = spops_sum_identity();
        fold_both<T, W, WEIGHT, VEC, FULL>(params, out_row, share.begin, share.end, here.lane, col,
                                           n, acc);
        combine_team<VEC, grad_sum>(acc, shared, w, task, here, share);
        if (task.piece >= 0) {
            spops_split_segment split;
            if (!leave_partial<VEC>(p, w, task, writer, here.group, col, n, p.cols, acc, split))
                return;
            combine_team<VEC, grad_sum>(acc, shared, w, task, here, share);
            out_row = split.segment;
        }
        if (!writer) return;
        float v[VEC];
#pragma unroll
        for (int j = 0; j < VEC; ++j)
            v[j] = acc[j].v;
        write_part<T, VEC, FULL>(p, out_row, col, n, v);
    });
}

template <class T, class W, int WEIGHT>
spops_status launch_types(spops_context *ctx, const sumgrad_params &p, int vec, bool whole,
                          dim3 grid)
{
    constexpr int wide = 16 / sizeof(T);
    const char *what = "sumgrad: launch";
    if (vec == 2 * wide)
        return launch(ctx, what, sumgrad_kernel<T, W, WEIGHT, 2 * wide, true>, grid, threads, p);
    return whole ? launch(ctx, what, sumgrad_kernel<T, W, WEIGHT, wide, true>, grid, threads, p)
                 : launch(ctx, what, sumgrad_kernel<T, W, WEIGHT, wide, false>, grid, threads, p);
}

// A row of more chunks takes two a lane: a warp has more rows, and fewer sums over lanes.
constexpr int max_single_chunks = 8;

int columns_of_chunk(const spops_sumgrad_args *args)
{
    return (int)(16 / spops_dtype_bytes(args->x.dtype));
}
bool has_whole_chunks(const spops_sumgrad_args *args)
{
    const int vec = columns_of_chunk(args);
    return common_chunk({args->x, args->grad_out, args->grad_x}) == vec && args->x.cols % vec == 0;
}
int columns_of_lane(const spops_sumgrad_args *args)
{
    const int vec = columns_of_chunk(args);
    const bool two = has_whole_chunks(args) && args->x.cols > (int64_t)vec * max_single_chunks &&
                     args->x.cols % (2 * vec) == 0;
    return two ? 2 * vec : vec;
}

// Whether every row and every weight has one term at most, so that oneterm.cu serves, and by which
// lists. By row, rows of x and grad_x lie in order and those of grad_out are gathered; by weight,
// where a term mostly is its own weight, it is the other way around, and a row of grad_out is read
// once for all terms of its segment. Narrow rows are better written in order. H200, 1.6 million
// terms in uniform segments, by weight and by row: f32, 64 columns, grad_x 127 and 191 us, both 239
// and 354; f16, 64 columns, 80 and 79, both 140 and 180; f32, 16 columns, 60 and 40, both 127 and 76.
constexpr int64_t min_scattered_bytes = 256, min_scattered_bytes_both = 128;

bool fits_one_term(const spops_sumgrad_args *args, one_term_args *walk)
{
    if (!has_one_term_at_most(args->by_weight)) return false;
    const bool wants_x = args->grad_x.data != nullptr, wants_w = args->grad_w.data != nullptr;
    if (wants_x && !has_one_term_at_most(args->lists)) return false;
    const int64_t row_bytes = args->x.cols * (int64_t)spops_dtype_bytes(args->x.dtype);
    const int64_t least = wants_w ? min_scattered_bytes_both : min_scattered_bytes;
    // Only the walk by row reaches rows without a term.
    const bool by_weight = !wants_x || (row_bytes >= least && has_one_term_each(args->lists));
    walk->lists = by_weight ? args->by_weight : args->lists;
    walk->by_weight = by_weight;
    walk->rows = args->grad_out;
    walk->w = args->w;
    walk->out = args->grad_x;
    walk->others = args->x;
    walk->grad_w = args->grad_w;
    return true;
}

} // namespace

extern "C" bool spops_cuda_sumgrad_fits(const spops_context *ctx, const spops_sumgrad_args *args)
{
    (void)ctx;
    one_term_args walk = {};
    if (fits_one_term(args, &walk)) return true;
    return args->grad_x.data != nullptr && args->grad_w.data != nullptr &&
           args->x.cols <= (int64_t)columns_of_lane(args) * warp;
}

extern "C" spops_status spops_cuda_sumgrad(spops_context *ctx, const spops_sumgrad_args *args)
{
    one_term_args one = {};
    if (fits_one_term(args, &one)) return one_term(ctx, one);
    if (args->lists->num_segments == 0 || args->x.cols == 0) return SPOPS_STATUS_OK;
    const int vec = columns_of_lane(args);
    const bool whole = has_whole_chunks(args);
    walk_launch shape = walk_plan(ctx, args->lists, (args->x.cols + vec - 1) / vec, threads, warp);
    sumgrad_params p = {};
    p.walk = shape.walk;
    p.groups_per_warp = warp / shape.walk.lanes;
    p.grad_w = args->grad_w.data;
    p.sums.walk = shape.walk;
    p.sums.pairs = (const int2 *)args->lists->pairs;
    p.sums.grad_out = args->grad_out.data;
    p.sums.grad_out_end = rows_end(args->grad_out);
    p.sums.grad_out_stride = args->grad_out.row_stride;
    p.sums.x = args->x.data;
    p.sums.x_end = rows_end(args->x);
    p.sums.x_stride = args->x.row_stride;
    p.sums.w = args->w.data;
    p.sums.w_dtype = args->w.dtype;
    p.sums.cols = (int32_t)args->x.cols;
    p.sums.grad = args->grad_x.data;
    p.sums.grad_stride = args->grad_x.row_stride;
    p.sums.partials = args->partials;
    p.sums.tickets = args->tickets;
    return with_dtype(args->x.dtype, [&](auto tag) {
        typedef typename decltype(tag)::type T;
        // Weights have the dtype of x, or are f32.
        if constexpr (sizeof(T) < sizeof(float))
            if (args->w.dtype != SPOPS_DTYPE_F32)
                return launch_types<T, T, WEIGHT_SAME>(ctx, p, vec, whole, shape.grid);
        return launch_types<T, float, WEIGHT_F32>(ctx, p, vec, whole, shape.grid);
    });
}
