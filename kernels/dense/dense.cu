// SPDX-License-Identifier: Apache-2.0
// Dense grids on the GPU. A block owns a tile of cells and looks up the row of each in the set's index.
// No table is made.
//
//     few rows:        the tile is filled while the lookups are under way, then the rows are put into it;
//                      their elements are still in L2
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

constexpr int few_cells = 512;   // most cells of a tile that is filled first
constexpr int few_channels = 16; // that a block has at a time, channels first
constexpr int most_few = 32;     // channels first that are put; of more, tiles are turned
constexpr int cells_a_row = 8;   // at least, for rows to be few
constexpr int lookups = few_cells / threads;

// n / d of n below 2^31, by a multiplication: Granlund and Montgomery, "Division by invariant integers
// using multiplication" (1994), section 4.
struct divisor {
    uint32_t d, multiplier, shift;
};

divisor divisor_of(uint32_t d)
{
    int bits = 0;
    while ((uint64_t)1 << bits < d)
        ++bits;
    if (d == 1) return {1, 0, 0};
    return {d, (uint32_t)((((uint64_t)1 << (31 + bits)) + d - 1) / d), (uint32_t)bits - 1};
}

__device__ __forceinline__ uint32_t divided(uint32_t n, const divisor &by)
{
    return by.d == 1 ? n : __umulhi(n, by.multiplier) >> by.shift;
}

struct params {
    spops_dense_grid grid;
    divisor sizes[SPOPS_MAX_DIMS];
    coord_index index;
    const int32_t *coords, *num_rows; // [max_rows][1 + dims], [1]
    int64_t max_rows, num_channels, rows_step, dense_step;
    void *rows, *dense;
    bool wide_rows, wide_dense; // rows can be read, the grid written, 16 bytes at a time
    int cells;                  // of a block; channels last
    int64_t channel_tiles;
};

// A lookup of the row of a cell, counted over all batches, that is under way.
template <class F> struct lookup {
    typename F::pending pending;
    uint64_t code;
    bool fits;
};

template <class F>
__device__ __forceinline__ void begin_lookup(const params &p, uint32_t cell, lookup<F> &l)
{
    const spops_key_layout *layout = &p.index.layout;
    l.code = 0;
    l.fits = p.max_rows > 0;
#pragma unroll
    for (int a = SPOPS_MAX_DIMS - 1; a >= 0; --a) {
        if (a >= p.grid.dims) continue;
        const uint32_t rest = divided(cell, p.sizes[a]);
        const int64_t x = (int64_t)(cell - rest * p.sizes[a].d) + p.grid.origin[a];
        cell = rest;
        l.fits = l.fits && spops_key_fits(layout, 1 + a, x);
        l.code += F::part(p.index, 1 + a, x);
    }
    l.fits = l.fits && spops_key_fits(layout, 0, cell);
    l.code += F::part(p.index, 0, cell);
    if (l.fits) l.pending = F::begin(p.index, l.code);
}

template <class F>
__device__ __forceinline__ int32_t end_lookup(const params &p, const lookup<F> &l)
{
    return l.fits ? F::finish(p.index, l.code, l.pending) : -1;
}

template <class F> __device__ __forceinline__ int32_t row_of(const params &p, uint32_t cell)
{
    lookup<F> l;
    begin_lookup<F>(p, cell, l);
    return end_lookup<F>(p, l);
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

// ---- Few rows -----------------------------------------------------------------------------------

struct found_rows {
    int32_t num;
    int32_t row[few_cells];
    uint16_t cell[few_cells];
};

// The rows of n cells from `first` on, in any order; the tile is filled by `fill` meanwhile.
template <class F, class FILL>
__device__ __forceinline__ void find_rows(const params &p, uint32_t first, int n, found_rows &found,
                                          const FILL &fill)
{
    lookup<F> under_way[lookups];
    if (threadIdx.x == 0) found.num = 0;
#pragma unroll
    for (int u = 0; u < lookups; ++u) {
        const int k = (int)threadIdx.x + u * threads;
        under_way[u].fits = false;
        if (k < n) begin_lookup<F>(p, first + (uint32_t)k, under_way[u]);
    }
    fill();
    __syncthreads();
#pragma unroll
    for (int u = 0; u < lookups; ++u) {
        const int32_t row = end_lookup<F>(p, under_way[u]);
        if (row < 0) continue;
        const int32_t at = atomicAdd(&found.num, 1);
        found.row[at] = row;
        found.cell[at] = (uint16_t)(threadIdx.x + u * threads);
    }
    __syncthreads(); // also: what was filled before is overwritten after
}

// Pieces of 16 bytes from `to` on, then the elements that are left.
template <class T>
__device__ __forceinline__ void fill_run(T *to, int64_t n, T fill, uint32_t fill_word)
{
    constexpr int per_piece = 16 / sizeof(T);
    const uint4 piece = make_uint4(fill_word, fill_word, fill_word, fill_word);
    const int64_t pieces = n / per_piece;
    for (int64_t i = threadIdx.x; i < pieces; i += threads)
        reinterpret_cast<uint4 *>(to)[i] = piece;
    if (threadIdx.x < n - pieces * per_piece) to[pieces * per_piece + threadIdx.x] = fill;
}

// Channels last, without gaps.
template <class F, class T>
__global__ void __launch_bounds__(threads)
    put_cells(const __grid_constant__ params p, T fill, uint32_t fill_word)
{
    constexpr int per_piece = 16 / sizeof(T);
    __shared__ found_rows found;
    const int64_t first = (int64_t)blockIdx.x * p.cells;
    const int64_t left = p.grid.num_batches * p.grid.batch_cells - first;
    const int n = (int)(left < p.cells ? left : p.cells);
    T *const to = static_cast<T *>(p.dense) + first * p.num_channels;
    const T *const rows = static_cast<const T *>(p.rows);
    find_rows<F>(p, (uint32_t)first, n, found,
                 [&] { fill_run(to, n * p.num_channels, fill, fill_word); });
    const int lane = threadIdx.x % 32;
    for (int i = threadIdx.x / 32; i < found.num; i += threads / 32) {
        const T *const from = rows + found.row[i] * p.rows_step;
        T *const cell = to + found.cell[i] * p.num_channels;
        if (p.wide_rows && p.num_channels % per_piece == 0) {
            for (int64_t c = lane; c < p.num_channels / per_piece; c += 32)
                reinterpret_cast<uint4 *>(cell)[c] =
                    __ldg(reinterpret_cast<const uint4 *>(from) + c);
        } else {
            for (int64_t c = lane; c < p.num_channels; c += 32)
                cell[c] = __ldg(from + c);
        }
    }
}

// Channels first, whose cells begin at multiples of 16 bytes.
template <class F, class T>
__global__ void __launch_bounds__(threads)
    put_channels(const __grid_constant__ params p, T fill, uint32_t fill_word)
{
    constexpr int per_piece = 16 / sizeof(T), pieces = few_cells / per_piece;
    __shared__ found_rows found;
    const int64_t per_batch = (p.grid.batch_cells + few_cells - 1) / few_cells;
    const int64_t batch = blockIdx.x / per_batch, first = blockIdx.x % per_batch * few_cells;
    const int n = (int)min((int64_t)few_cells, p.grid.batch_cells - first);
    const int64_t step = (int64_t)gridDim.y * few_channels, begin = blockIdx.y * few_channels;
    const uint4 piece = make_uint4(fill_word, fill_word, fill_word, fill_word);
    T *const to = static_cast<T *>(p.dense) + batch * p.num_channels * p.dense_step + first;
    find_rows<F>(p, (uint32_t)(batch * p.grid.batch_cells + first), n, found, [&] {
        for (int64_t c = begin; c < p.num_channels; c += step) {
            const int channels = (int)min((int64_t)few_channels, p.num_channels - c);
            for (int i = (int)threadIdx.x; i < channels * pieces; i += threads) {
                T *const at = to + (c + i / pieces) * p.dense_step + i % pieces * per_piece;
                const int rest = n - i % pieces * per_piece;
                if (rest >= per_piece)
                    *reinterpret_cast<uint4 *>(at) = piece;
                else
                    for (int k = 0; k < rest; ++k)
                        at[k] = fill;
            }
        }
    });
    for (int64_t c = begin; c < p.num_channels; c += step) {
        const int channels = (int)min((int64_t)few_channels, p.num_channels - c);
        for (int i = (int)threadIdx.x; i < found.num * few_channels; i += threads) {
            const int at = i / few_channels, k = i % few_channels;
            if (k < channels)
                to[(c + k) * p.dense_step + found.cell[at]] =
                    __ldg(static_cast<const T *>(p.rows) + found.row[at] * p.rows_step + c + k);
        }
    }
}

// ---- Rows ---------------------------------------------------------------------------------------

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
    for (int a = 0; a < SPOPS_MAX_DIMS; ++a)
        p.sizes[a] = divisor_of((uint32_t)args->grid.size[a]);
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
    const int64_t each = wanted < parts ? parts / wanted : 1, shares = (parts + each - 1) / each;
    return (unsigned)(shares < 65535 ? shares : 65535);
}

// Whether the grid is filled before the rows are put into it: they are few, and it can be written 16
// bytes at a time.
bool are_few(const spops_dense_args *args, const params &p)
{
    if (p.max_rows * cells_a_row > p.grid.num_batches * p.grid.batch_cells) return false;
    if (!args->grid.channels_last) return p.wide_dense && p.num_channels <= most_few;
    return reinterpret_cast<uintptr_t>(p.dense) % 16 == 0 && p.dense_step == p.num_channels;
}

template <class F, class T>
spops_status put_rows(spops_context *ctx, params p, T fill, uint32_t fill_word)
{
    const int64_t batches = p.grid.num_batches;
    if (p.grid.channels_last) {
        const int64_t cells = batches * p.grid.batch_cells;
        p.cells = few_cells;
        while (p.cells > least_cells && p.cells * p.num_channels * sizeof(T) > last_bytes)
            p.cells /= 2;
        const dim3 grid((unsigned)((cells + p.cells - 1) / p.cells));
        return launch(ctx, "dense: launch", put_cells<F, T>, grid, threads, p, fill, fill_word);
    }
    const int64_t blocks = batches * ((p.grid.batch_cells + few_cells - 1) / few_cells);
    const dim3 grid((unsigned)blocks,
                    share(ctx, blocks, (p.num_channels + few_channels - 1) / few_channels));
    return launch(ctx, "dense: launch", put_channels<F, T>, grid, threads, p, fill, fill_word);
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
        const uint32_t fill = (uint32_t)args->fill;
        if (are_few(args, p))
            return element_bytes(args) == 2 ? put_rows<F>(ctx, p, (uint16_t)fill, fill | fill << 16)
                                            : put_rows<F>(ctx, p, fill, fill);
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
