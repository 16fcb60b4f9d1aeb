// SPDX-License-Identifier: Apache-2.0
// The segmented sum of rows of 8 and 4 bits with f16 weights, 16 columns a thread, so that what a
// term costs beside its columns (pair, weight, addresses) is paid once for 16 of them; and, for
// f16 and 8 bits, the sums in f16 that SPOPS_ACCUMULATE_F16 permits. Rows that cannot be loaded so
// are left to segsum_mixed.cu, and narrow ones, for which half the threads hide too little latency.
#include <type_traits>

#include "kernels/segreduce/segreduce_tuning.h"
#include "kernels/segreduce/segsum_mixed.cuh"

namespace
{

using namespace spops;

constexpr int threads = 128, resident = 6, columns = 16; // of a block, a processor, a thread
// Terms in flight. What a term holds until it is added: 4 registers of codes (f16: 8), 1 of weight.
constexpr int unroll = 4;
// Terms that are added in f16 before their sum goes on in f32 (types.h, spops_accumulate). A
// multiple of `unroll`.
constexpr int run_terms = 16;
typedef plain_SUM op;
typedef op::state sums[columns];

// The columns of a thread in one row, as loaded. Where `halves`, they are eight in the row's first
// half and eight in its second, so that neighbouring threads read neighbouring bytes; else they are
// neighbours. A thread's first byte is col * bytes / 16, where col counts 16 a thread. words(w)
// makes them pairs of f16, which count as their value times factor(weight) / weight, in the order
// of place(): element j of the pairs is column place(j) of the thread.
template <class X> struct wide_row {
    static constexpr bool halves = false;
    static constexpr int bytes = 16;
    uint4 codes;

    __device__ __forceinline__ void load(const uint8_t *row, const uint8_t *, int32_t)
    {
        codes = __ldg(reinterpret_cast<const uint4 *>(row));
    }
    __device__ __forceinline__ void words(uint32_t (&w)[columns / 2]) const
    {
        widen4(X(), codes.x, w[0], w[1]);
        widen4(X(), codes.y, w[2], w[3]);
        widen4(X(), codes.z, w[4], w[5]);
        widen4(X(), codes.w, w[6], w[7]);
    }
    static __device__ __forceinline__ constexpr int place(int j) { return j; }
    __device__ __forceinline__ float factor(float weight) const { return weight; }
};
template <> struct wide_row<f16> {
    static constexpr bool halves = true;
    static constexpr int bytes = 16;
    uint4 first, second;

    __device__ __forceinline__ void load(const uint8_t *row, const uint8_t *, int32_t half_bytes)
    {
        first = __ldg(reinterpret_cast<const uint4 *>(row));
        second = __ldg(reinterpret_cast<const uint4 *>(row + half_bytes));
    }
    __device__ __forceinline__ void words(uint32_t (&w)[columns / 2]) const
    {
        w[0] = first.x, w[1] = first.y, w[2] = first.z, w[3] = first.w;
        w[4] = second.x, w[5] = second.y, w[6] = second.z, w[7] = second.w;
    }
    static __device__ __forceinline__ constexpr int place(int j) { return j; }
    __device__ __forceinline__ float factor(float weight) const { return weight; }
};
// The 16 columns are those of one block scale, which joins the weight: weight * scale * 2^14 has 15
// bits, so it is exact, and its product with an element is as exact as in any other order. Sign
// and magnitude of an element are put where f16 has its sign and the end of its exponent; that is
// 2^-14 of the element.
template <> struct wide_row<f4e2m1> {
    static constexpr bool halves = false;
    static constexpr int bytes = 8;
    uint2 codes;
    uint32_t scale;

    __device__ __forceinline__ void load(const uint8_t *row, const uint8_t *scale_at, int32_t)
    {
        codes = __ldg(reinterpret_cast<const uint2 *>(row));
        scale = __ldg(scale_at);
    }
    // Of every byte its low element, then its high one.
    static __device__ __forceinline__ void words8(uint32_t c, uint32_t *w)
    {
        const uint32_t even = (c << 1 & 0x0e0e0e0eu) | (c << 4 & 0x80808080u);
        const uint32_t odd = (c >> 3 & 0x0e0e0e0eu) | (c & 0x80808080u);
        widen4(f8e5m2(), even, w[0], w[1]);
        widen4(f8e5m2(), odd, w[2], w[3]);
    }
    __device__ __forceinline__ void words(uint32_t (&w)[columns / 2]) const
    {
        words8(codes.x, w);
        words8(codes.y, w + 4);
    }
    static __device__ __forceinline__ constexpr int place(int j)
    {
        return j / 8 * 8 + j % 4 * 2 + j % 8 / 4;
    }
    __device__ __forceinline__ float factor(float weight) const
    {
        f16 as_f16;
        as_f16.bits = (uint16_t)widen2(f8e4m3(), scale);
        return weight * to_f32(as_f16) * 16384.0f;
    }
};

__device__ __forceinline__ uint32_t fma2(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t sum;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
    return sum;
}

// Sums on their way: in f32, or in f16 until the run ends.
template <class X, bool PACKED> struct wide_sums {
    __device__ __forceinline__ void begin_run() {}
    __device__ __forceinline__ void add(const wide_row<X> &row, f16 weight, sums &acc)
    {
        const float factor = row.factor(to_f32(weight));
        uint32_t w[columns / 2];
        row.words(w);
#pragma unroll
        for (int j = 0; j < columns; j += 2) {
            float low, high;
            unpack2<f16>(w[j / 2], low, high);
            acc[row.place(j)].v += factor * low;
            acc[row.place(j + 1)].v += factor * high;
        }
    }
    __device__ __forceinline__ void end_run(sums &) const {}
};
template <class X> struct wide_sums<X, true> {
    uint32_t run[columns / 2];

    __device__ __forceinline__ void begin_run()
    {
#pragma unroll
        for (int j = 0; j < columns / 2; ++j)
            run[j] = 0;
    }
    __device__ __forceinline__ void add(const wide_row<X> &row, f16 weight, sums &)
    {
        const uint32_t weight2 = weight.bits | (uint32_t)weight.bits << 16;
        uint32_t w[columns / 2];
        row.words(w);
#pragma unroll
        for (int j = 0; j < columns / 2; ++j)
            run[j] = fma2(weight2, w[j], run[j]);
    }
    __device__ __forceinline__ void end_run(sums &acc) const
    {
#pragma unroll
        for (int j = 0; j < columns / 2; ++j) {
            float low, high;
            unpack2<f16>(run[j], low, high);
            acc[2 * j].v += low;
            acc[2 * j + 1].v += high;
        }
    }
};

// Where a thread reads.
struct wide_source {
    const uint8_t *x, *scales; // this thread's part of row 0
    uint32_t x_stride, scales_stride;
    int32_t half_bytes;
    const f16 *w;
};

template <class X> struct wide_batch {
    wide_row<X> row[unroll];
    f16 weight[unroll];

    __device__ __forceinline__ void load(const wide_source &from, const int2 (&pair)[unroll],
                                         int count)
    {
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            if (u < count) {
                const uint64_t j = (uint32_t)pair[u].x;
                row[u].load(from.x + j * from.x_stride, from.scales + j * from.scales_stride,
                            from.half_bytes);
                weight[u] = from.w[pair[u].y];
            }
        }
    }
};

__device__ __forceinline__ void load_next(const int2 *next, int left, int2 (&pair)[unroll])
{
#pragma unroll
    for (int u = 0; u < unroll; ++u)
        if (u < left) pair[u] = __ldg(next + u);
}

// Positions begin .. end - 1: whole batches, then what is left, as fold_terms does.
template <class X, bool PACKED>
__device__ __forceinline__ void fold_wide(const mixed_params &p, const wide_source &from,
                                          int32_t begin, int32_t end, sums &acc)
{
    const int2 *next = p.sums.pairs + begin;
    int left = end - begin;
    int2 pair[unroll] = {};
    wide_batch<X> batch;
    wide_sums<X, PACKED> run;
    load_next(next, left, pair);
    wait_with_pairs(pair);
    run.begin_run();
    while (left >= unroll) {
        batch.load(from, pair, unroll);
        left -= unroll;
        next += unroll;
        load_next(next, left, pair);
#pragma unroll
        for (int u = 0; u < unroll; ++u)
            run.add(batch.row[u], batch.weight[u], acc);
        // After every run_terms terms, and after the last whole batch.
        if (PACKED && (left & (run_terms - unroll)) == 0) {
            run.end_run(acc);
            run.begin_run();
        }
    }
    if (left > 0) {
        batch.load(from, pair, left);
#pragma unroll
        for (int u = 0; u < unroll; ++u)
            if (u < left) run.add(batch.row[u], batch.weight[u], acc);
        run.end_run(acc);
    }
}

template <class X, bool PACKED, bool KNOWN>
__global__ void __launch_bounds__(threads, resident)
    segsum_wide_kernel(const __grid_constant__ mixed_params p)
{
    static_assert(run_terms % unroll == 0, "a run ends with a batch");
    typedef wide_row<X> row_type;
    __shared__ op::state shared[threads * columns];
    walk_blocks<KNOWN>(p.sums.walk, [&](const walk_params &w, int32_t block) {
        if (KNOWN) grid_launch_dependents();
        reduce_block_with<op, columns>(
            p.sums, w, block, shared,
            [&](const walk_share &share, int32_t col, int n, sums &acc) {
#pragma unroll
                for (int j = 0; j < columns; ++j)
                    acc[j] = op::identity();
                if (!share.active || n <= 0) {
                    grid_dependency_wait();
                    return;
                }
                wide_source from;
                from.x = static_cast<const uint8_t *>(p.sums.x) + col / columns * row_type::bytes;
                from.scales = p.x_scales + col / columns;
                from.x_stride = (uint32_t)p.x_stride;
                from.scales_stride = (uint32_t)p.x_scales_stride;
                from.half_bytes = p.sums.cols;
                from.w = static_cast<const f16 *>(p.sums.w);
                // Else the compiler adds base and column again for every row.
                asm volatile("" : "+l"(from.x), "+l"(from.scales));
                fold_wide<X, PACKED>(p, from, share.begin, share.end, acc);
            },
            [&](int32_t segment, int32_t, int32_t col, int, const sums &acc) {
                const int32_t first = row_type::halves ? col / 2 : col;
                const int32_t second = row_type::halves ? first + p.sums.cols / 2 : first + 8;
                write_scaled<true, columns>(p, segment, {first, second}, 8, acc);
            });
    });
}

template <class X, bool PACKED>
spops_status launch_wide(spops_context *ctx, const spops_segreduce_args *args)
{
    const bool known = !args->lists->counts_on_device;
    const char *what = "segreduce: launch";
    mixed_params p = mixed_params_of(args);
    const walk_launch shape = walk_plan(
        spops_segments_view_of(args->lists), known ? &args->lists->host_schedule : nullptr,
        args->x.cols / columns, threads, ctx->info.num_processors * resident, threads);
    p.sums.walk = shape.walk;
    return known ? launch<WAITS_FOR_PREVIOUS>(ctx, what, segsum_wide_kernel<X, PACKED, true>,
                                              shape.grid, threads, p)
                 : launch<AFTER_PREVIOUS>(ctx, what, segsum_wide_kernel<X, PACKED, false>,
                                          shape.grid, threads, p);
}

constexpr unsigned wide_dtypes = 1u << SPOPS_DTYPE_F16 | (unsigned)SPOPS_DTYPES_NARROW;

bool is_packed(const spops_segreduce_args *args)
{
    return args->accumulate == SPOPS_ACCUMULATE_F16;
}

} // namespace

bool spops::segsum_wide_fits(const spops_context *ctx, const spops_segreduce_args *args)
{
    const spops_dtype x = args->x.dtype;
    const bool rows = is_packed(args) ? spops_dtype_in(x, wide_dtypes) : spops_dtype_is_narrow(x);
    spops_tuning_case at = {};
    at.compute_capability = ctx->info.compute_capability;
    at.dtype = x;
    at.cols = args->x.cols;
    return rows && spops_segsum_thread_cols(&at) == columns && args->w.data != nullptr &&
           args->w.dtype == SPOPS_DTYPE_F16 && args->lists->pairs != nullptr &&
           rows_in_chunks(args->x, args->out, columns) &&
           spops_elements_bytes(x, args->x.row_stride) <= UINT32_MAX &&
           args->x_scales.row_stride <= UINT32_MAX;
}

spops_status spops::segsum_wide(spops_context *ctx, const spops_segreduce_args *args)
{
    return with_dtype<wide_dtypes>(args->x.dtype, [&](auto tag) {
        typedef typename decltype(tag)::type X;
        if constexpr (std::is_same<X, f16>::value) // f32 sums of them are segreduce_sum_f16.cu's
            return launch_wide<X, true>(ctx, args);
        else if constexpr (std::is_same<X, f4e2m1>::value) // would gain nothing
            return launch_wide<X, false>(ctx, args);
        else
            return is_packed(args) ? launch_wide<X, true>(ctx, args)
                                   : launch_wide<X, false>(ctx, args);
    });
}
