// SPDX-License-Identifier: Apache-2.0
// VVOR. A block takes a matrix, or a piece of one that has many triplets, and 64 x 64 of its
// elements: the sum of outer products of gathered rows is a product whose depth is the triplets.
// Pieces leave their sums in scratch; a second kernel adds them in order.
#include "kernels/core/launch.cuh"
#include "kernels/core/with_dtype.cuh"
#include "kernels/mvmr/mvmr_launch.cuh"
#include "kernels/mvmr/product.cuh"
#include "kernels/mvmr/vvor_units.cuh"

namespace
{

using namespace spops;

// The factors are named by the matrix as it is stored: rows x columns.
struct vvor_params {
    vvor_units units;
    const int2 *pairs;
    const int32_t *numbers;
    int row_side; // which number of a pair is the row of `rows`
    const void *rows, *cols, *s;
    int64_t rows_stride, cols_stride;
    int32_t s_dtype;
    int32_t num_rows, num_cols, groups; // of one group
    product_result out;
    float *partials;
};

// Gathered rows of `positions`, with the triplets' factors.
template <class T, bool SCALED> struct gathered_rows {
    const T *data;
    int64_t stride;
    const int2 *pairs; // of the first position
    int side;
    const int32_t *numbers;
    const void *s;
    int32_t s_dtype;
    static constexpr bool scaled = SCALED;

    __device__ __forceinline__ const T *operator()(int r) const
    {
        const int2 pair = pairs[r];
        return data + (side == 0 ? pair.x : pair.y) * stride;
    }
    __device__ __forceinline__ float scale(int r) const
    {
        return load_weight<WEIGHT_ANY, T>(s, s_dtype, numbers[r]);
    }
};

__host__ __device__ inline int64_t num_blocks(int64_t n, int64_t size)
{
    return (n + size - 1) / size;
}

template <class P, bool SCALED>
__global__ void __launch_bounds__(product_threads)
    vvor_kernel(const __grid_constant__ vvor_params p)
{
    typedef typename P::element T;
    __shared__ __align__(16) uint32_t stage[P::shared_words];
    __shared__ __align__(16) float sums[product_rows * sums_stride];
    const vvor_unit unit = unit_at(p.units, blockIdx.x);
    const int64_t row_blocks = num_blocks(p.num_rows, product_rows);
    const int64_t col_blocks = num_blocks(p.num_cols, product_cols);
    const int64_t width = p.groups * (int64_t)p.num_cols;
    P product;

    if (!unit.there) return;
    const int2 *pairs = p.pairs + unit.begin;
    const int32_t *numbers = p.numbers + unit.begin;
    const gathered_rows<T, SCALED> a = {
        static_cast<const T *>(p.rows), p.rows_stride, pairs, p.row_side, numbers, p.s, p.s_dtype};
    const gathered_rows<T, false> b = {
        static_cast<const T *>(p.cols), p.cols_stride, pairs, 1 - p.row_side, numbers, nullptr, 0};
    for (int64_t index = blockIdx.y; index < p.groups * row_blocks * col_blocks;
         index += gridDim.y) {
        const int64_t group = index / (row_blocks * col_blocks);
        const int row = (int)(index / col_blocks % row_blocks) * product_rows;
        const int col = (int)(index % col_blocks) * product_cols;
        const int rows = min(product_rows, p.num_rows - row);
        const int cols = min(product_cols, p.num_cols - col);
        const int64_t out_col = group * p.num_cols + col;
        product.clear();
        product.run(stage, a, group * p.num_rows + row, rows, b, out_col, cols, unit.count);
        product.each([&](int r, int c, float v0, float v1) {
            *reinterpret_cast<float2 *>(&sums[r * sums_stride + c]) = make_float2(v0, v1);
        });
        __syncthreads();
        for (int r = threadIdx.x / 8; r < rows; r += product_threads / 8) {
            const float *from = &sums[r * sums_stride];
            if (unit.piece >= 0)
                store_sums<1>(from,
                              p.partials + (unit.piece * (int64_t)p.num_rows + row + r) * width +
                                  out_col,
                              cols, false, threadIdx.x % 8, 8);
            else
                p.out.template store<T>(from, unit.matrix * (int64_t)p.num_rows + row + r, out_col,
                                        cols, threadIdx.x % 8, 8);
        }
        __syncthreads();
    }
}

constexpr int join_threads = 256;

struct join_params {
    const spops_schedule *schedule;
    const spops_split_segment *splits;
    const float *partials;
    int64_t rows, width; // of a matrix
    product_result out;
};

// The sums of matrices that were cut: their pieces', in order. A thread has an element.
template <class T>
__global__ void __launch_bounds__(join_threads) join_pieces(const __grid_constant__ join_params p)
{
    const int64_t i = (int64_t)blockIdx.x * join_threads + threadIdx.x;
    if (i >= p.rows * p.width) return;
    for (int32_t n = blockIdx.y; n < p.schedule->num_splits; n += gridDim.y) {
        const spops_split_segment split = p.splits[n];
        const float *from = p.partials + split.first_piece * (p.rows * p.width) + i;
        float sum = 0.0f;
        for (int32_t piece = 0; piece < split.num_pieces; ++piece)
            sum += from[piece * (p.rows * p.width)];
        p.out.template store<T>(&sum, split.segment * p.rows + i / p.width, i % p.width, 1, 0, 1);
    }
}

template <class T> spops_status join(spops_context *ctx, const spops_vvor_args *args, int64_t rows)
{
    const spops_lists *lists = args->by_matrix;
    const int64_t splits =
        lists->counts_on_device ? lists->max_splits : lists->host_schedule.num_splits;
    join_params p = {};
    dim3 grid;
    if (splits == 0) return SPOPS_STATUS_OK;
    p.schedule = lists->schedule;
    p.splits = lists->splits;
    p.partials = args->partials;
    p.rows = rows;
    p.width = args->out.cols;
    p.out = result_of(args->out, args->out.cols, 1, args->accumulate);
    p.out.wide = false;
    grid = blocks_for(rows * p.width, join_threads);
    grid.y = (unsigned)(splits < 65535 ? splits : 65535);
    return launch(ctx, "vvor: join_pieces", join_pieces<T>, grid, join_threads, p);
}

template <product_engine ENGINE, class T, int VEC, bool SCALED>
spops_status launch_kernel(spops_context *ctx, const spops_vvor_args *args, const vvor_params &p)
{
    typedef product<ENGINE, T, VEC, true, true> P;
    const int64_t blocks =
        p.groups * num_blocks(p.num_rows, product_rows) * num_blocks(p.num_cols, product_cols);
    const dim3 grid((unsigned)num_units(args->by_matrix),
                    (unsigned)(blocks < 65535 ? blocks : 65535));
    return launch(ctx, "vvor: launch", vvor_kernel<P, SCALED>, grid, product_threads, p);
}

// Factors are applied in f32, so that rows of 16 bits with factors take the f32 engine.
template <class T>
spops_status launch_engine(spops_context *ctx, const spops_vvor_args *args, const vvor_params &p,
                           bool wide)
{
    constexpr int vec = (int)(16 / sizeof(T));
    const product_engine engine = engine_for(ctx, args->x.dtype, args->math, wide);
    if (p.s != nullptr) return launch_kernel<ENGINE_F32, T, 1, true>(ctx, args, p);
    if constexpr (sizeof(T) == 2) {
        if (engine == ENGINE_UNITS)
            return wide ? launch_kernel<ENGINE_UNITS, T, vec, false>(ctx, args, p)
                        : launch_kernel<ENGINE_UNITS, T, 1, false>(ctx, args, p);
    } else {
        if (engine == ENGINE_TF32) return launch_kernel<ENGINE_TF32, T, vec, false>(ctx, args, p);
        if (wide) return launch_kernel<ENGINE_F32, T, vec, false>(ctx, args, p);
    }
    return launch_kernel<ENGINE_F32, T, 1, false>(ctx, args, p);
}

} // namespace

extern "C" spops_status spops_cuda_vvor(spops_context *ctx, const spops_vvor_args *args)
{
    const spops_lists *lists = args->by_matrix;
    const int x_side = args->side == SPOPS_SIDE_TARGET ? 1 : 0; // pairs are (output row, input row)
    const spops_matrix rows = args->transposed ? args->g : args->x;
    const spops_matrix cols = args->transposed ? args->x : args->g;
    vvor_params p = {};
    if (lists->num_segments == 0) return SPOPS_STATUS_OK;
    p.units = units_of(lists);
    p.pairs = (const int2 *)lists->pairs;
    p.numbers = lists->order;
    p.row_side = args->transposed ? 1 - x_side : x_side;
    p.rows = rows.data;
    p.rows_stride = rows.row_stride;
    p.cols = cols.data;
    p.cols_stride = cols.row_stride;
    p.s = args->s.data;
    p.s_dtype = args->s.dtype;
    p.num_rows = (int32_t)(args->transposed ? args->g_cols : args->x_cols);
    p.num_cols = (int32_t)(args->transposed ? args->x_cols : args->g_cols);
    p.groups = args->groups;
    p.out = result_of(args->out, p.num_cols, p.groups, args->accumulate);
    p.partials = args->partials;
    return with_dtype(args->x.dtype, [&](auto tag) {
        typedef typename decltype(tag)::type T;
        if (args->diagonal) {
            SPOPS_TRY(vvor_diagonal(ctx, args));
            return join<T>(ctx, args, 1);
        }
        const bool wide =
            wide_columns(rows, p.num_rows, p.groups) && wide_columns(cols, p.num_cols, p.groups);
        SPOPS_TRY(launch_engine<T>(ctx, args, p, wide));
        return join<T>(ctx, args, p.num_rows);
    });
}
