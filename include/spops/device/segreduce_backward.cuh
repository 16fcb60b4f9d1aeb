// SPDX-License-Identifier: Apache-2.0
/*
 * Gradients of the segmented reduction, owned by row (seggrad) and by weight (segdot). Both read
 * grad_out and, where the reduction needs it, the states of the forward pass. No atomics.
 */
#ifndef SPOPS_DEVICE_SEGREDUCE_BACKWARD_CUH
#define SPOPS_DEVICE_SEGREDUCE_BACKWARD_CUH

#include "spops/device/segreduce.cuh"

namespace spops
{

// Both kernels. Output row o of seggrad is a row of x and its pairs are (segment, weight); output
// row o of segdot is a weight and its pairs are (row, segment).
struct backward_params {
    walk_params walk;
    const int2 *pairs;
    const int32_t *order;                // term number of a position
    const void *grad_out, *grad_out_end; // ends of the last rows; null where rows begin on 16 bytes
    int64_t grad_out_stride;
    const void *x, *x_end;
    int64_t x_stride;
    const void *w; // null: all ones
    int32_t w_dtype;
    int32_t cols;
    const void *states;             // [num_segments][cols]; null: the reduction does without
    const int32_t *segment_offsets; // null: the reduction does without counts
    void *grad;                     // grad_x rows, or grad_w elements
    int64_t grad_stride;
    void *partials; // [max_pieces][cols] f32, or [max_pieces] f32
    uint32_t *tickets;
};

// What the gradients accumulate in.
struct grad_sum {
    typedef spops_sum state;
    static __device__ __forceinline__ state identity() { return spops_sum_identity(); }
    static __device__ __forceinline__ state combine(state a, state b)
    {
        return spops_sum_combine(a, b);
    }
};

__device__ __forceinline__ int32_t segment_count(const backward_params &p, int32_t segment)
{
    if (p.segment_offsets == nullptr) return 0;
    return p.segment_offsets[segment + 1] - p.segment_offsets[segment];
}

// d out[segment, col + j] / d v for the term's values v.
template <class Op, int VEC>
__device__ __forceinline__ void term_grad(const backward_params &p, const float (&v)[VEC],
                                          int32_t term, int32_t segment, int32_t col, int n,
                                          float (&grad)[VEC])
{
    typedef typename Op::state state;
    const int32_t count = segment_count(p, segment);
    const state *states = static_cast<const state *>(p.states);
#pragma unroll
    for (int j = 0; j < VEC; ++j) {
        state a = Op::identity();
        if (states != nullptr && j < n) a = states[(int64_t)segment * p.cols + col + j];
        grad[j] = Op::grad(v[j], term, a, count);
    }
}

// grad_x[o] = sum over terms of w * grad * grad_out[segment]
template <class Op, class T, int VEC>
__device__ __forceinline__ void fold_row_grad(const backward_params &p, int32_t out_row,
                                              int32_t begin, int32_t end, int32_t col, int n,
                                              spops_sum (&acc)[VEC])
{
    const T *grad_out = static_cast<const T *>(p.grad_out) + col;
    row_chunk<T, VEC, false> x_row;
    float x[VEC];
    x_row.load(static_cast<const T *>(p.x) + out_row * p.x_stride + col, n);
    x_row.get(x);
#pragma unroll 2
    for (int32_t i = begin; i < end; ++i) {
        const int2 pair = __ldg(p.pairs + i);
        const float weight = load_weight<WEIGHT_ANY, T>(p.w, p.w_dtype, pair.y);
        row_chunk<T, VEC, false> g_row;
        float g[VEC], v[VEC], grad[VEC];
        g_row.load(grad_out + pair.x * p.grad_out_stride, n);
#pragma unroll
        for (int j = 0; j < VEC; ++j)
            v[j] = weight * x[j];
        term_grad<Op, VEC>(p, v, p.order[i], pair.x, col, n, grad);
        g_row.get(g);
#pragma unroll
        for (int j = 0; j < VEC; ++j)
            acc[j].v += weight * grad[j] * g[j];
    }
}

// One block finished a piece of a split output row; the last one adds them up (see leave_piece).
template <int VEC>
__device__ __forceinline__ bool leave_partial(const backward_params &p, const walk_params &w,
                                              const walk_task &task, bool writer, int32_t group,
                                              int32_t col, int n, int32_t cols,
                                              spops_sum (&acc)[VEC], spops_split_segment &split)
{
    segreduce_params r = {};
    r.walk = w;
    r.cols = cols;
    r.partials = p.partials;
    r.tickets = p.tickets;
    const int32_t split_index = task.first->split;
    split = w.splits[split_index];
    if (!leave_piece<grad_sum, VEC>(r, task.piece, split, split_index, writer, col, n, acc))
        return false;
    fold_pieces<grad_sum, VEC>(r, split, group, col, n, acc);
    return true;
}

template <class T, int VEC>
__device__ __forceinline__ void write_row(const backward_params &p, int32_t out_row, int32_t col,
                                          int n, const float (&v)[VEC])
{
    typename chunk_of<T, VEC, false>::type chunk;
    chunk.set(v);
    chunk.store(static_cast<T *>(p.grad) + out_row * p.grad_stride + col, n);
}

template <class Op, class T, int VEC>
__device__ __forceinline__ void seggrad_block(const backward_params &p, const walk_params &w,
                                              int32_t block, spops_sum *shared)
{
    const walk_place here = walk_here(w);
    const int32_t col = (int32_t)((blockIdx.y * w.lanes + here.lane) * VEC);
    const int n = min(p.cols - col, VEC);
    const walk_task task = walk_locate(w, block);
    if (task.empty) {
        const float zeros[VEC] = {};
        for (int32_t i = here.group; i < task.segments && here.group < w.groups; i += w.groups)
            if (n > 0) write_row<T, VEC>(p, task.first[i].segment, col, n, zeros);
        return;
    }
    const walk_share share = walk_divide(w, task, here.group);
    const bool writer = share.active && share.member == 0 && n > 0;
    int32_t out_row = share.entry.segment;
    spops_sum acc[VEC];
#pragma unroll
    for (int j = 0; j < VEC; ++j)
        acc[j] = spops_sum_identity();
    if (share.active && n > 0)
        fold_row_grad<Op, T, VEC>(p, out_row, share.begin, share.end, col, n, acc);
    combine_team<VEC, grad_sum>(acc, shared, w, task, here, share);
    if (task.piece >= 0) {
        spops_split_segment split;
        if (!leave_partial<VEC>(p, w, task, writer, here.group, col, n, p.cols, acc, split)) return;
        combine_team<VEC, grad_sum>(acc, shared, w, task, here, share);
        out_row = split.segment;
    }
    if (writer) {
        float v[VEC];
#pragma unroll
        for (int j = 0; j < VEC; ++j)
            v[j] = acc[j].v;
        write_row<T, VEC>(p, out_row, col, n, v);
    }
}

template <int THREADS, class Op, class T, int VEC>
__global__ void __launch_bounds__(THREADS) seggrad_kernel(const __grid_constant__ backward_params p)
{
    __shared__ spops_sum shared[THREADS * VEC];
    walk_blocks<false>(p.walk, [&](const walk_params &w, int32_t block) {
        seggrad_block<Op, T, VEC>(p, w, block, shared);
    });
}

// grad_w[o] = sum over terms, and over columns, of x[row] * grad * grad_out[segment]. The lanes of
// a group (a power of two within a warp) take chunks of a row in turn.
template <class Op, class T, int VEC>
__device__ __forceinline__ float fold_dot(const backward_params &p, int32_t lanes, int32_t lane,
                                          int32_t out_row, int32_t begin, int32_t end)
{
    const T *grad_out = static_cast<const T *>(p.grad_out);
    const T *x = static_cast<const T *>(p.x);
    const float weight = load_weight<WEIGHT_ANY, T>(p.w, p.w_dtype, out_row);
    float acc[VEC] = {};
    for (int32_t i = begin; i < end; ++i) {
        const int2 pair = __ldg(p.pairs + i);
        const int32_t term = Op::uses_term ? p.order[i] : 0;
#pragma unroll 2
        for (int32_t col = lane * VEC; col < p.cols; col += lanes * VEC) {
            const int n = min(p.cols - col, VEC);
            row_chunk<T, VEC, false> x_row, g_row;
            float xs[VEC], g[VEC], v[VEC], grad[VEC];
            x_row.load(x + pair.x * p.x_stride + col, n);
            g_row.load(grad_out + pair.y * p.grad_out_stride + col, n);
            x_row.get(xs);
            g_row.get(g);
#pragma unroll
            for (int j = 0; j < VEC; ++j)
                v[j] = weight * xs[j];
            term_grad<Op, VEC>(p, v, term, pair.y, col, n, grad);
#pragma unroll
            for (int j = 0; j < VEC; ++j)
                if (j < n) acc[j] += xs[j] * grad[j] * g[j];
        }
    }
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < VEC; ++j)
        sum += acc[j];
    return sum;
}

__device__ __forceinline__ float sum_over_lanes(float v, int32_t lanes)
{
    for (int32_t step = lanes / 2; step > 0; step /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
}

// w_dtype (spops_dtype) also says what grad_w is written as.
__device__ __forceinline__ void write_weight(const backward_params &p, int32_t out_row, float v)
{
    if (p.w_dtype == 0)
        static_cast<float *>(p.grad)[out_row] = v;
    else if (p.w_dtype == 1)
        static_cast<f16 *>(p.grad)[out_row] = from_f32<f16>(v);
    else
        static_cast<bf16 *>(p.grad)[out_row] = from_f32<bf16>(v);
}

template <int THREADS, class Op, class T, int VEC>
__device__ __forceinline__ void segdot_block(const backward_params &p, const walk_params &w,
                                             int32_t block, spops_sum *shared)
{
    const walk_place here = walk_here(w);
    const walk_task task = walk_locate(w, block);
    if (task.empty) {
        for (int32_t i = (int32_t)threadIdx.x; i < task.segments; i += THREADS)
            write_weight(p, task.first[i].segment, 0.0f);
        return;
    }
    const walk_share share = walk_divide(w, task, here.group);
    const bool writer = share.active && share.member == 0 && here.lane == 0;
    int32_t out_row = share.entry.segment;
    float sum = 0.0f;
    if (share.active)
        sum = fold_dot<Op, T, VEC>(p, w.lanes, here.lane, out_row, share.begin, share.end);
    spops_sum acc[1] = {{sum_over_lanes(sum, w.lanes)}};
    combine_team<1, grad_sum>(acc, shared, w, task, here, share);
    if (task.piece >= 0) {
        spops_split_segment split;
        if (!leave_partial<1>(p, w, task, writer, here.group, 0, 1, 1, acc, split)) return;
        combine_team<1, grad_sum>(acc, shared, w, task, here, share);
        out_row = split.segment;
    }
    if (writer) write_weight(p, out_row, acc[0].v);
}

template <int THREADS, class Op, class T, int VEC>
__global__ void __launch_bounds__(THREADS) segdot_kernel(const __grid_constant__ backward_params p)
{
    __shared__ spops_sum shared[THREADS];
    walk_blocks<false>(p.walk, [&](const walk_params &w, int32_t block) {
        segdot_block<THREADS, Op, T, VEC>(p, w, block, shared);
    });
}

} // namespace spops

#endif
