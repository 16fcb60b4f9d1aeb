// SPDX-License-Identifier: Apache-2.0
// Reductions over short segments, as in-bucket pooling has them: all rows of a group's segments are
// asked for before the first is added. Terms are added in their order, as the walk of a schedule does.
#include "kernels/segreduce/fewterms.cuh"

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
};

template <class Op, class T>
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
            row_chunk<T, vec, true> row[few_terms_segments][few_terms_step];
#pragma unroll
            for (int u = 0; u < few_terms_segments; ++u)
#pragma unroll
                for (int t = 0; t < few_terms_step; ++t)
                    if (rows.row[u][t] >= 0)
                        row[u][t].load(row_at<true>(x, rows.row[u][t], p.x_stride), vec);
#pragma unroll
            for (int u = 0; u < few_terms_segments; ++u) {
#pragma unroll
                for (int t = 0; t < few_terms_step; ++t) {
                    if (rows.row[u][t] < 0) continue;
                    float v[vec];
                    row[u][t].get(v);
#pragma unroll
                    for (int j = 0; j < vec; ++j)
                        acc[u][j] = Op::combine(acc[u][j], Op::lift(v[j], 0));
                }
            }
        }
#pragma unroll
        for (int u = 0; u < few_terms_segments; ++u) {
            if (here.first + u >= p.lists.num_segments) continue;
            float v[vec];
            row_chunk<T, vec, true> result;
#pragma unroll
            for (int j = 0; j < vec; ++j)
                v[j] = Op::finalize(acc[u][j], here.count(u));
            result.set(v);
            result.store(row_at<true>(out, (int32_t)here.first + u, p.out_stride), vec);
        }
    }
}

template <class Op, class T>
spops_status launch_op(spops_context *ctx, const few_terms_rows_params &p)
{
    return launch<WAITS_FOR_PREVIOUS>(ctx, "segreduce: launch of short segments",
                                      few_terms_kernel<Op, T>, dim3(few_terms_blocks(p.lists)),
                                      few_terms_threads, p);
}

} // namespace

bool spops::few_terms_fit(const spops_segreduce_args *args)
{
    const int vec = (int)(16 / spops_dtype_bytes(args->x.dtype));
    return has_few_terms(args->lists) && args->custom == nullptr && args->w.data == nullptr &&
           args->states == nullptr && args->arg.data == nullptr && args->x.cols % vec == 0 &&
           common_chunk({args->x, args->out}) == vec;
}

spops_status spops::few_terms(spops_context *ctx, const spops_segreduce_args *args)
{
    few_terms_rows_params p = {};
    p.lists = few_terms_params_of(args->lists,
                                  args->x.cols * (int64_t)spops_dtype_bytes(args->x.dtype) / 16);
    p.x = args->x.data;
    p.x_stride = args->x.row_stride;
    p.out = args->out.data;
    p.out_stride = args->out.row_stride;
    return with_dtype(args->x.dtype, [&](auto tag) {
        typedef typename decltype(tag)::type T;
        switch (args->reduce) {
#define SPOPS_REDUCE_OP(NAME, plain, traced)                                                       \
    case SPOPS_REDUCE_##NAME:                                                                      \
        return launch_op<plain_##NAME, T>(ctx, p);
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
        default: break;
        }
        return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED, "segreduce: reduce is %d", args->reduce);
    });
}
