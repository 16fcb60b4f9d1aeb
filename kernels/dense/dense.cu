// SPDX-License-Identifier: Apache-2.0
// Dense grids on the GPU. The row of every cell lies in a table, which is cleared and filled first; it
// is small beside the grid and stays in L2. Then the grid is written once, in the order of its bytes:
//
//     channels last:   a thread a piece of 16 bytes of a cell, or an element where rows are not so long
//     channels first:  a block a tile of cells and channels, turned in shared memory; a tile without
//                      rows is filled without it
//
// Rows are read from a grid by such tiles too, of rows and channels.
#include "dense/dense_args.h"
#include "core/matrix.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/with_dtype.cuh"

namespace
{

using namespace spops;

constexpr int threads = 256;
constexpr int tile_cells = 64, tile_channels = 64;

struct params {
    spops_dense_grid grid;
    const int32_t *coords, *num_rows; // [max_rows][1 + dims], [1]
    int64_t max_rows, num_channels, rows_step, dense_step;
    void *rows, *dense;
    int32_t *table;
    int64_t num_tiles, channel_tiles; // tiles of all, of the channels
};

__global__ void __launch_bounds__(threads) enter_rows(const __grid_constant__ params p)
{
    const int64_t r = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (r >= *p.num_rows) return;
    const int32_t cell = spops_dense_cell(&p.grid, p.coords + r * (1 + p.grid.dims));
    if (cell >= 0) p.table[cell] = (int32_t)r;
}

// T: an element, or 16 bytes of them; steps and channels in T.
template <class T>
__global__ void __launch_bounds__(threads) write_cells(const __grid_constant__ params p, T fill)
{
    const int64_t n = p.grid.num_batches * p.grid.batch_cells * p.num_channels;
    for (int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * threads) {
        const int64_t cell = i / p.num_channels, c = i % p.num_channels;
        const int32_t row = __ldg(p.table + cell);
        T value = fill;
        if (row >= 0) value = static_cast<const T *>(p.rows)[row * p.rows_step + c];
        static_cast<T *>(p.dense)[cell * p.dense_step + c] = value;
    }
}

struct tile_place {
    int64_t batch, cell, channel; // first cell within the batch, first channel
    int cells, channels;
};

__device__ __forceinline__ tile_place place_of(const params &p, int64_t tile)
{
    const int64_t per_batch = (p.grid.batch_cells + tile_cells - 1) / tile_cells;
    const int64_t strip = tile / p.channel_tiles;
    tile_place at;
    at.batch = strip / per_batch;
    at.cell = strip % per_batch * tile_cells;
    at.channel = tile % p.channel_tiles * tile_channels;
    at.cells = (int)min((int64_t)tile_cells, p.grid.batch_cells - at.cell);
    at.channels = (int)min((int64_t)tile_channels, p.num_channels - at.channel);
    return at;
}

// A tile out of shared memory, or of one value: 4 bytes a thread where rows allow it.
template <class T, class VALUE>
__device__ __forceinline__ void write_tile(const params &p, const tile_place &at, VALUE value)
{
    T *dense = static_cast<T *>(p.dense) + (at.batch * p.num_channels + at.channel) * p.dense_step +
               at.cell;
    if (sizeof(T) == 2 && at.cells == tile_cells && p.dense_step % 2 == 0 &&
        reinterpret_cast<uintptr_t>(dense) % 4 == 0) {
        for (int i = (int)threadIdx.x; i < at.channels * tile_cells / 2; i += threads) {
            const int c = i / (tile_cells / 2), k = i % (tile_cells / 2) * 2;
            *reinterpret_cast<uint32_t *>(dense + c * p.dense_step + k) =
                (uint32_t)value(c, k) | (uint32_t)value(c, k + 1) << 16;
        }
        return;
    }
    for (int i = (int)threadIdx.x; i < at.channels * tile_cells; i += threads) {
        const int c = i / tile_cells, k = i % tile_cells;
        if (k < at.cells) dense[c * p.dense_step + k] = value(c, k);
    }
}

template <class T>
__global__ void __launch_bounds__(threads) write_channels(const __grid_constant__ params p, T fill)
{
    __shared__ T turned[tile_cells][tile_channels + 4 / sizeof(T)];
    __shared__ int32_t rows[tile_cells];
    for (int64_t tile = blockIdx.x; tile < p.num_tiles; tile += gridDim.x) {
        const tile_place at = place_of(p, tile);
        bool here = false;
        if (threadIdx.x < tile_cells) {
            const int k = (int)threadIdx.x;
            rows[k] =
                k < at.cells ? __ldg(p.table + at.batch * p.grid.batch_cells + at.cell + k) : -1;
            here = rows[k] >= 0;
        }
        if (!__syncthreads_or(here)) {
            write_tile<T>(p, at, [fill](int, int) { return fill; });
            continue;
        }
        for (int i = (int)threadIdx.x; i < tile_cells * tile_channels; i += threads) {
            const int k = i / tile_channels, c = i % tile_channels;
            if (k >= at.cells || c >= at.channels) continue;
            turned[k][c] =
                rows[k] < 0
                    ? fill
                    : static_cast<const T *>(p.rows)[rows[k] * p.rows_step + at.channel + c];
        }
        __syncthreads();
        write_tile<T>(p, at, [&](int c, int k) { return turned[k][c]; });
        __syncthreads();
    }
}

// Tiles of rows: a warp reads a channel of 32 rows, then writes the channels of a row.
template <class T>
__global__ void __launch_bounds__(threads) read_rows(const __grid_constant__ params p)
{
    __shared__ T turned[32][tile_channels + 4 / sizeof(T)];
    __shared__ int32_t cells[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t strips = (p.max_rows + 31) / 32;
    for (int64_t tile = blockIdx.x; tile < strips * p.channel_tiles; tile += gridDim.x) {
        const int64_t first = tile / p.channel_tiles * 32;
        const int64_t channel = tile % p.channel_tiles * tile_channels;
        const int channels = (int)min((int64_t)tile_channels, p.num_channels - channel);
        if (warp == 0)
            cells[lane] =
                first + lane < *p.num_rows
                    ? spops_dense_cell(&p.grid, p.coords + (first + lane) * (1 + p.grid.dims))
                    : -1;
        __syncthreads();
        for (int c = warp; c < channels; c += threads / 32) {
            const int32_t cell = cells[lane];
            turned[lane][c] = cell < 0
                                  ? (T)0
                                  : static_cast<const T *>(p.dense)[spops_dense_place(
                                        &p.grid, p.dense_step, p.num_channels, cell, channel + c)];
        }
        __syncthreads();
        for (int i = (int)threadIdx.x; i < 32 * tile_channels; i += threads) {
            const int r = i / tile_channels, c = i % tile_channels;
            if (first + r < p.max_rows && c < channels)
                static_cast<T *>(p.rows)[(first + r) * p.rows_step + channel + c] = turned[r][c];
        }
        __syncthreads();
    }
}

params params_of(const spops_dense_args *args)
{
    params p = {};
    p.grid = args->grid;
    p.coords = args->coords->rows;
    p.num_rows = &args->coords->state->num_rows;
    p.max_rows = args->rows.rows;
    p.num_channels = args->num_channels;
    p.rows_step = spops_row_step(args->rows);
    p.dense_step = spops_row_step(args->dense);
    p.rows = args->rows.data;
    p.dense = args->dense.data;
    p.table = args->table;
    p.channel_tiles = (args->num_channels + tile_channels - 1) / tile_channels;
    p.num_tiles =
        p.grid.num_batches * ((p.grid.batch_cells + tile_cells - 1) / tile_cells) * p.channel_tiles;
    return p;
}

unsigned some_blocks(const spops_context *ctx, int64_t wanted)
{
    const int64_t resident = (int64_t)ctx->info.num_processors * 8;
    return (unsigned)(wanted < 1 ? 1 : wanted < resident ? wanted : resident);
}

int64_t element_bytes(const spops_dense_args *args)
{
    return spops_dtype_bits(args->rows.dtype) / 8;
}

// Whole pieces of 16 bytes in both.
bool is_wide(const spops_dense_args *args)
{
    const int64_t element = element_bytes(args);
    const spops_matrix both[] = {args->rows, args->dense};
    for (const spops_matrix &m : both)
        if (reinterpret_cast<uintptr_t>(m.data) % 16 != 0 || spops_row_step(m) * element % 16 != 0)
            return false;
    return args->num_channels * element % 16 == 0;
}

spops_status write_last(spops_context *ctx, const spops_dense_args *args, params p)
{
    const uint32_t fill = (uint32_t)args->fill;
    const int64_t per_piece = 16 / element_bytes(args);
    const bool wide = is_wide(args);
    if (wide) {
        p.num_channels /= per_piece;
        p.rows_step /= per_piece;
        p.dense_step /= per_piece;
    }
    const int64_t n = p.grid.num_batches * p.grid.batch_cells * p.num_channels;
    const dim3 blocks(some_blocks(ctx, (n + threads - 1) / threads));
    const uint32_t word = per_piece == 8 ? fill | fill << 16 : fill;
    if (wide)
        return launch(ctx, "dense: launch", write_cells<uint4>, blocks, threads, p,
                      make_uint4(word, word, word, word));
    if (per_piece == 8)
        return launch(ctx, "dense: launch", write_cells<uint16_t>, blocks, threads, p,
                      (uint16_t)fill);
    return launch(ctx, "dense: launch", write_cells<uint32_t>, blocks, threads, p, fill);
}

} // namespace

extern "C" spops_status spops_cuda_dense(spops_context *ctx, const spops_dense_args *args)
{
    const params p = params_of(args);
    const size_t bytes = (size_t)(p.grid.num_batches * p.grid.batch_cells) * sizeof(int32_t);
    SPOPS_TRY(spops_cuda_status(ctx, "dense: clear",
                                (int)cudaMemsetAsync(p.table, 0xff, bytes, stream_of(ctx))));
    if (p.max_rows > 0)
        SPOPS_TRY(launch(ctx, "dense: launch", enter_rows,
                         dim3((unsigned)((p.max_rows + threads - 1) / threads)), threads, p));
    if (p.grid.channels_last) return write_last(ctx, args, p);
    const dim3 blocks(some_blocks(ctx, p.num_tiles));
    if (element_bytes(args) == 2)
        return launch(ctx, "dense: launch", write_channels<uint16_t>, blocks, threads, p,
                      (uint16_t)args->fill);
    return launch(ctx, "dense: launch", write_channels<uint32_t>, blocks, threads, p,
                  (uint32_t)args->fill);
}

extern "C" spops_status spops_cuda_dense_rows(spops_context *ctx, const spops_dense_args *args)
{
    const params p = params_of(args);
    const dim3 blocks(some_blocks(ctx, (p.max_rows + 31) / 32 * p.channel_tiles));
    if (element_bytes(args) == 2)
        return launch(ctx, "dense_rows: launch", read_rows<uint16_t>, blocks, threads, p);
    return launch(ctx, "dense_rows: launch", read_rows<uint32_t>, blocks, threads, p);
}
