// SPDX-License-Identifier: Apache-2.0
// The gradient of a reduction with states (winners, products) where every row is in one short segment at
// most, as pooling by windows beside each other has it: a group of lanes that has a segment's state in
// registers writes the gradients of its rows. Nothing else writes them.
#include "kernels/segments/few_terms.cuh"
#include "kernels/segreduce/reduce_functors.cuh"
#include "kernels/launchers.h"

namespace
{

using namespace spops;

constexpr int resident = 4;

struct partgrad_params {
    few_terms_params lists;
    const void *x, *grad_out;
    int64_t x_stride, grad_out_stride;
    void *grad;
    int64_t grad_stride;
};

template <class Op, class T, int VEC>
__device__ __forceinline__ void reduce_segments(const partgrad_params &p,
                                                const few_terms_place &here, const T *x,
                                                typename Op::state (&acc)[few_terms_segments][VEC])
{
#pragma unroll
    for (int u = 0; u < few_terms_segments; ++u)
#pragma unroll
        for (int j = 0; j < VEC; ++j)
            acc[u][j] = Op::identity();
    for (int32_t step = 0; step < here.steps; ++step) {
        const few_terms_rows rows(p.lists, here, step);
        few_terms_chunks<T, VEC> chunks;
        chunks.load(rows, x, p.x_stride);
#pragma unroll
        for (int u = 0; u < few_terms_segments; ++u) {
#pragma unroll
            for (int t = 0; t < few_terms_step; ++t) {
                if (rows.row[u][t] < 0) continue;
                float v[VEC];
                chunks.of[u][t].get(v);
#pragma unroll
                for (int j = 0; j < VEC; ++j)
                    acc[u][j] = Op::combine(acc[u][j], Op::lift(v[j], step * few_terms_step + t));
            }
        }
    }
}

template <class Op, class T>
__global__ void __launch_bounds__(few_terms_threads, resident)
    partgrad_kernel(const __grid_constant__ partgrad_params p)
{
    constexpr int vec = 16 / sizeof(T);
    grid_launch_dependents();
    grid_dependency_wait();
    const few_terms_place here(p.lists);
    for (int32_t chunk = here.lane; chunk < p.lists.chunks; chunk += here.lanes) {
        const T *x = static_cast<const T *>(p.x) + chunk * vec;
        const T *grad_out = static_cast<const T *>(p.grad_out) + chunk * vec;
        T *grad = static_cast<T *>(p.grad) + chunk * vec;
        typename Op::state acc[few_terms_segments][vec];
        float g[few_terms_segments][vec];
        reduce_segments<Op, T, vec>(p, here, x, acc);
#pragma unroll
        for (int u = 0; u < few_terms_segments; ++u) {
            row_chunk<T, vec, true> row;
            if (here.count(u) == 0) continue;
            row.load(row_at<true>(grad_out, (int32_t)here.first + u, p.grad_out_stride), vec);
            row.get(g[u]);
        }
        for (int32_t step = 0; step < here.steps; ++step) {
            const few_terms_rows rows(p.lists, here, step);
            few_terms_chunks<T, vec> chunks;
            chunks.load(rows, x, p.x_stride);
#pragma unroll
            for (int u = 0; u < few_terms_segments; ++u) {
#pragma unroll
                for (int t = 0; t < few_terms_step; ++t) {
                    if (rows.row[u][t] < 0) continue;
                    row_chunk<T, vec, true> result;
                    float v[vec];
                    chunks.of[u][t].get(v);
#pragma unroll
                    for (int j = 0; j < vec; ++j)
                        v[j] = 0.0f +
                               Op::grad(v[j], step * few_terms_step + t, acc[u][j], here.count(u)) *
                                   g[u][j];
                    result.set(v);
                    result.store(row_at<true>(grad, rows.row[u][t], p.grad_stride), vec);
                }
            }
        }
    }
}

struct empty_rows_params {
    const int32_t *offsets; // of the lists by row
    int32_t num_rows, chunks;
    uint4 *grad;
    int64_t stride; // in chunks
};

// Rows without a term; a warp takes 32 rows.
__global__ void __launch_bounds__(few_terms_threads)
    partgrad_empty_rows(const __grid_constant__ empty_rows_params p)
{
    grid_launch_dependents();
    grid_dependency_wait();
    const int32_t warp = (int32_t)((blockIdx.x * (int64_t)blockDim.x + threadIdx.x) >> 5);
    const int32_t lane = (int32_t)threadIdx.x & 31, row = warp * 32 + lane;
    const bool empty = row < p.num_rows && __ldg(p.offsets + row) == __ldg(p.offsets + row + 1);
    for (uint32_t left = __ballot_sync(0xffffffffu, empty); left != 0; left &= left - 1) {
        uint4 *to = p.grad + (int64_t)(warp * 32 + __ffs((int)left) - 1) * p.stride;
        for (int32_t chunk = lane; chunk < p.chunks; chunk += 32)
            to[chunk] = make_uint4(0, 0, 0, 0);
    }
}

template <class Op, class T> spops_status launch_op(spops_context *ctx, const partgrad_params &p)
{
    return launch<WAITS_FOR_PREVIOUS>(ctx, "partgrad: launch", partgrad_kernel<Op, T>,
                                      dim3(few_terms_blocks(p.lists)), few_terms_threads, p);
}

spops_status clear_empty_rows(spops_context *ctx, const spops_partgrad_args *args)
{
    const int64_t vec = (int64_t)(16 / spops_dtype_bytes(args->grad.dtype));
    const int64_t blocks = (args->by_row->num_segments + few_terms_threads - 1) / few_terms_threads;
    empty_rows_params p = {};
    p.offsets = args->by_row->offsets;
    p.num_rows = (int32_t)args->by_row->num_segments;
    p.chunks = (int32_t)(args->grad.cols / vec);
    p.grad = static_cast<uint4 *>(args->grad.data);
    p.stride = args->grad.row_stride / vec;
    if (blocks == 0) return SPOPS_STATUS_OK;
    return launch<WAITS_FOR_PREVIOUS>(ctx, "partgrad: rows without a term", partgrad_empty_rows,
                                      dim3((unsigned)blocks), few_terms_threads, p);
}

} // namespace

extern "C" bool spops_cuda_partgrad_fits(const spops_context *ctx, const spops_partgrad_args *args)
{
    const int vec = (int)(16 / spops_dtype_bytes(args->x.dtype));
    (void)ctx;
    return has_few_terms(args->lists) && has_few_terms(args->by_row) &&
           args->by_row->host_schedule.longest == 1 && args->x.cols % vec == 0 &&
           common_chunk({args->x, args->grad_out, args->grad}) == vec;
}

extern "C" spops_status spops_cuda_partgrad(spops_context *ctx, const spops_partgrad_args *args)
{
    partgrad_params p = {};
    p.lists = few_terms_params_of(args->lists,
                                  args->x.cols * (int64_t)spops_dtype_bytes(args->x.dtype) / 16);
    p.x = args->x.data;
    p.x_stride = args->x.row_stride;
    p.grad_out = args->grad_out.data;
    p.grad_out_stride = args->grad_out.row_stride;
    p.grad = args->grad.data;
    p.grad_stride = args->grad.row_stride;
    SPOPS_TRY(clear_empty_rows(ctx, args));
    if (args->lists->num_segments == 0) return SPOPS_STATUS_OK;
    return with_dtype(args->x.dtype, [&](auto tag) {
        typedef typename decltype(tag)::type T;
        switch (args->reduce) {
        case SPOPS_REDUCE_MIN: return launch_op<traced_MIN, T>(ctx, p);
        case SPOPS_REDUCE_MAX: return launch_op<traced_MAX, T>(ctx, p);
        case SPOPS_REDUCE_PROD: return launch_op<traced_PROD, T>(ctx, p);
        default: break;
        }
        return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED, "partgrad: reduce is %d", args->reduce);
    });
}
