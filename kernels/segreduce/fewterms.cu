// SPDX-License-Identifier: Apache-2.0
// Reductions over short segments, as in-bucket pooling has them: all rows of a group's segments are
// asked for before the first is added. Terms are added in their order, as the walk of a schedule does.
#include "kernels/segreduce/fewterms.cuh"

#include <type_traits>

#include "kernels/segments/few_terms.cuh"
#include "kernels/segreduce/reduce_functors.cuh"

namespace
{

using namespace spops;

constexpr int resident = 4;

struct few_terms_rows_params {
    few_terms_params lists;
    const void *x;
    int64_t x_stride;
    void *out;
    int64_t out_stride;
    const int32_t *counted; // offsets of what the rows of x are: each is divided by its count
};

// What Op::finalize gives. A quotient by 1, 2, 4 or 8 is a product with its inverse, bit for bit, and
// quotients take as long as the rows of a short segment do.
template <class Op, int VEC>
__device__ __forceinline__ void finalize_row(const typename Op::state (&acc)[VEC], int32_t count,
                                             float (&v)[VEC])
{
    if constexpr (std::is_same<Op, plain_MEAN>::value) {
        if (count > 0 && (count & (count - 1)) == 0) {
            const float part = 1.0f / (float)count;
#pragma unroll
            for (int j = 0; j < VEC; ++j)
                v[j] = acc[j].v * part;
            return;
        }
    }
#pragma unroll
    for (int j = 0; j < VEC; ++j)
        v[j] = Op::finalize(acc[j], count);
}

// The parts of rows that terms add: 1 over the count of what a row stands for.
struct few_terms_parts {
    float part[few_terms_segments][few_terms_step];

    __device__ __forceinline__ void read(const few_terms_rows_params &p, const few_terms_rows &rows)
    {
#pragma unroll
        for (int u = 0; u < few_terms_segments; ++u) {
#pragma unroll
            for (int t = 0; t < few_terms_step; ++t) {
                const int32_t row = rows.row[u][t];
                part[u][t] = 0.0f;
                if (row >= 0)
                    part[u][t] =
                        1.0f / (float)(__ldg(p.counted + row + 1) - __ldg(p.counted + row));
            }
        }
    }
};

template <class Op, class T, bool COUNTED>
__global__ void __launch_bounds__(few_terms_threads, resident)
    few_terms_kernel(const __grid_constant__ few_terms_rows_params p)
{
    constexpr int vec = 16 / sizeof(T);
    grid_launch_dependents();
    grid_dependency_wait();
    const few_terms_place here(p.lists);
    for (int32_t chunk = here.lane; chunk < p.lists.chunks; chunk += here.lanes) {
        const T *x = static_cast<const T *>(p.x) + chunk * vec;
        T *out = static_cast<T *>(p.out) + chunk * vec;
        typename Op::state acc[few_terms_segments][vec];
#pragma unroll
        for (int u = 0; u < few_terms_segments; ++u)
#pragma unroll
            for (int j = 0; j < vec; ++j)
                acc[u][j] = Op::identity();
        for (int32_t step = 0; step < here.steps; ++step) {
            const few_terms_rows rows(p.lists, here, step);
            few_terms_chunks<T, vec> chunks;
            chunks.load(rows, x, p.x_stride);
            few_terms_parts parts;
            if constexpr (COUNTED) parts.read(p, rows);
#pragma unroll
            for (int u = 0; u < few_terms_segments; ++u) {
#pragma unroll
                for (int t = 0; t < few_terms_step; ++t) {
                    if (rows.row[u][t] < 0) continue;
                    float v[vec];
                    chunks.of[u][t].get(v);
#pragma unroll
                    for (int j = 0; j < vec; ++j)
                        acc[u][j] = Op::combine(
                            acc[u][j], Op::lift(COUNTED ? parts.part[u][t] * v[j] : v[j], 0));
                }
            }
        }
#pragma unroll
        for (int u = 0; u < few_terms_segments; ++u) {
            if (here.first + u >= p.lists.num_segments) continue;
            float v[vec];
            row_chunk<T, vec, true> result;
            finalize_row<Op>(acc[u], here.count(u), v);
            result.set(v);
            result.store(row_at<true>(out, (int32_t)here.first + u, p.out_stride), vec);
        }
    }
}

template <class Op, class T, bool COUNTED>
spops_status launch_op(spops_context *ctx, const few_terms_rows_params &p)
{
    return launch<WAITS_FOR_PREVIOUS>(ctx, "segreduce: launch of short segments",
                                      few_terms_kernel<Op, T, COUNTED>,
                                      dim3(few_terms_blocks(p.lists)), few_terms_threads, p);
}

bool rows_fit(const spops_lists *lists, const spops_matrix &x, const spops_matrix &out)
{
    const int vec = (int)(16 / spops_dtype_bytes(x.dtype));
    return has_few_terms(lists) && x.cols % vec == 0 && common_chunk({x, out}) == vec;
}

few_terms_rows_params params_of(const spops_lists *lists, const spops_matrix &x,
                                const spops_matrix &out)
{
    few_terms_rows_params p = {};
    p.lists = few_terms_params_of(lists, x.cols * (int64_t)spops_dtype_bytes(x.dtype) / 16);
    p.x = x.data;
    p.x_stride = x.row_stride;
    p.out = out.data;
    p.out_stride = out.row_stride;
    return p;
}

} // namespace

bool spops::few_terms_fit(const spops_segreduce_args *args)
{
    return args->custom == nullptr && args->w.data == nullptr && args->states == nullptr &&
           args->arg.data == nullptr && rows_fit(args->lists, args->x, args->out);
}

spops_status spops::few_terms(spops_context *ctx, const spops_segreduce_args *args)
{
    const few_terms_rows_params p = params_of(args->lists, args->x, args->out);
    return with_dtype(args->x.dtype, [&](auto tag) {
        typedef typename decltype(tag)::type T;
        switch (args->reduce) {
#define SPOPS_REDUCE_OP(NAME, plain, traced)                                                       \
    case SPOPS_REDUCE_##NAME:                                                                      \
        return launch_op<plain_##NAME, T, false>(ctx, p);
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
        default: break;
        }
        return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED, "segreduce: reduce is %d", args->reduce);
    });
}

bool spops::few_terms_mean_grad_fit(const spops_grad_args *args)
{
    return args->reduce == SPOPS_REDUCE_MEAN && args->w.data == nullptr &&
           rows_fit(args->lists, args->grad_out, args->grad);
}

spops_status spops::few_terms_mean_grad(spops_context *ctx, const spops_grad_args *args)
{
    few_terms_rows_params p = params_of(args->lists, args->grad_out, args->grad);
    p.counted = args->segment_offsets;
    return with_dtype(args->grad.dtype, [&](auto tag) {
        typedef typename decltype(tag)::type T;
        return launch_op<plain_SUM, T, true>(ctx, p);
    });
}
