// SPDX-License-Identifier: Apache-2.0
// Linear layers by plain tiles of 64 x 64 sums, for any dtype, stride and alignment: rows times a matrix
// with what follows the sum; sums of outer products over pieces of rows; sums of columns. Pieces leave
// their sums in scratch, and a second kernel adds them in order.
#include <initializer_list>

#include "core/matrix.h"
#include "kernels/core/activation.cuh"
#include "kernels/core/chunk.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/core/with_dtype.cuh"
#include "kernels/mvmr/mvmr_launch.cuh"
#include "kernels/mvmr/product.cuh"
#include "linear/linear_args.h"

namespace
{

using namespace spops;

constexpr int max_grid_y = 65535, max_blocks = 1 << 20;

inline int64_t tiles_along(int64_t n, int64_t size)
{
    return (n + size - 1) / size;
}

// ---- Forward ------------------------------------------------------------------------------------

struct linear_params {
    const void *x, *w;
    int64_t x_stride, w_stride, num_rows;
    const int32_t *num_written; // rows that count
    int32_t depth, cols, col_tiles;
    const float *bias, *scale, *shift;
    const void *residual; // dtype of out
    int64_t residual_stride;
    spops_activated activated;
    product_result out;
};

template <class T>
__device__ __forceinline__ float finished(const linear_params &p, float v, int64_t row, int col)
{
    if (p.bias != nullptr) v += p.bias[col];
    if (p.scale != nullptr) v *= p.scale[col];
    if (p.shift != nullptr) v += p.shift[col];
    if (p.residual != nullptr) {
        const int64_t at = row * p.residual_stride + col;
        v += p.out.f32 ? static_cast<const float *>(p.residual)[at]
                       : to_f32(static_cast<const T *>(p.residual)[at]);
    }
    float one[1] = {v};
    activate<true>(p.activated, one);
    return one[0];
}

// A block takes 64 rows and, one after the other, tiles of columns. TRANSPOSED: as W is stored.
template <class P, bool TRANSPOSED>
__global__ void __launch_bounds__(product_threads)
    linear_kernel(const __grid_constant__ linear_params p)
{
    typedef typename P::element T;
    __shared__ __align__(16) uint32_t stage[P::shared_words];
    __shared__ __align__(16) float sums[product_rows * sums_stride];
    const int64_t row = (int64_t)blockIdx.x * product_rows;
    const int64_t left = rows_written(p.num_written, p.num_rows) - row;
    const int rows = (int)(left < product_rows ? left : product_rows);
    const T *x = static_cast<const T *>(p.x) + row * p.x_stride, *w = static_cast<const T *>(p.w);
    P product;

    if (rows <= 0) return;
    const auto a = rows_by([&](int r) { return x + r * p.x_stride; });
    for (int tile = blockIdx.y; tile < p.col_tiles; tile += gridDim.y) {
        const int col = tile * product_cols, cols = min(product_cols, p.cols - col);
        const T *first = w + (TRANSPOSED ? col * p.w_stride : 0);
        const auto b = rows_by([&](int r) { return first + r * p.w_stride; });
        product.clear();
        product.run(stage, a, 0, rows, b, TRANSPOSED ? 0 : col, cols, p.depth);
        product.each([&](int r, int c, float v0, float v1) {
            *reinterpret_cast<float2 *>(&sums[r * sums_stride + c]) = make_float2(v0, v1);
        });
        __syncthreads();
        for (int i = threadIdx.x; i < rows * product_cols; i += product_threads) {
            const int r = i / product_cols, c = i % product_cols;
            if (c < cols)
                sums[r * sums_stride + c] =
                    finished<T>(p, sums[r * sums_stride + c], row + r, col + c);
        }
        __syncthreads();
        for (int r = threadIdx.x / 8; r < rows; r += product_threads / 8)
            p.out.template store<T>(&sums[r * sums_stride], row + r, col, cols, threadIdx.x % 8, 8);
        __syncthreads();
    }
}

template <product_engine ENGINE, class T, int VEC>
spops_status launch_linear(spops_context *ctx, const linear_params &p, bool transposed)
{
    const dim3 grid((unsigned)tiles_along(p.num_rows, product_rows),
                    (unsigned)(p.col_tiles < max_grid_y ? p.col_tiles : max_grid_y));
    if (transposed)
        return launch(ctx, "linear: launch",
                      linear_kernel<product<ENGINE, T, VEC, false, false>, true>, grid,
                      product_threads, p);
    return launch(ctx, "linear: launch", linear_kernel<product<ENGINE, T, VEC, false, true>, false>,
                  grid, product_threads, p);
}

// f(engine and elements of a load) for what device and arguments allow.
template <class T, class F>
spops_status with_engine(const spops_context *ctx, spops_math math, bool wide, F f)
{
    constexpr int vec = (int)(16 / sizeof(T));
    const spops_dtype dtype = sizeof(T) == 4 ? SPOPS_DTYPE_F32 : SPOPS_DTYPE_F16;
    const product_engine engine = engine_for(ctx, dtype, math, wide);
    typedef std::integral_constant<product_engine, ENGINE_F32> plain;
    typedef std::integral_constant<int, 1> one;
    typedef std::integral_constant<int, vec> many;
    if constexpr (sizeof(T) == 2) {
        typedef std::integral_constant<product_engine, ENGINE_UNITS> units;
        if (engine == ENGINE_UNITS) return wide ? f(units(), many()) : f(units(), one());
    } else {
        typedef std::integral_constant<product_engine, ENGINE_TF32> tf32;
        if (engine == ENGINE_TF32) return f(tf32(), many());
        if (wide) return f(plain(), many());
    }
    return f(plain(), one());
}

// ---- Sums over rows -----------------------------------------------------------------------------

struct grad_params {
    const void *x, *g;
    int64_t x_stride, g_stride, max_rows, piece_rows;
    const int32_t *num_rows;
    int32_t rows, cols; // of the result
    int32_t col_tiles, pieces;
    int64_t tiles;
    product_result out; // of one piece
    float *partials;    // of several
};

__device__ __forceinline__ int64_t piece_end(const grad_params &p, int64_t begin)
{
    return min(begin + p.piece_rows, rows_written(p.num_rows, p.max_rows));
}

template <class P>
__global__ void __launch_bounds__(product_threads)
    outer_kernel(const __grid_constant__ grad_params p)
{
    typedef typename P::element T;
    __shared__ __align__(16) uint32_t stage[P::shared_words];
    __shared__ __align__(16) float sums[product_rows * sums_stride];
    const int64_t begin = blockIdx.y * p.piece_rows, end = piece_end(p, begin);
    const T *x = static_cast<const T *>(p.x) + begin * p.x_stride;
    const T *g = static_cast<const T *>(p.g) + begin * p.g_stride;
    const auto a = rows_by([&](int r) { return x + r * p.x_stride; });
    const auto b = rows_by([&](int r) { return g + r * p.g_stride; });
    P product;

    for (int64_t tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
        const int row = (int)(tile / p.col_tiles) * product_rows;
        const int col = (int)(tile % p.col_tiles) * product_cols;
        const int rows = min(product_rows, p.rows - row), cols = min(product_cols, p.cols - col);
        product.clear();
        product.run(stage, a, row, rows, b, col, cols, end - begin);
        product.each([&](int r, int c, float v0, float v1) {
            *reinterpret_cast<float2 *>(&sums[r * sums_stride + c]) = make_float2(v0, v1);
        });
        __syncthreads();
        for (int r = threadIdx.x / 8; r < rows; r += product_threads / 8) {
            const float *from = &sums[r * sums_stride];
            if (p.pieces > 1)
                store_sums<1>(from,
                              p.partials + (blockIdx.y * (int64_t)p.rows + row + r) * p.cols + col,
                              cols, false, threadIdx.x % 8, 8);
            else
                p.out.template store<T>(from, row + r, col, cols, threadIdx.x % 8, 8);
        }
        __syncthreads();
    }
}

// Lanes of 16 bytes beside each other, 128 bytes of a row, by rows that are added side by side.
constexpr int column_threads = 256, column_lanes = 8, row_lanes = column_threads / column_lanes;

// Sums of the columns of g over a piece of its rows: a lane adds every so many-th row, with several on their
// way, and lanes are added in order.
template <class T, int VEC>
__global__ void __launch_bounds__(column_threads)
    columns_kernel(const __grid_constant__ grad_params p)
{
    constexpr int columns = column_lanes * VEC;
    __shared__ float sums[row_lanes][columns + 1];
    const int at = threadIdx.x % column_lanes * VEC, lane = threadIdx.x / column_lanes;
    const int64_t first = (int64_t)blockIdx.x * columns, left = p.cols - first - at;
    const int n = (int)(left < 0 ? 0 : left < VEC ? left : VEC);
    const int64_t begin = blockIdx.y * p.piece_rows, end = piece_end(p, begin);
    const T *g = static_cast<const T *>(p.g) + first + at;
    float sum[VEC] = {};

    if (n > 0) {
#pragma unroll 8
        for (int64_t r = begin + lane; r < end; r += row_lanes) {
            row_chunk<T, VEC, false> chunk;
            float v[VEC];
            chunk.load(g + r * p.g_stride, n);
            chunk.get(v);
#pragma unroll
            for (int j = 0; j < VEC; ++j)
                if (j < n) sum[j] += v[j];
        }
    }
#pragma unroll
    for (int j = 0; j < VEC; ++j)
        sums[lane][at + j] = sum[j];
    __syncthreads();
    if (threadIdx.x >= columns || first + threadIdx.x >= p.cols) return;
    float all = sums[0][threadIdx.x];
    for (int other = 1; other < row_lanes; ++other)
        all += sums[other][threadIdx.x];
    if (p.pieces > 1)
        p.partials[blockIdx.y * (int64_t)p.cols + first + threadIdx.x] = all;
    else
        p.out.template store<T>(&all, 0, first + threadIdx.x, 1, 0, 1);
}

// Pieces of a column: eight lanes of every eighth, added in order.
template <class T>
__global__ void __launch_bounds__(column_threads)
    join_columns_kernel(const __grid_constant__ grad_params p)
{
    __shared__ float sums[column_lanes][32];
    const int at = threadIdx.x % 32, lane = threadIdx.x / 32;
    const int64_t col = (int64_t)blockIdx.x * 32 + at;
    float sum = 0.0f;

    if (col < p.cols) {
#pragma unroll 8
        for (int piece = lane; piece < p.pieces; piece += column_lanes)
            sum += p.partials[piece * (int64_t)p.cols + col];
    }
    sums[lane][at] = sum;
    __syncthreads();
    if (lane > 0 || col >= p.cols) return;
    for (int other = 1; other < column_lanes; ++other)
        sum += sums[other][at];
    p.out.template store<T>(&sum, 0, col, 1, 0, 1);
}

constexpr int join_threads = 256;

// A thread has an element of the result.
template <class T>
__global__ void __launch_bounds__(join_threads) join_kernel(const __grid_constant__ grad_params p)
{
    const int64_t numbers = (int64_t)p.rows * p.cols;
    for (int64_t i = (int64_t)blockIdx.x * join_threads + threadIdx.x; i < numbers;
         i += (int64_t)gridDim.x * join_threads) {
        float sum = 0.0f;
#pragma unroll 8
        for (int piece = 0; piece < p.pieces; ++piece)
            sum += p.partials[piece * numbers + i];
        p.out.template store<T>(&sum, i / p.cols, i % p.cols, 1, 0, 1);
    }
}

grad_params params_of(const spops_linear_grad_args *args)
{
    grad_params p = {};
    p.x = args->x.data;
    p.g = args->g.data;
    p.x_stride = args->x.row_stride;
    p.g_stride = args->g.row_stride;
    p.max_rows = args->g.rows;
    p.piece_rows = args->piece_rows;
    p.num_rows = args->num_rows;
    p.rows = (int32_t)args->out.rows;
    p.cols = (int32_t)args->out.cols;
    p.pieces = args->num_pieces;
    p.partials = args->partials;
    p.out = result_of(args->out, args->out.cols, 1, false);
    return p;
}

template <class T> spops_status launch_join(spops_context *ctx, grad_params p)
{
    const int64_t blocks = tiles_along((int64_t)p.rows * p.cols, join_threads);
    const int64_t most = (int64_t)ctx->info.num_processors * 8;
    if (p.pieces == 1) return SPOPS_STATUS_OK;
    p.out.wide = false;
    return launch(ctx, "linear: join", join_kernel<T>,
                  dim3((unsigned)(blocks < most ? blocks : most)), join_threads, p);
}

} // namespace

extern "C" spops_status spops_cuda_linear(spops_context *ctx, const spops_linear_args *args)
{
    const spops_epilogue_args &finish = args->finish;
    const spops_epilogue &e = finish.epilogue;
    const bool wide =
        wide_columns(args->x, args->x.cols, 1) && wide_columns(args->w, args->w.cols, 1);
    linear_params p = {};
    p.x = args->x.data;
    p.w = args->w.data;
    p.x_stride = args->x.row_stride;
    p.w_stride = args->w.row_stride;
    p.num_rows = finish.out.rows;
    p.num_written = finish.num_rows;
    p.depth = (int32_t)args->x.cols;
    p.cols = (int32_t)finish.out.cols;
    p.col_tiles = (int32_t)tiles_along(p.cols, product_cols);
    p.bias = e.bias;
    p.scale = e.scale;
    p.shift = e.shift;
    p.residual = e.residual.data;
    p.residual_stride = e.residual.row_stride;
    p.activated = e.activated;
    p.out = result_of(finish.out, finish.out.cols, 1, false);
    return with_dtype(args->x.dtype, [&](auto tag) {
        typedef typename decltype(tag)::type T;
        return with_engine<T>(ctx, args->math, wide, [&](auto engine, auto vec) {
            return launch_linear<decltype(engine)::value, T, decltype(vec)::value>(
                ctx, p, args->w_transposed);
        });
    });
}

extern "C" spops_status spops_cuda_linear_grad(spops_context *ctx,
                                               const spops_linear_grad_args *args)
{
    grad_params p = params_of(args);
    return with_dtype(args->g.dtype, [&](auto tag) {
        typedef typename decltype(tag)::type T;
        if (args->x.data == nullptr && args->x.cols == 0) {
            constexpr int wide = 16 / (int)sizeof(T);
            const int vec = common_chunk({args->g}) == 1 ? 1 : wide;
            const dim3 grid((unsigned)tiles_along(p.cols, column_lanes * vec), (unsigned)p.pieces);
            p.out.wide = false;
            SPOPS_TRY(launch(ctx, "linear: columns",
                             vec == 1 ? columns_kernel<T, 1> : columns_kernel<T, wide>, grid,
                             column_threads, p));
            if (p.pieces == 1) return SPOPS_STATUS_OK;
            return launch(ctx, "linear: join_columns", join_columns_kernel<T>,
                          dim3((unsigned)tiles_along(p.cols, 32)), column_threads, p);
        }
        const bool wide =
            wide_columns(args->x, args->x.cols, 1) && wide_columns(args->g, args->g.cols, 1);
        p.col_tiles = (int32_t)tiles_along(p.cols, product_cols);
        p.tiles = tiles_along(p.rows, product_rows) * p.col_tiles;
        const int64_t blocks = p.tiles < max_blocks ? p.tiles : max_blocks;
        SPOPS_TRY(with_engine<T>(ctx, args->math, wide, [&](auto engine, auto vec) {
            constexpr product_engine E = decltype(engine)::value;
            constexpr int V = decltype(vec)::value;
            return launch(ctx, "linear: outer products", outer_kernel<product<E, T, V, true, true>>,
                          dim3((unsigned)blocks, (unsigned)p.pieces), product_threads, p);
        }));
        return launch_join<T>(ctx, p);
    });
}
