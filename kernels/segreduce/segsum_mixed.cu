// SPDX-License-Identifier: Apache-2.0
// The segmented sum where x, w and out differ in dtype, or x has 8 or 4 bits an element, or there
// are scales: rows are widened to f16 (bf16 as they are), products and sums are f32. A thread has
// 8 columns. Calls whose rows allow 16 go on to segsum_wide.cu.
#include <type_traits>

#include "kernels/segreduce/segsum_mixed.cuh"

namespace
{

using namespace spops;

constexpr int threads = 256, unroll = 2, columns = 8; // of a thread
typedef plain_SUM op;

// The columns of a thread in one row, as loaded.
template <class X, bool FULL> struct thread_row {
    typedef row_words<X> words;
    typename words::codes8 codes;
    uint32_t scale;

    __device__ __forceinline__ void load(const uint8_t *row, const uint8_t *scales, int32_t col,
                                         int n)
    {
        codes = words::template load8<FULL>(row, col, n);
        scale = load_scale<X>(scales, col);
    }
    __device__ __forceinline__ void get(float (&v)[columns]) const
    {
        const uint4 w = words::widen8(codes, widen_scale(scale));
        unpack2<typename words::half_type>(w.x, v[0], v[1]);
        unpack2<typename words::half_type>(w.y, v[2], v[3]);
        unpack2<typename words::half_type>(w.z, v[4], v[5]);
        unpack2<typename words::half_type>(w.w, v[6], v[7]);
    }
};
template <bool FULL> struct thread_row<float, FULL> {
    float values[columns];

    __device__ __forceinline__ void load(const uint8_t *row, const uint8_t *, int32_t col, int n)
    {
        const float *from = reinterpret_cast<const float *>(row) + col;
#pragma unroll
        for (int j = 0; j < columns; ++j)
            values[j] = FULL || j < n ? __ldg(from + j) : 0.0f;
    }
    __device__ __forceinline__ void get(float (&v)[columns]) const
    {
#pragma unroll
        for (int j = 0; j < columns; ++j)
            v[j] = values[j];
    }
};

// How a kernel reads its weights: of the one dtype that most calls have, or of any.
enum mixed_weights { WEIGHTS_F16, WEIGHTS_ANY };

template <int WEIGHTS>
__device__ __forceinline__ float load_mixed_weight(const segreduce_params &p, int32_t i)
{
    if (WEIGHTS == WEIGHTS_F16) return to_f32(static_cast<const f16 *>(p.w)[i]);
    return p.w == nullptr ? 1.0f : load_weight_f32(p.w, p.w_dtype, i);
}

// Up to `unroll` terms on their way.
template <class X, bool FULL, int WEIGHTS> struct mixed_batch {
    thread_row<X, FULL> row[unroll];
    float weight[unroll];

    __device__ __forceinline__ void load(const mixed_params &p, const int2 (&pair)[unroll],
                                         int32_t col, int n, int count)
    {
        const uint8_t *x = static_cast<const uint8_t *>(p.sums.x);
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            if (u < count) {
                const int64_t j = pair[u].x;
                row[u].load(x + j * p.x_stride, p.x_scales + j * p.x_scales_stride, col, n);
                weight[u] = load_mixed_weight<WEIGHTS>(p.sums, pair[u].y);
            }
        }
    }
    __device__ __forceinline__ void fold(int count, typename op::state (&acc)[columns]) const
    {
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            if (u < count) {
                float v[columns];
                row[u].get(v);
#pragma unroll
                for (int j = 0; j < columns; ++j)
                    acc[j].v += weight[u] * v[j];
            }
        }
    }
};

// Positions begin .. end - 1: whole batches, then what is left, as fold_terms does.
template <bool PAIRS, class X, bool FULL, int WEIGHTS>
__device__ __forceinline__ void fold_mixed(const mixed_params &p, int32_t begin, int32_t end,
                                           int32_t col, int n, typename op::state (&acc)[columns])
{
    int2 pair[unroll] = {};
    mixed_batch<X, FULL, WEIGHTS> batch;
    int32_t i = begin;
    load_pairs<PAIRS>(p.sums.pairs, i, end, pair);
    wait_with_pairs(pair);
    for (; i + unroll <= end; i += unroll) {
        batch.load(p, pair, col, n, unroll);
        load_pairs<PAIRS>(p.sums.pairs, i + unroll, end, pair);
        batch.fold(unroll, acc);
    }
    if (i < end) {
        batch.load(p, pair, col, n, end - i);
        batch.fold(end - i, acc);
    }
}

template <class X, bool FULL, int WEIGHTS, bool KNOWN>
__global__ void __launch_bounds__(threads, 4)
    segsum_mixed_kernel(const __grid_constant__ mixed_params p)
{
    typedef typename op::state state;
    __shared__ state shared[threads * columns];
    walk_blocks<KNOWN>(p.sums.walk, [&](const walk_params &w, int32_t block) {
        if (KNOWN) grid_launch_dependents();
        reduce_block_with<op, columns>(
            p.sums, w, block, shared,
            [&](const walk_share &share, int32_t col, int n, state(&acc)[columns]) {
#pragma unroll
                for (int j = 0; j < columns; ++j)
                    acc[j] = op::identity();
                if (!share.active || n <= 0)
                    grid_dependency_wait();
                else if (p.sums.pairs != nullptr)
                    fold_mixed<true, X, FULL, WEIGHTS>(p, share.begin, share.end, col, n, acc);
                else
                    fold_mixed<false, X, FULL, WEIGHTS>(p, share.begin, share.end, col, n, acc);
            },
            [&](int32_t segment, int32_t, int32_t col, int n, const state(&acc)[columns]) {
                write_scaled<FULL, columns>(p, segment, {col}, n, acc);
            });
    });
}

template <class X, bool FULL, int WEIGHTS, bool KNOWN>
spops_status launch_mixed(spops_context *ctx, const spops_segreduce_args *args, mixed_params p)
{
    constexpr launch_order order = KNOWN ? WAITS_FOR_PREVIOUS : AFTER_PREVIOUS;
    const walk_launch shape =
        walk_plan(ctx, args->lists, (args->x.cols + columns - 1) / columns, threads);
    p.sums.walk = shape.walk;
    return launch<order>(ctx, "segreduce: launch", segsum_mixed_kernel<X, FULL, WEIGHTS, KNOWN>,
                         shape.grid, threads, p);
}

// Any input.
template <class X>
spops_status launch_any(spops_context *ctx, const spops_segreduce_args *args, const mixed_params &p,
                        bool full)
{
    return full ? launch_mixed<X, true, WEIGHTS_ANY, false>(ctx, args, p)
                : launch_mixed<X, false, WEIGHTS_ANY, false>(ctx, args, p);
}

// Where the host knows the plan's counts and rows are whole chunks, a kernel that knows it too.
template <class X>
spops_status launch_rows(spops_context *ctx, const spops_segreduce_args *args,
                         const mixed_params &p, bool full)
{
    if (!full || args->lists->counts_on_device) return launch_any<X>(ctx, args, p, full);
    const bool f16_weights = p.sums.w != nullptr && p.sums.w_dtype == SPOPS_DTYPE_F16;
    return f16_weights ? launch_mixed<X, true, WEIGHTS_F16, true>(ctx, args, p)
                       : launch_mixed<X, true, WEIGHTS_ANY, true>(ctx, args, p);
}

} // namespace

spops_status spops::segsum_mixed(spops_context *ctx, const spops_segreduce_args *args)
{
    if (segsum_wide_fits(ctx, args)) return segsum_wide(ctx, args);
    const mixed_params p = mixed_params_of(args);
    const bool full = rows_in_eights(args->x, args->out);
    constexpr unsigned summed = (unsigned)SPOPS_DTYPES_FLOAT | (unsigned)SPOPS_DTYPES_NARROW;
    return with_dtype<summed>(args->x.dtype, [&](auto tag) {
        typedef typename decltype(tag)::type X;
        // Rows of f32 and bf16 come here for other dtypes of w and out, or for scales alone.
        if constexpr (std::is_same<X, float>::value || std::is_same<X, bf16>::value)
            return launch_any<X>(ctx, args, p, full);
        else
            return launch_rows<X>(ctx, args, p, full);
    });
}
