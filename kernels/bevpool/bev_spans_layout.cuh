// SPDX-License-Identifier: Apache-2.0
// What a block that pools a wedge has in shared memory, and where channels lie there.
//
// A chunk is 8 channels: 16 bytes in shared memory, and a multiplication of 8 columns. Which
// channels these are is chosen so that a lane's sums are neighbours in a row of the output: of each
// four chunks a lane has eight channels, of two that are left over four (channel_order).
#ifndef SPOPS_KERNELS_BEVPOOL_BEV_SPANS_LAYOUT_CUH
#define SPOPS_KERNELS_BEVPOOL_BEV_SPANS_LAYOUT_CUH

#include "bevpool/bev_spans.h"
#include "bevpool/bev_spans_sizes.h"
#include "kernels/bevpool/bev_spans_tuning.h"
#include "kernels/core/launch.cuh"

namespace spops::pool
{

constexpr int warp = 32;
constexpr uint32_t whole_warp = 0xffffffffu;
constexpr int tile_pixels = SPOPS_BEV_TILE_PIXELS, window_columns = SPOPS_BEV_WINDOW_COLUMNS;
constexpr int bundle_parts = SPOPS_BEV_BUNDLE_PARTS;
constexpr int plane_bytes = tile_pixels * 2; // weights of a tile at one depth
constexpr int chunk_cols = 8;

struct pool_params {
    const spops_bev_wedge *wedges;
    const spops_bev_bundle *bundles;
    const int32_t *rows;
    const spops_bev_span *spans;
    int32_t max_depths, max_steps, max_bundles; // of a wedge
    int32_t num_depths, height, width;
    int32_t tile_width_log2;
    int32_t cols;
    const uint8_t *feat, *feat_scales;
    int32_t feat_stride, scales_stride; // bytes, as all strides here
    const uint8_t *depth;
    int32_t depth_dtype;
    int32_t depth_run; // neighbouring columns that can be loaded at once: 8, 4 or 1
    uint8_t *out;
    int64_t out_stride;
    int32_t out_dtype;
    float *parts;
    int64_t part_cols;
    bool turned; // every other round of columns takes the wedges from the last to the first
    const float *feat_scale, *depth_scale, *out_scale;
};

// A block that pools: the columns that it has of its wedge's rows, and its warps.
template <int COLS, int WARPS> struct pool_block {
    static constexpr int cols = COLS, warps = WARPS, threads = WARPS * warp;
    static constexpr int held = 20 / WARPS; // by a multiprocessor, for which it has registers
};

// A value that is cheap to keep, as one whose origin the compiler does not see: it is not to be
// computed again wherever it is used.
__device__ __forceinline__ uint32_t kept(uint32_t value)
{
    asm volatile("" : "+r"(value));
    return value;
}

// Where things lie in a block's shared memory, in bytes. Gaps see to it that a warp finds in
// different banks what it loads of eight pixels above each other, and what it stores of
// neighbouring ones.
template <int COLS> struct wedge_layout {
    static constexpr int chunks = COLS / chunk_cols;
    static constexpr int gap = chunks < 16 ? 0 : 2;         // before chunk 8, in chunks
    static constexpr int pitch = ((chunks | 1) + gap) * 16; // of a pixel
    int features, weights, spans, rows, bundles, bytes;

    static __host__ __device__ __forceinline__ constexpr int chunk_at(int chunk)
    {
        return (chunk + (chunk < 8 ? 0 : gap)) * 16;
    }
    // A warp stores words of up to four columns of pixels, 16 bytes in each 64: the gap after
    // tiles of one and of two columns lets the next ones fall between them (a pixel's pitch does in
    // a tile).
    static __host__ __device__ __forceinline__ int tile_bytes(int width_log2)
    {
        return tile_pixels * pitch + (width_log2 == 0 ? 16 : width_log2 == 1 ? 32 : 0);
    }
    __host__ __device__ __forceinline__ wedge_layout(const pool_params &p)
    {
        const int tiles = window_columns >> p.tile_width_log2;
        features = 0;
        weights = features + tiles * tile_bytes(p.tile_width_log2);
        spans = weights + tiles * p.max_depths * plane_bytes;
        rows = spans + p.max_steps * bundle_parts * (int)sizeof(spops_bev_span);
        bundles = rows + p.max_bundles * bundle_parts * (int)sizeof(int32_t);
        bytes = bundles + p.max_bundles * (int)sizeof(spops_bev_bundle);
    }
};

// Where channels lie among COLS columns. Four lanes have, of each group of four chunks (or two, at
// the end), `lane_channels` neighbouring channels each, two of a chunk.
template <int COLS> struct channel_order {
    static constexpr int chunks = COLS / chunk_cols, grouped = chunks / 4 * 4;
    static_assert(chunks % 2 == 0, "");

    static __host__ __device__ constexpr int lane_channels(int chunk)
    {
        return chunk < grouped ? 8 : 4;
    }
    // The first of lane q's channels in the group that begins with a chunk.
    static __host__ __device__ constexpr int first_channel(int first_chunk, int q)
    {
        return first_chunk * chunk_cols + q * lane_channels(first_chunk);
    }
    // Where a channel is, as chunk, lane and one of two.
    struct place {
        int chunk, lane, side;
    };
    static __device__ __forceinline__ place of(int c)
    {
        const int first = c < grouped * chunk_cols ? c / 32 * 4 : grouped;
        const int in_group = c - first * chunk_cols, each = lane_channels(first);
        return place{first + in_group % each / 2, in_group / each, c % 2};
    }
    // Bytes from a pixel's first in shared memory.
    static __device__ __forceinline__ int byte_of(int c)
    {
        const place at = of(c);
        return wedge_layout<COLS>::chunk_at(at.chunk) + at.lane * 4 + at.side * 2;
    }
    // Place in a shared part: a lane stores what it has of two chunks together, four channels.
    static __device__ __forceinline__ int part_place(int c)
    {
        const place at = of(c);
        return at.chunk / 2 * 16 + at.lane * 4 + at.chunk % 2 * 2 + at.side;
    }
};
// The first of the four channels that lie at the item-th four places of a shared part.
__device__ __forceinline__ int channel_of_item(int item, int columns)
{
    const int pass = item * 4 / columns * columns, in_pass = item - pass / 4;
    const int pair = in_pass / 4, q = in_pass % 4;
    const bool grouped = pair < columns / 32 * 2;
    return pass + pair / 2 * 32 + (grouped ? q * 8 + pair % 2 * 4 : q * 4);
}

// ---- What a launch needs to know of it ----------------------------------------------------------

inline int shared_bytes(const pool_params &p, int columns)
{
    if (columns == 80) return wedge_layout<80>(p).bytes;
    return columns == 128 ? wedge_layout<128>(p).bytes : wedge_layout<64>(p).bytes;
}

// The two launches, and what makes the kernels of the first ready for a variant. The first has a
// source for each dtype of features, X (bev_spans_pool_*.cu).
template <class X> spops_status prepare_pool(spops_context *ctx, int32_t variant);
template <class X>
spops_status pool_wedges(spops_context *ctx, const pool_params &p, int32_t variant,
                         int32_t num_wedges);
spops_status finish_cells(spops_context *ctx, const spops_bev_spans_pool_args *args,
                          const pool_params &pool);

// bev_spans_grad.cu
spops_status prepare_gradients(spops_context *ctx);

} // namespace spops::pool

#endif
