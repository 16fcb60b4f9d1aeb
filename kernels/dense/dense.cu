// SPDX-License-Identifier: Apache-2.0
// Dense grids on the GPU. A block owns a tile of cells: it looks up the row of each in the set's index,
// then writes the tile, every element once. Nothing is cleared and no table is made.
//
//     channels last:   a thread a piece of 16 bytes of a cell, or an element where rows are not so long
//     channels first:  64 channels at a time are turned in shared memory; a tile of cells without rows
//                      is filled without it
//
// Rows are read from a grid by tiles of rows and channels.
#include "dense/dense_args.h"
#include "core/matrix.h"
#include "kernels/coords/coord_index.cuh"
#include "kernels/core/launch.cuh"

namespace
{

using namespace spops;

constexpr int threads = 256;
constexpr int tile_cells = 64, tile_channels = 64;
constexpr int last_bytes = 32 << 10; // of a tile of channels last
constexpr int least_cells = 8;       // of such a tile
constexpr int group_pieces = 1024;   // pieces of a cell that a block writes at once

struct params {
    spops_dense_grid grid;
    coord_index index;
    const int32_t *coords, *num_rows; // [max_rows][1 + dims], [1]
    int64_t max_rows, num_channels, rows_step, dense_step;
    void *rows, *dense;
    bool wide_rows, wide_dense; // rows can be read, cells of a channel written, 16 bytes at a time
    int cells;                  // of a block; channels last
    int64_t channel_tiles;
};

// The row of a cell, counted over all batches; -1: none.
template <class F> __device__ __forceinline__ int32_t row_of(const params &p, uint32_t cell)
{
    const spops_key_layout *layout = &p.index.layout;
    uint64_t code = 0;
    bool fits = p.max_rows > 0;
#pragma unroll
    for (int a = SPOPS_MAX_DIMS - 1; a >= 0; --a) {
        if (a >= p.grid.dims) continue;
        const uint32_t size = (uint32_t)p.grid.size[a], at = cell % size;
        const int64_t x = (int64_t)at + p.grid.origin[a];
        cell /= size;
        fits = fits && spops_key_fits(layout, 1 + a, x);
        code += F::part(p.index, 1 + a, x);
    }
    fits = fits && spops_key_fits(layout, 0, cell);
    code += F::part(p.index, 0, cell);
    return fits ? F::finish(p.index, code, F::begin(p.index, code)) : -1;
}

// T: an element, or 16 bytes of them; steps and channels in T.
template <class F, class T>
__global__ void __launch_bounds__(threads) write_cells(const __grid_constant__ params p, T fill)
{
    constexpr uint32_t at_once = 4;
    __shared__ int32_t rows[threads];
    const int64_t first = (int64_t)blockIdx.x * p.cells;
    const int64_t left = p.grid.num_batches * p.grid.batch_cells - first;
    const uint32_t n = (uint32_t)(left < p.cells ? left : p.cells);
    if (threadIdx.x < n) rows[threadIdx.x] = row_of<F>(p, (uint32_t)first + threadIdx.x);
    __syncthreads();
    for (int64_t c = (int64_t)blockIdx.y * group_pieces; c < p.num_channels;
         c += (int64_t)gridDim.y * group_pieces) {
        const T *const from = static_cast<const T *>(p.rows) + c;
        T *const to = static_cast<T *>(p.dense) + first * p.dense_step + c;
        const uint32_t width = (uint32_t)min((int64_t)group_pieces, p.num_channels - c);
        for (uint32_t i = threadIdx.x; i < n * width; i += at_once * threads) {
            T value[at_once];
#pragma unroll
            for (uint32_t u = 0; u < at_once; ++u) {
                const uint32_t k = (i + u * threads) / width, column = (i + u * threads) % width;
                const int32_t row = k < n ? rows[k] : -1;
                value[u] = fill;
                if (row >= 0) value[u] = __ldg(from + row * p.rows_step + column);
            }
#pragma unroll
            for (uint32_t u = 0; u < at_once; ++u) {
                const uint32_t k = (i + u * threads) / width, column = (i + u * threads) % width;
                if (k < n) to[k * p.dense_step + column] = value[u];
            }
        }
    }
}

// A tile as it is turned: pitch so that neither direction has more than two threads a bank.
template <class T> struct turned_tile {
    static constexpr int per_piece = 16 / sizeof(T);
    T at[tile_cells][tile_channels + 4 / sizeof(T)];
    int32_t rows[tile_cells];
};

// Channels from `channel` on of the rows of a tile's cells; fill where there is none.
template <class T>
__device__ __forceinline__ void load_tile(const params &p, int64_t channel, int channels, T fill,
                                          uint32_t fill_word, turned_tile<T> &tile)
{
    constexpr int per_piece = turned_tile<T>::per_piece, pieces = tile_channels / per_piece;
    const T *const from = static_cast<const T *>(p.rows) + channel;
    if (p.wide_rows && channels == tile_channels) {
        for (int i = (int)threadIdx.x; i < tile_cells * pieces; i += threads) {
            const int k = i / pieces, c = i % pieces * per_piece;
            const int32_t row = tile.rows[k];
            uint4 piece = make_uint4(fill_word, fill_word, fill_word, fill_word);
            if (row >= 0)
                piece = __ldg(reinterpret_cast<const uint4 *>(from + row * p.rows_step + c));
            uint32_t *const to = reinterpret_cast<uint32_t *>(&tile.at[k][c]);
            to[0] = piece.x, to[1] = piece.y, to[2] = piece.z, to[3] = piece.w;
        }
        return;
    }
    for (int i = (int)threadIdx.x; i < tile_cells * tile_channels; i += threads) {
        const int k = i / tile_channels, c = i % tile_channels;
        const int32_t row = tile.rows[k];
        if (c < channels) tile.at[k][c] = row < 0 ? fill : __ldg(from + row * p.rows_step + c);
    }
}

// Cells of a channel that follow each other as 16 bytes.
template <class T>
__device__ __forceinline__ uint4 piece_of(const turned_tile<T> &tile, int k, int c)
{
    uint32_t word[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
        if (sizeof(T) == 4)
            word[w] = (uint32_t)tile.at[k + w][c];
        else
            word[w] = (uint32_t)tile.at[k + 2 * w][c] | (uint32_t)tile.at[k + 2 * w + 1][c] << 16;
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

// n cells of some channels from `to` on; without rows all are filled.
template <class T>
__device__ __forceinline__ void write_tile(const params &p, int n, int channels, bool any, T fill,
                                           uint32_t fill_word, const turned_tile<T> &tile, T *to)
{
    constexpr int per_piece = turned_tile<T>::per_piece, pieces = tile_cells / per_piece;
    if (p.wide_dense && n == tile_cells) {
        for (int i = (int)threadIdx.x; i < channels * pieces; i += threads) {
            const int c = i / pieces, k = i % pieces * per_piece;
            uint4 piece = make_uint4(fill_word, fill_word, fill_word, fill_word);
            if (any) piece = piece_of(tile, k, c);
            *reinterpret_cast<uint4 *>(to + c * p.dense_step + k) = piece;
        }
        return;
    }
    for (int i = (int)threadIdx.x; i < channels * tile_cells; i += threads) {
        const int c = i / tile_cells, k = i % tile_cells;
        if (k < n) to[c * p.dense_step + k] = any ? tile.at[k][c] : fill;
    }
}

template <class F, class T>
__global__ void __launch_bounds__(threads)
    write_channels(const __grid_constant__ params p, T fill, uint32_t fill_word)
{
    __shared__ turned_tile<T> tile;
    const int64_t per_batch = (p.grid.batch_cells + tile_cells - 1) / tile_cells;
    const int64_t batch = blockIdx.x / per_batch, first = blockIdx.x % per_batch * tile_cells;
    const int n = (int)min((int64_t)tile_cells, p.grid.batch_cells - first);
    bool here = false;
    if (threadIdx.x < tile_cells) {
        int32_t row = -1;
        if ((int)threadIdx.x < n)
            row = row_of<F>(p, (uint32_t)(batch * p.grid.batch_cells + first) + threadIdx.x);
        tile.rows[threadIdx.x] = row;
        here = row >= 0;
    }
    const bool any = __syncthreads_or(here);
    for (int64_t t = blockIdx.y; t < p.channel_tiles; t += gridDim.y) {
        const int64_t channel = t * tile_channels;
        const int channels = (int)min((int64_t)tile_channels, p.num_channels - channel);
        if (any) {
            load_tile(p, channel, channels, fill, fill_word, tile);
            __syncthreads();
        }
        write_tile(p, n, channels, any, fill, fill_word, tile,
                   static_cast<T *>(p.dense) + (batch * p.num_channels + channel) * p.dense_step +
                       first);
        if (any) __syncthreads();
    }
}

// Tiles of rows: a warp reads a channel of 32 rows, then writes the channels of a row. Where channels
// are last, the warp reads them as they lie.
template <class T>
__global__ void __launch_bounds__(threads) read_rows(const __grid_constant__ params p)
{
    __shared__ T turned[32][tile_channels + 4 / sizeof(T)];
    __shared__ int32_t cells[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t first = (int64_t)blockIdx.x * 32;
    const int32_t num_rows = *p.num_rows;
    if (warp == 0)
        cells[lane] = first + lane < num_rows
                          ? spops_dense_cell(&p.grid, p.coords + (first + lane) * (1 + p.grid.dims))
                          : -1;
    __syncthreads();
    for (int64_t t = blockIdx.y; t < p.channel_tiles; t += gridDim.y) {
        const int64_t channel = t * tile_channels;
        const int channels = (int)min((int64_t)tile_channels, p.num_channels - channel);
        for (int c = warp; c < channels && !p.grid.channels_last; c += threads / 32) {
            const int32_t cell = cells[lane];
            turned[lane][c] = cell < 0
                                  ? (T)0
                                  : __ldg(static_cast<const T *>(p.dense) +
                                          spops_dense_place(&p.grid, p.dense_step, p.num_channels,
                                                            cell, channel + c));
        }
        __syncthreads();
        for (int i = (int)threadIdx.x; i < 32 * tile_channels; i += threads) {
            const int r = i / tile_channels, c = i % tile_channels;
            if (first + r >= p.max_rows || c >= channels) continue;
            T value = 0;
            if (!p.grid.channels_last)
                value = turned[r][c];
            else if (cells[r] >= 0)
                value =
                    __ldg(static_cast<const T *>(p.dense) + cells[r] * p.dense_step + channel + c);
            static_cast<T *>(p.rows)[(first + r) * p.rows_step + channel + c] = value;
        }
        __syncthreads();
    }
}

int64_t element_bytes(const spops_dense_args *args)
{
    return spops_dtype_bits(args->rows.dtype) / 8;
}

// Rows begin, and follow each other, at multiples of 16 bytes.
bool is_wide(const spops_matrix &m, int64_t element)
{
    return reinterpret_cast<uintptr_t>(m.data) % 16 == 0 && spops_row_step(m) * element % 16 == 0;
}

params params_of(const spops_dense_args *args)
{
    params p = {};
    p.grid = args->grid;
    p.index = index_of(args->coords);
    p.coords = args->coords->rows;
    p.num_rows = &args->coords->state->num_rows;
    p.max_rows = args->rows.rows;
    p.num_channels = args->num_channels;
    p.rows_step = spops_row_step(args->rows);
    p.dense_step = spops_row_step(args->dense);
    p.rows = args->rows.data;
    p.dense = args->dense.data;
    p.wide_rows = is_wide(args->rows, element_bytes(args));
    p.wide_dense = is_wide(args->dense, element_bytes(args));
    p.channel_tiles = (args->num_channels + tile_channels - 1) / tile_channels;
    return p;
}

// Channels are divided among blocks where the other axis has few of them.
unsigned share(const spops_context *ctx, int64_t blocks, int64_t parts)
{
    const int64_t wanted = ((int64_t)ctx->info.num_processors * 8 + blocks - 1) / blocks;
    const int64_t most = parts < 65535 ? parts : 65535;
    return (unsigned)(wanted < most ? wanted : most);
}

template <class F>
spops_status write_last(spops_context *ctx, const spops_dense_args *args, params p)
{
    const uint32_t fill = (uint32_t)args->fill;
    const int64_t per_piece = 16 / element_bytes(args);
    const uint32_t word = per_piece == 8 ? fill | fill << 16 : fill;
    const bool wide = p.wide_rows && p.wide_dense && p.num_channels % per_piece == 0;
    const int64_t cells = p.grid.num_batches * p.grid.batch_cells;
    const int64_t cell_bytes = p.num_channels * element_bytes(args);
    p.cells = threads;
    while (p.cells > least_cells && p.cells * cell_bytes > last_bytes)
        p.cells /= 2;
    if (wide) {
        p.num_channels /= per_piece;
        p.rows_step /= per_piece;
        p.dense_step /= per_piece;
    }
    const int64_t blocks = (cells + p.cells - 1) / p.cells;
    const dim3 grid((unsigned)blocks,
                    share(ctx, blocks, (p.num_channels + group_pieces - 1) / group_pieces));
    if (wide)
        return launch(ctx, "dense: launch", write_cells<F, uint4>, grid, threads, p,
                      make_uint4(word, word, word, word));
    if (per_piece == 8)
        return launch(ctx, "dense: launch", write_cells<F, uint16_t>, grid, threads, p,
                      (uint16_t)fill);
    return launch(ctx, "dense: launch", write_cells<F, uint32_t>, grid, threads, p, fill);
}

template <class F>
spops_status write_first(spops_context *ctx, const spops_dense_args *args, const params &p)
{
    const uint32_t fill = (uint32_t)args->fill;
    const int64_t blocks =
        p.grid.num_batches * ((p.grid.batch_cells + tile_cells - 1) / tile_cells);
    const dim3 grid((unsigned)blocks, share(ctx, blocks, p.channel_tiles));
    if (element_bytes(args) == 2)
        return launch(ctx, "dense: launch", write_channels<F, uint16_t>, grid, threads, p,
                      (uint16_t)fill, fill | fill << 16);
    return launch(ctx, "dense: launch", write_channels<F, uint32_t>, grid, threads, p, fill, fill);
}

} // namespace

extern "C" spops_status spops_cuda_dense(spops_context *ctx, const spops_dense_args *args)
{
    const params p = params_of(args);
    return with_finder(p.index, [&](auto finder) {
        typedef decltype(finder) F;
        return p.grid.channels_last ? write_last<F>(ctx, args, p) : write_first<F>(ctx, args, p);
    });
}

extern "C" spops_status spops_cuda_dense_rows(spops_context *ctx, const spops_dense_args *args)
{
    const params p = params_of(args);
    const int64_t blocks = (p.max_rows + 31) / 32;
    const dim3 grid((unsigned)blocks, share(ctx, blocks, p.channel_tiles));
    if (element_bytes(args) == 2)
        return launch(ctx, "dense_rows: launch", read_rows<uint16_t>, grid, threads, p);
    return launch(ctx, "dense_rows: launch", read_rows<uint32_t>, grid, threads, p);
}
