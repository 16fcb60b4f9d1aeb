// SPDX-License-Identifier: Apache-2.0
// SpMM: the walk of segmented sums, with a weight for each head of a term.
#include "kernels/core/chunk.cuh"
#include "kernels/core/with_dtype.cuh"
#include "kernels/segments/walk_plan.cuh"
#include "sddmm/sddmm_args.h"

namespace
{

using namespace spops;

constexpr int threads = 256, unroll = 4;

// How the columns of a chunk are weighted: by one number, each by its own, or as it comes.
enum { ONE_HEAD = 0, OWN = 1, MIXED = 2 };

struct spmm_params {
    segreduce_params sums; // walk, pairs, order, x, out, partials, tickets, cols
    const void *w;
    int64_t w_stride;
    int32_t head_cols;
    float scale;
};

struct sum_op {
    struct state {
        float sum;
    };
    static __device__ __forceinline__ state identity() { return {0.0f}; }
    static __device__ __forceinline__ state combine(state a, state b) { return {a.sum + b.sum}; }
};

// The weights of a term's columns, on their way.
template <class T, int VEC, int HOW> struct term_weights {
    T one[HOW == MIXED ? VEC : 1];
    row_chunk<T, VEC, false> own;

    __device__ __forceinline__ void load(const T *row, int32_t head, int32_t col, int n,
                                         int32_t head_cols)
    {
        if constexpr (HOW == ONE_HEAD) {
            one[0] = row[head];
        } else if constexpr (HOW == OWN) {
            own.load(row + col, n);
        } else {
#pragma unroll
            for (int j = 0; j < VEC; ++j)
                one[j] = j < n ? row[(col + j) / head_cols] : T();
        }
    }
    __device__ __forceinline__ void get(float (&v)[VEC]) const
    {
        if constexpr (HOW == OWN) {
            own.get(v);
        } else {
#pragma unroll
            for (int j = 0; j < VEC; ++j)
                v[j] = to_f32(one[HOW == MIXED ? j : 0]);
        }
    }
};

template <class T, int VEC, int HOW>
__device__ __forceinline__ void fold_share(const spmm_params &p, const walk_share &share,
                                           int32_t col, int n, sum_op::state (&acc)[VEC])
{
    const int32_t head = HOW == ONE_HEAD ? col / p.head_cols : 0;
    const T *x = static_cast<const T *>(p.sums.x) + col;
#pragma unroll
    for (int j = 0; j < VEC; ++j)
        acc[j] = sum_op::identity();
    if (!share.active || n <= 0) return;
    for (int32_t i = share.begin; i < share.end; i += unroll) {
        row_chunk<T, VEC, false> row[unroll];
        term_weights<T, VEC, HOW> weights[unroll];
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            if (i + u >= share.end) continue;
            const int32_t from = p.sums.pairs != nullptr ? __ldg(p.sums.pairs + i + u).x : i + u;
            const int64_t term = p.sums.order != nullptr ? __ldg(p.sums.order + i + u) : i + u;
            row[u].load(x + from * p.sums.x_stride, n);
            weights[u].load(static_cast<const T *>(p.w) + term * p.w_stride, head, col, n,
                            p.head_cols);
        }
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            if (i + u >= share.end) continue;
            float v[VEC], w[VEC];
            row[u].get(v);
            weights[u].get(w);
#pragma unroll
            for (int j = 0; j < VEC; ++j)
                acc[j].sum = fmaf(w[j], v[j], acc[j].sum);
        }
    }
}

template <class T, int VEC, int HOW, bool COUNTS_KNOWN>
__global__ void __launch_bounds__(threads) spmm_kernel(const __grid_constant__ spmm_params p)
{
    __shared__ sum_op::state shared[threads * VEC];
    walk_blocks<COUNTS_KNOWN>(p.sums.walk, [&](const walk_params &w, int32_t block) {
        reduce_block_with<sum_op, VEC>(
            p.sums, w, block, shared,
            [&](const walk_share &share, int32_t col, int n, sum_op::state(&acc)[VEC]) {
                fold_share<T, VEC, HOW>(p, share, col, n, acc);
            },
            [&](int32_t segment, int32_t, int32_t col, int n, const sum_op::state(&acc)[VEC]) {
                float v[VEC];
#pragma unroll
                for (int j = 0; j < VEC; ++j)
                    v[j] = p.scale * acc[j].sum;
                row_chunk<T, VEC, false> chunk;
                chunk.set(v);
                chunk.store(static_cast<T *>(p.sums.out) + segment * p.sums.out_stride + col, n);
            });
    });
}

template <class T, int VEC, int HOW>
spops_status launch_how(spops_context *ctx, const spops_spmm_args *args)
{
    const walk_launch shape = walk_plan(ctx, args->lists, (args->x.cols + VEC - 1) / VEC, threads);
    spmm_params p = {};
    p.sums.walk = shape.walk;
    p.sums.pairs = (const int2 *)args->lists->pairs;
    p.sums.order = args->lists->order;
    p.sums.x = args->x.data;
    p.sums.x_stride = args->x.row_stride;
    p.sums.cols = (int32_t)args->x.cols;
    p.sums.out = args->out.data;
    p.sums.out_stride = args->out.row_stride;
    p.sums.partials = args->partials;
    p.sums.tickets = args->tickets;
    p.w = args->w.data;
    p.w_stride = args->w.row_stride;
    p.head_cols = (int32_t)(args->x.cols / args->w.cols);
    p.scale = args->scale;
    const char *what = "spmm: launch";
    return args->lists->counts_on_device
               ? launch(ctx, what, spmm_kernel<T, VEC, HOW, false>, shape.grid, threads, p)
               : launch(ctx, what, spmm_kernel<T, VEC, HOW, true>, shape.grid, threads, p);
}

} // namespace

extern "C" spops_status spops_cuda_spmm(spops_context *ctx, const spops_spmm_args *args)
{
    if (args->lists->num_segments == 0 || args->x.cols == 0) return SPOPS_STATUS_OK;
    const int64_t head_cols = args->x.cols / args->w.cols;
    const bool wide = common_chunk({args->x, args->out}) > 1;
    return with_dtype(args->x.dtype, [&](auto tag) {
        typedef typename decltype(tag)::type T;
        constexpr int vec = 16 / sizeof(T);
        if (!wide) return launch_how<T, 1, ONE_HEAD>(ctx, args);
        if (head_cols % vec == 0) return launch_how<T, vec, ONE_HEAD>(ctx, args);
        if (head_cols == 1 && common_chunk({args->w}) == vec)
            return launch_how<T, vec, OWN>(ctx, args);
        return launch_how<T, vec, MIXED>(ctx, args);
    });
}
