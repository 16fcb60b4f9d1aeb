// SPDX-License-Identifier: Apache-2.0
// MVMR and VVOR with diagonal matrices: products element by element.
#include "kernels/core/launch.cuh"
#include "kernels/core/with_dtype.cuh"
#include "kernels/core/scan.cuh"
#include "kernels/mvmr/mvmr_launch.cuh"
#include "kernels/mvmr/vvor_units.cuh"

namespace
{

using namespace spops;

constexpr int threads = 256;
constexpr int cols = 64;              // of a block
constexpr int teams = threads / cols; // that share the rows, or the triplets, of a block

struct diagonal_params {
    const int32_t *offsets;
    const int4 *triplets;
    int64_t num_rows;
    int tile_rows;
    const int32_t *num_written;
    bool direct;
    const void *x, *w, *s, *g;
    int64_t x_stride, w_stride, g_stride;
    int32_t s_dtype, num_cols;
    product_result out;
    float *grad_s;
};

// A thread has a column, and of a tile's rows every teams-th. It looks at all triplets in order and
// adds those of its rows, so that each sum has one owner.
template <class T>
__global__ void __launch_bounds__(threads) sum_diagonal(const __grid_constant__ diagonal_params p)
{
    __shared__ float sums[max_tile_rows() * cols];
    const int64_t first_row = (int64_t)blockIdx.x * p.tile_rows;
    const int32_t begin = p.offsets[blockIdx.x], end = p.offsets[blockIdx.x + 1];
    const int rows =
        p.direct ? end - begin : (int)min((int64_t)p.tile_rows, p.num_rows - first_row);
    const int team = (int)threadIdx.x / cols, c = (int)threadIdx.x % cols;
    const int64_t written = rows_written(p.num_written, p.num_rows);

    for (int64_t col = (int64_t)blockIdx.y * cols; col < p.num_cols;
         col += (int64_t)gridDim.y * cols) {
        const bool inside = col + c < p.num_cols;
        const T *x = static_cast<const T *>(p.x) + col + c;
        const T *w = static_cast<const T *>(p.w) + col + c;
        for (int r = team; r < rows; r += teams)
            sums[r * cols + c] = 0.0f;
        for (int32_t q = begin; q < end; ++q) {
            const int4 t = p.triplets[q];
            const int to = p.direct ? q - begin : (int)(t.x - first_row);
            if (to % teams != team || !inside) continue;
            const float scale = load_weight<WEIGHT_ANY, T>(p.s, p.s_dtype, t.w);
            const float product = to_f32(w[t.z * p.w_stride]) * to_f32(x[t.y * p.x_stride]);
            sums[to * cols + c] = fmaf(scale, product, sums[to * cols + c]);
        }
        for (int r = team; r < rows && inside; r += teams) {
            const int64_t row = p.direct ? p.triplets[begin + r].x : first_row + r;
            if (row < written) p.out.store<T>(&sums[r * cols + c], row, col + c, 1, 0, 1);
        }
    }
}

// A warp has a triplet.
template <class T>
__global__ void __launch_bounds__(threads)
    dot_diagonal(const __grid_constant__ diagonal_params p, int64_t num_tiles)
{
    const int lane = threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    for (int64_t tile = blockIdx.x; tile < num_tiles; tile += gridDim.x) {
        for (int32_t q = p.offsets[tile] + warp; q < p.offsets[tile + 1]; q += threads / 32) {
            const int4 t = p.triplets[q];
            const T *x = static_cast<const T *>(p.x) + t.y * p.x_stride;
            const T *w = static_cast<const T *>(p.w) + t.z * p.w_stride;
            const T *g = static_cast<const T *>(p.g) + t.x * p.g_stride;
            float dot = 0.0f;
            for (int32_t c = lane; c < p.num_cols; c += 32)
                dot = fmaf(to_f32(w[c]) * to_f32(x[c]), to_f32(g[c]), dot);
            dot = warp_sum(dot);
            if (lane == 0) p.grad_s[t.w] = dot;
        }
    }
}

struct outer_diagonal_params {
    vvor_units units;
    const int2 *pairs;
    const int32_t *numbers;
    int x_side; // which number of a pair is the row of x
    const void *x, *g, *s;
    int64_t x_stride, g_stride;
    int32_t s_dtype, num_cols;
    product_result out;
    float *partials;
};

// A block has a matrix, or a piece of one; a thread a column, and every teams-th triplet.
template <class T>
__global__ void __launch_bounds__(threads)
    outer_diagonal(const __grid_constant__ outer_diagonal_params p)
{
    __shared__ float sums[teams][cols];
    const vvor_unit unit = unit_at(p.units, blockIdx.x);
    const int team = (int)threadIdx.x / cols, c = (int)threadIdx.x % cols;

    if (!unit.there) return;
    for (int64_t col = (int64_t)blockIdx.y * cols; col < p.num_cols;
         col += (int64_t)gridDim.y * cols) {
        const bool inside = col + c < p.num_cols;
        const T *x = static_cast<const T *>(p.x) + col + c;
        const T *g = static_cast<const T *>(p.g) + col + c;
        float sum = 0.0f;
        for (int32_t i = team; i < unit.count && inside; i += teams) {
            const int2 pair = p.pairs[unit.begin + i];
            const int64_t x_row = p.x_side == 0 ? pair.x : pair.y;
            const int64_t g_row = p.x_side == 0 ? pair.y : pair.x;
            const float scale =
                load_weight<WEIGHT_ANY, T>(p.s, p.s_dtype, p.numbers[unit.begin + i]);
            sum = fmaf(scale * to_f32(x[x_row * p.x_stride]), to_f32(g[g_row * p.g_stride]), sum);
        }
        sums[team][c] = sum;
        __syncthreads();
        if (team == 0 && inside) {
#pragma unroll
            for (int i = 1; i < teams; ++i)
                sum += sums[i][c];
            if (unit.piece >= 0)
                p.partials[unit.piece * (int64_t)p.num_cols + col + c] = sum;
            else
                p.out.store<T>(&sum, unit.matrix, col + c, 1, 0, 1);
        }
        __syncthreads();
    }
}

unsigned column_blocks(int64_t num_cols)
{
    const int64_t blocks = (num_cols + cols - 1) / cols;
    return (unsigned)(blocks < 65535 ? blocks : 65535);
}

} // namespace

spops_status spops::mvmr_diagonal(spops_context *ctx, const spops_mvmr_args *args)
{
    const spops_triplet_tiles *tiles = args->tiles;
    diagonal_params p = {};
    p.offsets = tiles->offsets;
    p.triplets = (const int4 *)tiles->triplets;
    p.num_rows = tiles->num_rows;
    p.tile_rows = tiles->tile_rows;
    p.num_written = args->num_rows;
    p.direct = tiles->direct;
    p.x = args->x.data;
    p.x_stride = args->x.row_stride;
    p.w = args->w.data;
    p.w_stride = args->w.row_stride;
    p.s = args->s.data;
    p.s_dtype = args->s.dtype;
    p.g = args->g.data;
    p.g_stride = args->g.row_stride;
    p.num_cols = (int32_t)args->x.cols;
    p.out = result_of(args->out, args->out_cols, 1, args->accumulate);
    p.out.wide = false;
    p.grad_s = static_cast<float *>(args->grad_s.data);
    return with_dtype(args->x.dtype, [&](auto tag) {
        typedef typename decltype(tag)::type T;
        const int64_t num_tiles = tiles->num_tiles;
        if (p.grad_s != nullptr)
            return launch(ctx, "mvmr: dot_diagonal", dot_diagonal<T>, dim3((unsigned)num_tiles),
                          threads, p, num_tiles);
        return launch(ctx, "mvmr: sum_diagonal", sum_diagonal<T>,
                      dim3((unsigned)num_tiles, column_blocks(p.num_cols)), threads, p);
    });
}

spops_status spops::vvor_diagonal(spops_context *ctx, const spops_vvor_args *args)
{
    const spops_lists *lists = args->by_matrix;
    outer_diagonal_params p = {};
    p.units = units_of(lists);
    p.pairs = (const int2 *)lists->pairs;
    p.numbers = lists->order;
    p.x_side = args->side == SPOPS_SIDE_TARGET ? 1 : 0;
    p.x = args->x.data;
    p.x_stride = args->x.row_stride;
    p.g = args->g.data;
    p.g_stride = args->g.row_stride;
    p.s = args->s.data;
    p.s_dtype = args->s.dtype;
    p.num_cols = (int32_t)args->x.cols;
    p.out = result_of(args->out, args->x_cols, 1, args->accumulate);
    p.out.wide = false;
    p.partials = args->partials;
    return with_dtype(args->x.dtype, [&](auto tag) {
        typedef typename decltype(tag)::type T;
        return launch(ctx, "vvor: outer_diagonal", outer_diagonal<T>,
                      dim3((unsigned)num_units(lists), column_blocks(p.num_cols)), threads, p);
    });
}
