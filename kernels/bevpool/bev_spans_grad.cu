// SPDX-License-Identifier: Apache-2.0
// Both gradients of BEV pooling over spans (bevpool/bev_spans.h), on tensor cores. Four warps, a team,
// have a tile and take its spans in batches of 32, with the 32 gradient rows G of their cells:
//
//     gradient of depths     G [spans x channels] times features [channels x pixels]
//     gradient of features   weights [pixels x spans] times G; a weight is zero where the pixel is
//                            not the span's
//
// so that a row is read once a span and not once a point. A block has one to four neighbouring
// tiles, whose weights it holds at all depths: the pixels beside each other are read, and their
// gradients written, together. A weight is needed once, and its gradient takes its place.
//
// A zero weight times an infinity would be NaN in pixels that are not the span's: a warp whose sums
// are not all finite sums its pixels again, term by term.
#include "kernels/bevpool/bev_spans_layout.cuh"
#include "kernels/core/launch.cuh"
#include "bevpool/bev_spans.h"
#include "bevpool/bev_spans_sizes.h"
#include "kernels/core/matrix_units.cuh"
#include "kernels/core/with_dtype.cuh"
#include "spops/device/grid_dependency.cuh"

namespace
{

using namespace spops;

constexpr int warp = 32, team_threads = 128;
constexpr int batch_spans = 32, pixels = SPOPS_BEV_TILE_PIXELS, pixels_log2 = 5;
constexpr int max_cols = 256, group_cols = 16; // the columns of a product
constexpr int max_depths = 1 << 16;            // far more than shared memory has room for
constexpr uint32_t whole_warp = 0xffffffffu;
// Rows that matrices are loaded from begin 16 bytes later, modulo 32, than those before them: eight
// of them lie in different banks.
constexpr int weights_bytes = pixels * 2 + 16;

static_assert(pixels == 1 << pixels_log2 && batch_spans * 4 == team_threads, "");

struct grad_params {
    const spops_bev_tile_span *spans;
    const int32_t *tile_begin;
    const uint32_t *plane_masks;
    int32_t num_depths, height, width;
    int32_t tiles_x, tiles_y;
    int32_t tile_width_log2;
    int32_t tiles_log2; // neighbouring tiles of a block
    int32_t blocks_x;   // of a row of tiles
    int32_t chunk_log2; // neighbouring depth elements that are moved together, up to 4
    int32_t cols;
    const uint8_t *grad_out, *feat;
    int64_t grad_out_stride, feat_stride, grad_feat_stride; // bytes
    const uint16_t *depth;
    uint16_t *grad_depth; // NULL: not wanted
    uint8_t *grad_feat;   // NULL: not wanted
};

// From a plane of depth in shared memory to the next, in elements. Spans of neighbouring bins are
// to find their weights in different banks; planes of one tile are small enough for that.
__host__ __device__ __forceinline__ int32_t plane_elements(const grad_params &p)
{
    return (pixels << p.tiles_log2) + (p.tiles_log2 > 0 ? 4 : 0);
}

// What a block has in shared memory: all of a kind, tile by tile.
struct grad_layout {
    int32_t rows;     // [tiles][stages][batch_spans] gradient rows
    int32_t weights;  // [tiles][2][batch_spans] masked weights of 32 pixels
    int32_t spans;    // [tiles][stages][batch_spans] bytes from `depth` to the span's plane; mask
    int32_t features; // [tiles][pixels]
    int32_t depth;    // [num_depths] planes, row by row: weights, then gradients
    int32_t masks;    // [tiles][num_depths] pixels that have a cell
    int32_t bytes;    // of all
};

// A row of so many groups of columns in shared memory.
__host__ __device__ constexpr int32_t row_bytes_of(int groups)
{
    return groups * group_cols * 2 + 16;
}

// Batches of rows in shared memory, one in use and the others on their way: wide rows leave room
// for fewer.
__host__ __device__ constexpr int stages_of(int groups)
{
    return groups > 8 ? 3 : 4;
}

// Neighbouring tiles that a block has at most; of wide rows no more fit.
__host__ __device__ constexpr int max_tiles_log2(int groups)
{
    return groups > 8 ? 1 : 2;
}

__host__ __device__ __forceinline__ grad_layout layout_of(const grad_params &p, int groups)
{
    const int32_t tiles = 1 << p.tiles_log2, row_bytes = row_bytes_of(groups);
    const int32_t staged = tiles * stages_of(groups) * batch_spans;
    grad_layout l;
    l.rows = 0;
    l.weights = l.rows + staged * row_bytes;
    l.spans = l.weights + tiles * 2 * batch_spans * weights_bytes;
    l.features = l.spans + staged * (int32_t)sizeof(int2);
    l.depth = l.features + tiles * pixels * row_bytes;
    l.masks = l.depth + p.num_depths * plane_elements(p) * (int32_t)sizeof(uint16_t);
    l.bytes = l.masks + tiles * p.num_depths * (int32_t)sizeof(uint32_t);
    return l;
}

// The pixels of a block: a rectangle of a feature map.
struct grad_block {
    int32_t row, column;     // of the map, of the first pixel
    int32_t feature, weight; // row of feat, element of depth, of the first pixel (at bin 0)
    int32_t tile;            // of the first tile
    int32_t num_tiles;       // that are there
};

__device__ __forceinline__ grad_block block_of(const grad_params &p)
{
    const int32_t image = p.height * p.width, strip = (int32_t)blockIdx.x / p.blocks_x;
    const int32_t tile_x = (int32_t)blockIdx.x % p.blocks_x << p.tiles_log2;
    const int32_t camera = strip / p.tiles_y;
    grad_block b;
    b.row = strip % p.tiles_y << (pixels_log2 - p.tile_width_log2);
    b.column = tile_x << p.tile_width_log2;
    b.feature = camera * image + b.row * p.width + b.column;
    b.weight = camera * p.num_depths * image + b.row * p.width + b.column;
    b.tile = strip * p.tiles_x + tile_x;
    b.num_tiles = min(1 << p.tiles_log2, p.tiles_x - tile_x);
    return b;
}

// Chunks of neighbouring depth elements of a block. A thread has the same chunk of several planes.
struct depth_chunks {
    int32_t row, column; // of the chunk, in the block
    bool inside;
    int32_t bin, bins;         // the first, and from one to the next
    int64_t element, elements; // of depth: of the first bin, and from one to the next
    int32_t place, places;     // in shared memory

    __device__ __forceinline__ depth_chunks(const grad_params &p, const grad_block &b)
    {
        const int32_t in_row_log2 = p.tile_width_log2 + p.tiles_log2 - p.chunk_log2;
        const int32_t in_plane_log2 = pixels_log2 + p.tiles_log2 - p.chunk_log2;
        const int32_t i = (int32_t)threadIdx.x, image = p.height * p.width;
        const int32_t in_plane = i & ((1 << in_plane_log2) - 1);
        row = in_plane >> in_row_log2;
        column = (i & ((1 << in_row_log2) - 1)) << p.chunk_log2;
        inside = b.row + row < p.height && b.column + column < p.width;
        bin = i >> in_plane_log2;
        bins = team_threads / pixels
               << p.chunk_log2; // a block has as many threads as chunks in so many
        element = (int64_t)b.weight + bin * image + row * p.width + column;
        elements = (int64_t)bins * image;
        place = bin * plane_elements(p) + (in_plane << p.chunk_log2);
        places = bins * plane_elements(p);
    }
};

template <int BYTES>
__device__ __forceinline__ void load_chunks(const grad_params &p, const depth_chunks &c,
                                            uint16_t *to)
{
    if (!c.inside) return;
    const uint16_t *from = p.depth + c.element;
    to += c.place;
    for (int32_t bin = c.bin; bin < p.num_depths; bin += c.bins) {
        if constexpr (BYTES == 2)
            *to = *from;
        else
            copy_async<BYTES>(shared_address(to), from, true);
        from += c.elements;
        to += c.places;
    }
}

// A chunk as words of two elements.
template <int BYTES> __device__ __forceinline__ void read_chunk(const uint16_t *from, uint32_t *v)
{
    if constexpr (BYTES == 2) {
        v[0] = *from;
    } else if constexpr (BYTES == 4) {
        v[0] = *reinterpret_cast<const uint32_t *>(from);
    } else {
        const uint2 two = *reinterpret_cast<const uint2 *>(from);
        v[0] = two.x, v[1] = two.y;
    }
}
template <int BYTES> __device__ __forceinline__ void write_chunk(uint16_t *to, const uint32_t *v)
{
    if constexpr (BYTES == 2)
        *to = (uint16_t)v[0];
    else if constexpr (BYTES == 4)
        *reinterpret_cast<uint32_t *>(to) = v[0];
    else
        *reinterpret_cast<uint2 *>(to) = make_uint2(v[0], v[1]);
}

// Gradients; 0 where a point has no cell.
template <int BYTES>
__device__ __forceinline__ void store_chunks(const grad_params &p, const depth_chunks &c,
                                             const uint32_t *masks, const uint16_t *from)
{
    constexpr int elements = BYTES / 2;
    if (!c.inside) return;
    const int32_t column_mask = (1 << p.tile_width_log2) - 1;
    uint16_t *to = p.grad_depth + c.element;
    from += c.place;
    for (int32_t bin = c.bin; bin < p.num_depths; bin += c.bins) {
        uint32_t words[(elements + 1) / 2];
        read_chunk<BYTES>(from, words);
#pragma unroll
        for (int e = 0; e < elements; ++e) {
            const int32_t x = c.column + e;
            const uint32_t mask = masks[(x >> p.tile_width_log2) * p.num_depths + bin];
            if ((mask >> ((c.row << p.tile_width_log2) + (x & column_mask)) & 1u) == 0)
                words[e / 2] &= e % 2 == 0 ? 0xffff0000u : 0xffffu;
        }
        write_chunk<BYTES>(to, words);
        to += c.elements;
        from += c.places;
    }
}

// Which of a block's gradients of features a warp has: 16 pixels of a team's tile, and every other
// group of columns. By value: a warp's sums must not get an address.
struct warp_share {
    int32_t team, half, part;
    int32_t begin, end; // spans of the tile

    // Where pixel k lies in the map, from the block's first.
    __device__ __forceinline__ int32_t pixel_offset(const grad_params &p, int32_t k) const
    {
        return (k >> p.tile_width_log2) * p.width + (team << p.tile_width_log2) +
               (k & ((1 << p.tile_width_log2) - 1));
    }
    __device__ __forceinline__ bool inside(const grad_params &p, const grad_block &b,
                                           int32_t k) const
    {
        return b.row + (k >> p.tile_width_log2) < p.height &&
               b.column + (team << p.tile_width_log2) + (k & ((1 << p.tile_width_log2) - 1)) <
                   p.width;
    }
    __device__ __forceinline__ uint8_t *grad_row(const grad_params &p, const grad_block &b,
                                                 int32_t k) const
    {
        return p.grad_feat + ((int64_t)b.feature + pixel_offset(p, k)) * p.grad_feat_stride;
    }
};

// A warp's pixels and columns term by term, with nothing from spans that a pixel is not in.
template <class T, int GROUPS>
__device__ __noinline__ void sum_apart(const grad_params &p, grad_block b, warp_share has)
{
    const T *w = reinterpret_cast<const T *>(p.depth);
    const int32_t lane = (int32_t)(threadIdx.x % warp);
    for (int32_t k = has.half * 16; k < has.half * 16 + 16; ++k) {
        if (!has.inside(p, b, k)) continue;
        T *row = reinterpret_cast<T *>(has.grad_row(p, b, k));
        const int64_t weight = (int64_t)b.weight + has.pixel_offset(p, k);
        for (int32_t c = lane; c < (GROUPS + 1) / 2 * group_cols; c += warp) {
            const int32_t at = (has.part + c / group_cols * 2) * group_cols + c % group_cols;
            if (at >= p.cols) continue;
            float total = 0.0f;
            for (int32_t i = has.begin; i < has.end; ++i) {
                const spops_bev_tile_span s = p.spans[i];
                if ((s.mask >> k & 1u) == 0) continue;
                const uint8_t *from = p.grad_out + (int64_t)s.cell * p.grad_out_stride;
                total += to_f32(w[weight + s.depth * p.height * p.width]) *
                         to_f32(reinterpret_cast<const T *>(from)[at]);
            }
            row[at] = from_f32<T>(total);
        }
    }
}

// GROUPS: of columns, those after the last one zeros.
template <class T, int GROUPS> struct tile_grads {
    static constexpr int stages = stages_of(GROUPS);
    static constexpr int32_t row_bytes = row_bytes_of(GROUPS);
    static constexpr int own = (GROUPS + 1) / 2;    // groups of a warp: part, part + 2, ...
    static constexpr int copies = (GROUPS + 1) / 2; // of 16 bytes, of a thread's quarter of a row
    static_assert(stages >= 3, "a batch's spans are read one batch before its rows");
    const grad_params &p;
    const grad_block &b;
    warp_share has;
    int lane;
    int32_t span, quarter;                   // of a batch, and of a row, that this thread loads
    uint32_t rows, weights, features, depth; // shared memory, of the team but for depth
    int2 *spans;
    uint32_t pixel_place[8],
        dot_place[4];     // bytes in a plane of depth: see lay_out_weights, add_depths
    float sum[own][2][4]; // gradients of features: pixels 16 half + ...
    // Wide rows leave room for few warps, and these have registers for the features of their
    // pixels.
    static constexpr bool holds = GROUPS > 8;
    uint32_t held[holds ? GROUPS : 1][4];

    __device__ __forceinline__ tile_grads(const grad_params &params, const grad_block &block,
                                          const grad_layout &l, uint8_t *shared)
        : p(params), b(block), lane((int)(threadIdx.x % warp)),
          span((int32_t)(threadIdx.x % team_threads) / 4), quarter((int32_t)threadIdx.x % 4)
    {
        const int32_t team = (int32_t)threadIdx.x / team_threads;
        has.team = team;
        has.half = (int32_t)threadIdx.x / warp & 1;
        has.part = (int32_t)threadIdx.x / (2 * warp) & 1;
        has.begin = has.end = 0;
        rows = shared_address(shared + l.rows) + team * stages * batch_spans * row_bytes;
        weights = shared_address(shared + l.weights) + team * 2 * batch_spans * weights_bytes;
        features = shared_address(shared + l.features) + team * pixels * row_bytes;
        spans = reinterpret_cast<int2 *>(shared + l.spans) + team * stages * batch_spans;
        depth = shared_address(shared + l.depth);
        if (team < b.num_tiles) {
            has.begin = __ldg(p.tile_begin + b.tile + team);
            has.end = __ldg(p.tile_begin + b.tile + team + 1);
        }
#pragma unroll
        for (int j = 0; j < 8; ++j)
            pixel_place[j] = place_of(8 * quarter + j);
#pragma unroll
        for (int j = 0; j < 4; ++j)
            dot_place[j] = place_of(has.part * 16 + j / 2 * 8 + 2 * (lane % 4) + j % 2);
#pragma unroll
        for (int n = 0; n < own; ++n)
#pragma unroll
            for (int i = 0; i < 8; ++i)
                sum[n][i / 4][i % 4] = 0.0f;
    }

    // Where pixel k lies in a plane of depth.
    __device__ __forceinline__ uint32_t place_of(int32_t k) const
    {
        return (uint32_t)((k >> p.tile_width_log2 << (p.tile_width_log2 + p.tiles_log2)) +
                          (has.team << p.tile_width_log2) + (k & ((1 << p.tile_width_log2) - 1))) *
               sizeof(uint16_t);
    }

    // Of the tile that has most: the teams of a block go in step, after their last span with
    // zeros. (With a barrier a team map B takes 29.6 us instead of 31.9, but racecheck then reports
    // blocks in which a team has no tile.)
    __device__ __forceinline__ int32_t num_batches() const
    {
        int32_t most = 0;
        for (int32_t i = 0; i < b.num_tiles; ++i) {
            const int32_t *begin = p.tile_begin + b.tile + i;
            most = max(most, __ldg(begin + 1) - __ldg(begin));
        }
        return (most + batch_spans - 1) / batch_spans;
    }

    // This thread's span of a batch; cell -1 after the last one.
    __device__ __forceinline__ spops_bev_tile_span load_span(int32_t batch) const
    {
        const int32_t at = has.begin + batch * batch_spans + span;
        spops_bev_tile_span s = {-1, 0, 0u};
        if (at < has.end) {
            const int32_t *from = reinterpret_cast<const int32_t *>(p.spans + at);
            s.cell = __ldg(from);
            s.depth = __ldg(from + 1);
            s.mask = (uint32_t)__ldg(from + 2);
        }
        return s;
    }

    // A quarter of a row to shared memory, zeros after its columns, or all zeros.
    __device__ __forceinline__ void copy_row(uint32_t to, const uint8_t *from, bool there) const
    {
        const int32_t last = (p.cols - 8) * 2;
#pragma unroll
        for (int i = 0; i < copies; ++i) {
            const int32_t at = (quarter + 4 * i) * 16;
            if (2 * GROUPS % 4 == 0 || i + 1 < copies || quarter < 2)
                copy_async<16>(to + at, from + min(at, last), there && at <= last);
        }
    }

    __device__ __forceinline__ void load_features() const
    {
        const bool there = has.team < b.num_tiles && has.inside(p, b, span);
        const int64_t row = (int64_t)b.feature + (there ? has.pixel_offset(p, span) : 0);
        copy_row(features + span * row_bytes, p.feat + row * p.feat_stride, there);
    }

    __device__ __forceinline__ void load_batch(int stage, const spops_bev_tile_span &s) const
    {
        const int32_t place = stage * batch_spans + span;
        copy_row(rows + place * row_bytes, p.grad_out + (int64_t)max(s.cell, 0) * p.grad_out_stride,
                 s.cell >= 0);
        if (quarter == 0)
            spans[place] =
                make_int2(s.depth * plane_elements(p) * (int)sizeof(uint16_t), (int)s.mask);
    }

    // The weights of a batch as a matrix [span][pixel].
    __device__ __forceinline__ void lay_out_weights(int stage, int parity) const
    {
        const int2 s = spans[stage * batch_spans + span];
        const uint32_t mask = (uint32_t)s.y >> 8 * quarter, plane = depth + (uint32_t)s.x;
        uint32_t v[8];
#pragma unroll
        for (int j = 0; j < 8; ++j)
            v[j] = load_shared_if(mask & 1u << j, plane + pixel_place[j]);
        const uint32_t to = weights + (parity * batch_spans + span) * weights_bytes + quarter * 16;
        store_shared4(to, make_uint4(v[0] | v[1] << 16, v[2] | v[3] << 16, v[4] | v[5] << 16,
                                     v[6] | v[7] << 16));
    }

    // Features of pixels 16 part + ..., a group of columns.
    __device__ __forceinline__ void load_pixels(uint32_t (&y)[4], int group) const
    {
        const int i = lane / 8, r = lane % 8;
        load_matrices(y, features + (has.part * 16 + i / 2 * 8 + r) * row_bytes + i % 2 * 16 +
                             group * group_cols * 2);
    }
    __device__ __forceinline__ void hold_features()
    {
        if constexpr (holds) {
#pragma unroll
            for (int k = 0; k < GROUPS; ++k)
                load_pixels(held[k], k);
        }
    }

    // Spans 16 half + ..., pixels 16 part + ...
    __device__ __forceinline__ void add_depths(int stage) const
    {
        const int i = lane / 8, r = lane % 8, g = lane / 4, q = lane % 4;
        const uint32_t row =
            rows + (stage * batch_spans + has.half * 16 + i % 2 * 8 + r) * row_bytes + i / 2 * 16;
        float dot[2][4] = {};
        __syncwarp();
#pragma unroll
        for (int k = 0; k < GROUPS; ++k) {
            uint32_t x[4], y[4];
            load_matrices(x, row + k * 32);
            if constexpr (!holds) load_pixels(y, k);
            const uint32_t *pixel = holds ? held[holds ? k : 0] : y;
            add_product(T(), dot[0], x, pixel[0], pixel[1]);
            add_product(T(), dot[1], x, pixel[2], pixel[3]);
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int2 s = spans[stage * batch_spans + has.half * 16 + g + 8 * h];
            const uint32_t mask = (uint32_t)s.y >> (has.part * 16 + 2 * q);
            const uint32_t plane = depth + (uint32_t)s.x;
#pragma unroll
            for (int j = 0; j < 4; ++j)
                store_shared_if(mask & 1u << (j / 2 * 8 + j % 2), plane + dot_place[j],
                                from_f32<T>(dot[j / 2][2 * h + j % 2]).bits);
        }
    }

    __device__ __forceinline__ void add_features(int stage, int parity)
    {
        const int i = lane / 8, r = lane % 8;
        __syncwarp();
#pragma unroll
        for (int k = 0; k < batch_spans; k += 16) {
            uint32_t w[4];
            load_transposed(w, weights +
                                   (parity * batch_spans + k + i / 2 * 8 + r) * weights_bytes +
                                   has.half * 32 + i % 2 * 16);
            const uint32_t row = rows + (stage * batch_spans + k + i % 2 * 8 + r) * row_bytes +
                                 i / 2 * 16 + has.part * 32;
#pragma unroll
            for (int n = 0; n < own; ++n) {
                if (2 * n + 1 >= GROUPS && has.part != 0) break; // an odd number of groups
                uint32_t x[4];
                load_transposed(x, row + n * 64);
                add_product(T(), sum[n][0], w, x[0], x[1]);
                add_product(T(), sum[n][1], w, x[2], x[3]);
            }
        }
    }

    __device__ __forceinline__ bool all_finite() const
    {
        float zero = 0.0f;
#pragma unroll
        for (int n = 0; n < own; ++n)
#pragma unroll
            for (int i = 0; i < 8; ++i)
                zero += sum[n][i / 4][i % 4] * 0.0f;
        return __all_sync(whole_warp, zero == 0.0f);
    }

    __device__ __forceinline__ void store_features() const
    {
        const int g = lane / 4, q = lane % 4;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int32_t k = has.half * 16 + g + 8 * h;
            if (!has.inside(p, b, k)) continue;
            uint8_t *row = has.grad_row(p, b, k);
#pragma unroll
            for (int n = 0; n < own; ++n) {
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    const int32_t at = (has.part + 2 * n) * group_cols + j * 8 + 2 * q;
                    if (at < p.cols)
                        *reinterpret_cast<uint32_t *>(row + at * 2) =
                            pack2<T>(sum[n][j][2 * h], sum[n][j][2 * h + 1]);
                }
            }
        }
    }
};

template <class T, int GROUPS>
__global__ void __launch_bounds__(team_threads << max_tiles_log2(GROUPS))
    grad_kernel(const __grid_constant__ grad_params p)
{
    extern __shared__ __align__(16) uint8_t shared[];
    constexpr int stages = stages_of(GROUPS);
    const grad_layout l = layout_of(p, GROUPS);
    const grad_block b = block_of(p);
    const depth_chunks chunks(p, b);
    uint16_t *depth = reinterpret_cast<uint16_t *>(shared + l.depth);
    uint32_t *masks = reinterpret_cast<uint32_t *>(shared + l.masks);
    const bool wants_depth = p.grad_depth != nullptr, wants_feat = p.grad_feat != nullptr;
    grid_launch_dependents();

    tile_grads<T, GROUPS> tile(p, b, l, shared);
    spops_bev_tile_span first[stages - 1];
#pragma unroll
    for (int i = 0; i < stages - 1; ++i)
        first[i] = tile.load_span(i);
    spops_bev_tile_span next = tile.load_span(stages - 1);
    if (wants_depth)
        for (int32_t i = (int32_t)threadIdx.x; i < b.num_tiles * p.num_depths;
             i += (int32_t)blockDim.x)
            masks[i] = __ldg(p.plane_masks + (int64_t)b.tile * p.num_depths + i);
    grid_dependency_wait(); // all else may come from the kernel before
    if (wants_depth) tile.load_features();
    if (wants_feat) {
        switch (p.chunk_log2) {
        case 0: load_chunks<2>(p, chunks, depth); break;
        case 1: load_chunks<4>(p, chunks, depth); break;
        default: load_chunks<8>(p, chunks, depth); break;
        }
    }
    close_copies();
#pragma unroll
    for (int i = 0; i < stages - 1; ++i) {
        tile.load_batch(i, first[i]);
        close_copies();
    }
    wait_copies<stages - 1>(); // all but the rows
    __syncthreads();

    const int32_t num_batches = tile.num_batches();
    int stage = 0, free_stage = stages - 1;
    if (wants_feat) tile.lay_out_weights(0, 0);
    if (wants_depth) tile.hold_features();
    for (int32_t batch = 0; batch < num_batches; ++batch) {
        const int next_stage = stage + 1 == stages ? 0 : stage + 1;
        wait_copies<stages - 2>();
        // This batch's rows and weights are there, and no warp is in the batch before any more.
        __syncthreads();
        tile.load_batch(free_stage, next);
        close_copies();
        next = tile.load_span(batch + stages);
        if (wants_feat) tile.lay_out_weights(next_stage, (batch + 1) & 1);
        if (wants_depth) tile.add_depths(stage);
        if (wants_feat) tile.add_features(stage, batch & 1);
        free_stage = stage;
        stage = next_stage;
    }
    wait_copies<0>();

    if (wants_feat && tile.has.team < b.num_tiles) {
        if (tile.all_finite())
            tile.store_features();
        else
            sum_apart<T, GROUPS>(p, b, tile.has);
    }
    if (!wants_depth) return;
    __syncthreads();
    switch (p.chunk_log2) {
    case 0: store_chunks<2>(p, chunks, masks, depth); break;
    case 1: store_chunks<4>(p, chunks, masks, depth); break;
    default: store_chunks<8>(p, chunks, masks, depth); break;
    }
}

bool rows_of_16(const spops_matrix &m)
{
    return m.data == nullptr ||
           ((uintptr_t)m.data % 16 == 0 && (m.rows <= 1 || m.row_stride % 8 == 0));
}

// Parameters of a launch of as many tiles a block as leave no processor idle and fit; false where
// not even one fits.
bool choose_params(const spops_context *ctx, const spops_bev_spans_grad_args *args,
                   grad_params *out)
{
    const spops_bev_spans &s = *args->spans;
    const spops_bev_shape &shape = args->shape;
    const int64_t num_strips = s.num_tiles / s.tiles_x;
    grad_params p = {};
    p.spans = s.tile_spans;
    p.tile_begin = s.tile_begin;
    p.plane_masks = s.plane_masks;
    p.num_depths = shape.num_depths;
    p.height = shape.feature_height;
    p.width = shape.feature_width;
    p.tiles_x = s.tiles_x;
    p.tiles_y = s.tiles_y;
    p.tile_width_log2 = s.tile_width_log2;
    p.cols = (int32_t)args->feat.cols;
    p.grad_out = (const uint8_t *)args->grad_out.data;
    p.grad_out_stride = args->grad_out.row_stride * 2;
    p.feat = (const uint8_t *)args->feat.data;
    p.feat_stride = args->feat.row_stride * 2;
    p.depth = (const uint16_t *)args->depth.data;
    p.grad_depth = (uint16_t *)args->grad_depth.data;
    p.grad_feat = (uint8_t *)args->grad_feat.data;
    p.grad_feat_stride = args->grad_feat.row_stride * 2;
    const uintptr_t both = (uintptr_t)p.depth | (uintptr_t)p.grad_depth;
    const int groups = spops_bev_grad_groups(ctx->info.compute_capability, p.cols);
    for (p.tiles_log2 = max_tiles_log2(groups); p.tiles_log2 >= 0; --p.tiles_log2) {
        const int32_t tiles = 1 << p.tiles_log2;
        p.blocks_x = (p.tiles_x + tiles - 1) / tiles;
        if (p.tiles_log2 > 0 && num_strips * p.blocks_x < ctx->info.num_processors) continue;
        if (layout_of(p, groups).bytes > ctx->block_shared_bytes) continue;
        for (p.chunk_log2 = 2; p.chunk_log2 > 0; --p.chunk_log2) {
            const int32_t chunk = 1 << p.chunk_log2;
            if (tiles * s.tile_width % chunk == 0 && p.width % chunk == 0 &&
                both % (uintptr_t)(2 * chunk) == 0)
                break;
        }
        *out = p;
        return true;
    }
    return false;
}

template <class T, int GROUPS>
spops_status launch_grad(spops_context *ctx, const grad_params &p, int64_t blocks)
{
    return launch_prepared<WAITS_FOR_PREVIOUS>(
        ctx, "bev_spans: grad", grad_kernel<T, GROUPS>, dim3((unsigned)blocks),
        (unsigned)team_threads << p.tiles_log2, (size_t)layout_of(p, GROUPS).bytes, p);
}

template <class T>
spops_status launch_groups(spops_context *ctx, const grad_params &p, int64_t blocks)
{
    switch (spops_bev_grad_groups(ctx->info.compute_capability, p.cols)) {
#define X(groups)                                                                                  \
    case groups: return launch_grad<T, groups>(ctx, p, blocks);
        SPOPS_BEV_GRAD_GROUPS(X)
#undef X
    default: return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED, "bev_spans: no such groups");
    }
}

template <class T> spops_status prepare_dtype(spops_context *ctx)
{
#define X(groups) SPOPS_TRY(prepare_shared(ctx, "bev_spans: prepare", grad_kernel<T, groups>));
    SPOPS_BEV_GRAD_GROUPS(X)
#undef X
    return SPOPS_STATUS_OK;
}

} // namespace

spops_status spops::pool::prepare_gradients(spops_context *ctx)
{
    SPOPS_TRY(prepare_dtype<f16>(ctx));
    return prepare_dtype<bf16>(ctx);
}

extern "C" bool spops_cuda_bev_spans_grad_fits(const spops_context *ctx,
                                               const spops_bev_spans_grad_args *args)
{
    const int64_t cols = args->feat.cols;
    grad_params p;
    return cols > 0 && cols % 8 == 0 && cols <= max_cols && args->shape.num_depths <= max_depths &&
           rows_of_16(args->grad_out) && rows_of_16(args->feat) && rows_of_16(args->grad_feat) &&
           choose_params(ctx, args, &p);
}

extern "C" spops_status spops_cuda_bev_spans_grad(spops_context *ctx,
                                                  const spops_bev_spans_grad_args *args)
{
    grad_params p;
    if (!choose_params(ctx, args, &p))
        return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                          "bev_spans: %d depths of a tile do not fit in shared memory",
                          (int)args->shape.num_depths);
    const int64_t blocks = args->spans->num_tiles / p.tiles_x * p.blocks_x;
    constexpr unsigned pooled = 1u << SPOPS_DTYPE_F16 | 1u << SPOPS_DTYPE_BF16;
    return with_dtype<pooled>(args->feat.dtype, [&](auto tag) {
        return launch_groups<typename decltype(tag)::type>(ctx, p, blocks);
    });
}
