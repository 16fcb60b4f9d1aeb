// SPDX-License-Identifier: Apache-2.0
// Softmax within segments and its gradient: a team of lane groups measures a segment and then writes its
// terms. Of a split segment the pieces are measured, the last block combines them, and a second launch
// writes them.
#include "kernels/core/chunk.cuh"
#include "kernels/core/with_dtype.cuh"
#include "kernels/segments/clear_rows.cuh"
#include "kernels/segments/walk_plan.cuh"
#include "segops/segops_args.h"

namespace
{

using namespace spops;

constexpr int threads = 256;

struct softmax_params {
    segreduce_params pieces; // walk, cols, partials and tickets: what split segments need
    const int32_t *order;
    const void *x, *grad_out;
    int64_t x_stride, grad_stride;
    void *out;
    int64_t out_stride;
};

// 0 in place of -infinity, so that a difference to it is a number.
__device__ __forceinline__ float base_of(float max)
{
    return max == -INFINITY ? 0.0f : max;
}

// The largest value and the sum of exp(value - largest).
struct softmax_op {
    struct state {
        float max, sum;
    };
    static constexpr bool backward = false;
    static __device__ __forceinline__ state identity() { return {-INFINITY, 0.0f}; }
    // One term more: one exponential, as that of the larger number is 1 (of infinity it is NaN).
    static __device__ __forceinline__ state add(state a, float v, float)
    {
        const bool up = v > a.max || v != v;
        const float high = up ? v : a.max, low = up ? a.max : v;
        const float e = expf(low - base_of(high));
        return {high, up ? a.sum * e + (1.0f + (high - high)) : a.sum + e};
    }
    static __device__ __forceinline__ state combine(state a, state b)
    {
        state both;
        both.max = b.max > a.max || b.max != b.max ? b.max : a.max;
        if (a.max != a.max) both.max = a.max;
        const float base = base_of(both.max);
        both.sum = a.sum * expf(a.max - base) + b.sum * expf(b.max - base);
        return both;
    }
    static __device__ __forceinline__ float emit(float v, float, state s)
    {
        return s.sum == 0.0f ? 0.0f : expf(v - base_of(s.max)) / s.sum;
    }
};

// The sum of softmax times gradient.
struct softmax_grad_op {
    struct state {
        float sum;
    };
    static constexpr bool backward = true;
    static __device__ __forceinline__ state identity() { return {0.0f}; }
    static __device__ __forceinline__ state add(state a, float y, float g)
    {
        return {a.sum + y * g};
    }
    static __device__ __forceinline__ state combine(state a, state b) { return {a.sum + b.sum}; }
    static __device__ __forceinline__ float emit(float y, float g, state s)
    {
        return y * (g - s.sum);
    }
};

constexpr int unroll = 4;

// f(v, g, to) for the positions begin .. end - 1: values, gradients, and where the row's columns are in
// out.
template <class Op, class T, int VEC, class F>
__device__ __forceinline__ void for_terms(const softmax_params &p, int32_t begin, int32_t end,
                                          int32_t col, int n, const F &f)
{
    for (int32_t i = begin; i < end; i += unroll) {
        row_chunk<T, VEC, false> x[unroll], g[unroll];
        int64_t term[unroll];
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            if (i + u >= end) continue;
            term[u] = p.order != nullptr ? __ldg(p.order + i + u) : i + u;
            x[u].load(static_cast<const T *>(p.x) + term[u] * p.x_stride + col, n);
            if constexpr (Op::backward)
                g[u].load(static_cast<const T *>(p.grad_out) + term[u] * p.grad_stride + col, n);
        }
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            if (i + u >= end) continue;
            float v[VEC], grad[VEC] = {};
            x[u].get(v);
            if constexpr (Op::backward) g[u].get(grad);
            f(v, grad, static_cast<T *>(p.out) + term[u] * p.out_stride + col);
        }
    }
}

template <class Op, class T, int VEC>
__device__ __forceinline__ void emit_terms(const softmax_params &p, int32_t begin, int32_t end,
                                           int32_t col, int n,
                                           const typename Op::state (&state)[VEC])
{
    for_terms<Op, T, VEC>(p, begin, end, col, n,
                          [&](const float(&v)[VEC], const float(&g)[VEC], T *to) {
                              float result[VEC];
#pragma unroll
                              for (int j = 0; j < VEC; ++j)
                                  result[j] = Op::emit(v[j], g[j], state[j]);
                              row_chunk<T, VEC, false> chunk;
                              chunk.set(result);
                              chunk.store(to, n);
                          });
}

template <class Op, class T, int VEC>
__device__ __forceinline__ void softmax_block(const softmax_params &p, const walk_params &w,
                                              int32_t block, typename Op::state *shared)
{
    typedef typename Op::state state;
    const walk_place here = walk_here(w);
    const int32_t col = (int32_t)((blockIdx.y * w.lanes + here.lane) * VEC);
    const int n = min(p.pieces.cols - col, VEC);
    const walk_task task = walk_locate(w, block);
    if (task.empty) return;
    const walk_share share = walk_divide(w, task, here.group);
    state acc[VEC];
#pragma unroll
    for (int j = 0; j < VEC; ++j)
        acc[j] = Op::identity();
    if (share.active && n > 0)
        for_terms<Op, T, VEC>(p, share.begin, share.end, col, n,
                              [&](const float(&v)[VEC], const float(&g)[VEC], T *) {
#pragma unroll
                                  for (int j = 0; j < VEC; ++j)
                                      acc[j] = Op::add(acc[j], v[j], g[j]);
                              });
    combine_team<VEC, Op>(acc, shared, w, task, here, share);
    const bool writer = share.active && share.member == 0 && n > 0;
    if (task.piece >= 0) {
        const int32_t split_index = task.first->split;
        const spops_split_segment split = w.splits[split_index];
        if (!leave_piece<Op, VEC>(p.pieces, task.piece, split, split_index, writer, col, n, acc))
            return;
        fold_pieces<Op, VEC>(p.pieces, split, here.group, col, n, acc);
        combine_team<VEC, Op>(acc, shared, w, task, here, share);
        state *all = static_cast<state *>(p.pieces.partials) +
                     (int64_t)split.first_piece * p.pieces.cols + col;
#pragma unroll
        for (int j = 0; j < VEC; ++j)
            if (writer && j < n) all[j] = acc[j];
        return;
    }
    if (!share.active || n <= 0) return;
    if (task.shift != 0 && w.groups > 1) { // what member 0 has; combine_team left it there
        const int32_t first = (here.group - share.member) * w.lanes * VEC;
#pragma unroll
        for (int j = 0; j < VEC; ++j)
            acc[j] = shared[first + j * w.lanes + here.lane];
    }
    emit_terms<Op, T, VEC>(p, share.begin, share.end, col, n, acc);
}

template <class Op, class T, int VEC, bool COUNTS_KNOWN>
__global__ void __launch_bounds__(threads) softmax_kernel(const __grid_constant__ softmax_params p)
{
    __shared__ __align__(8) unsigned char shared[threads * VEC * sizeof(typename Op::state)];
    walk_blocks<COUNTS_KNOWN>(p.pieces.walk, [&](const walk_params &w, int32_t block) {
        softmax_block<Op, T, VEC>(p, w, block, reinterpret_cast<typename Op::state *>(shared));
    });
}

template <class Op, class T, int VEC>
__global__ void __launch_bounds__(threads)
    softmax_pieces_kernel(const __grid_constant__ softmax_params p)
{
    typedef typename Op::state state;
    const walk_params &w = p.pieces.walk;
    const walk_place here = walk_here(w);
    const int32_t col = (int32_t)((blockIdx.y * w.lanes + here.lane) * VEC);
    const int n = min(p.pieces.cols - col, VEC);
    const int32_t num_pieces = w.schedule->num_pieces;
    if (n <= 0 || here.group >= w.groups) return;
    for (int32_t i = (int32_t)blockIdx.x; i < num_pieces; i += (int32_t)gridDim.x) {
        const spops_work_item piece = w.pieces[i];
        const state *all = static_cast<const state *>(p.pieces.partials) +
                           (int64_t)w.splits[piece.split].first_piece * p.pieces.cols + col;
        state acc[VEC];
#pragma unroll
        for (int j = 0; j < VEC; ++j)
            acc[j] = j < n ? all[j] : Op::identity();
        const int32_t part = (piece.count + w.groups - 1) / w.groups,
                      end = piece.begin + piece.count;
        const int32_t begin = min(piece.begin + here.group * part, end);
        emit_terms<Op, T, VEC>(p, begin, min(begin + part, end), col, n, acc);
    }
}

// ---- Launches -----------------------------------------------------------------------------------

template <class Op, class T, int VEC>
spops_status launch_op(spops_context *ctx, const spops_segment_softmax_args *args)
{
    const char *what = "segment_softmax: launch";
    const walk_launch shape = walk_plan(ctx, args->lists, (args->x.cols + VEC - 1) / VEC, threads);
    const int64_t pieces = args->lists->counts_on_device ? args->lists->max_pieces
                                                         : args->lists->host_schedule.num_pieces;
    const int64_t most = resident_blocks(ctx) * 2;
    softmax_params p = {};
    p.pieces.walk = shape.walk;
    p.pieces.cols = (int32_t)args->x.cols;
    p.pieces.partials = args->partials;
    p.pieces.tickets = args->tickets;
    p.order = args->lists->order;
    p.x = args->x.data;
    p.x_stride = args->x.row_stride;
    p.grad_out = args->grad_out.data;
    p.grad_stride = args->grad_out.row_stride;
    p.out = args->out.data;
    p.out_stride = args->out.row_stride;
    SPOPS_TRY(args->lists->counts_on_device
                  ? launch(ctx, what, softmax_kernel<Op, T, VEC, false>, shape.grid, threads, p)
                  : launch(ctx, what, softmax_kernel<Op, T, VEC, true>, shape.grid, threads, p));
    return launch(ctx, "segment_softmax: launch of pieces", softmax_pieces_kernel<Op, T, VEC>,
                  dim3((unsigned)(pieces < most ? pieces : most), shape.grid.y), threads, p);
}

template <class T, int VEC>
spops_status launch_vec(spops_context *ctx, const spops_segment_softmax_args *args)
{
    return args->grad_out.data != nullptr ? launch_op<softmax_grad_op, T, VEC>(ctx, args)
                                          : launch_op<softmax_op, T, VEC>(ctx, args);
}

} // namespace

extern "C" spops_status spops_cuda_segment_softmax(spops_context *ctx,
                                                   const spops_segment_softmax_args *args)
{
    const spops_lists *lists = args->lists;
    const bool all_count =
        !lists->counts_on_device && lists->host_schedule.num_terms == args->out.rows;
    const bool wide = common_chunk({args->x, args->grad_out, args->out}) > 1;
    if (!all_count) SPOPS_TRY(clear_rows(ctx, "segment_softmax: clear", args->out));
    if (lists->num_segments == 0) return SPOPS_STATUS_OK;
    return with_dtype(args->x.dtype, [&](auto tag) {
        typedef typename decltype(tag)::type T;
        return wide ? launch_vec<T, 16 / sizeof(T)>(ctx, args) : launch_vec<T, 1>(ctx, args);
    });
}
