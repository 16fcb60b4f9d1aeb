// SPDX-License-Identifier: Apache-2.0
// The span form of a BEV plan, which the CUDA backend pools on tensor cores. A cell takes runs of
// neighbouring pixels at one depth; a span is such a run within one tile of 32 pixels:
//
//     tile    32 pixels of one camera's feature map: a narrow upright strip
//     span    the pixels of a tile that fall in one cell at one depth: a mask of 32 bits
//     window  tiles side by side, 8 columns of pixels
//     wedge   a window between two depths: what one block loads, its features and its weights
//     part    the spans of a cell in a window, all of them in the wedge of the nearest; cells seen
//             through several windows, few on real rigs, have several parts and share their row
//     bundle  16 parts of a wedge, pooled together
//     step    one tile of a bundle: a 16 x 32 matrix of weights times the tile's 32 x C features
//
// 8 bytes a span stand for 8 bytes for each of its up to 32 points.
//
// The backward pass takes the same spans tile by tile: a span's gradient row is multiplied with the
// tile's features for the gradient of its depths, and with its depths for that of the features.
#ifndef SPOPS_BEVPOOL_BEV_SPANS_H
#define SPOPS_BEVPOOL_BEV_SPANS_H

#include "core/context.h"
#include "spops/bevpool.h"

// What one part adds in a step. Pixel k of a tile lies k / tile_width rows below and k % tile_width
// columns right of its first.
typedef struct spops_bev_span {
    uint32_t plane; // tile of the window << 16 | depth from the wedge's first; tile without mask
    uint32_t mask;  // bit k: pixel k falls in the cell; 0: no span
} spops_bev_span;

// Bundles of shared parts come first.
typedef struct spops_bev_wedge {
    int32_t feature;                   // row of feat of its first pixel
    int32_t depth;                     // element of depth: that pixel at the first depth
    int32_t num_depths;                // that are loaded
    uint8_t rows, columns;             // of pixels
    uint16_t num_shared;               // bundles
    int32_t first_bundle, num_bundles; // of the plan
    int32_t first_step, num_steps;
} spops_bev_wedge;

typedef struct spops_bev_bundle {
    int32_t first_step; // from the wedge's first
    int32_t num_steps;
} spops_bev_bundle;

// The parts of a shared cell follow each other, up to where those of the next cell begin.
typedef struct spops_bev_shared_cell {
    int32_t cell;
    int32_t first_part;
} spops_bev_shared_cell;

// A span in the order of tiles, then depths: what its tile adds up in the backward pass.
typedef struct spops_bev_tile_span {
    int32_t cell;
    int32_t depth; // bin
    uint32_t mask;
} spops_bev_tile_span;

typedef struct spops_bev_span_counts {
    int32_t num_spans, num_wedges, num_bundles, num_steps;
    int32_t num_shared_parts, num_shared_cells;
    int32_t longest;                            // spans of a part
    int32_t max_depths, max_bundles, max_steps; // of a wedge
    int32_t overflow;                           // 1: more of something than there is room for
} spops_bev_span_counts;

// Arrays lie in the backend's memory, in one block.
typedef struct spops_bev_spans {
    int32_t tile_width, tile_height;
    int32_t tile_width_log2;
    int32_t tiles_x, tiles_y; // of a feature map
    int32_t windows_x;        // of a row of tiles
    int64_t num_tiles;        // of all feature maps
    int64_t num_windows;
    int64_t num_planes; // tiles at each depth
    bool backward;      // has the arrays of the backward pass
    int64_t max_spans;  // of the build, as all of these
    int64_t max_wedges, max_bundles, max_steps;
    spops_bev_wedge *wedges;   // [max_wedges] in the order in which blocks take them
    spops_bev_bundle *bundles; // [max_bundles]
    int32_t *rows;             // [max_bundles][BUNDLE_PARTS] cell, or shared part; -1: none
    spops_bev_span *spans;     // [max_steps][BUNDLE_PARTS]
    spops_bev_shared_cell *shared_cells; // [max_spans / 2 + 1]
    uint32_t *covered;                   // [ceil(num_cells / 32)] bit: some span is the cell's
    // With backward; else NULL.
    spops_bev_tile_span *tile_spans; // [max_spans]
    int32_t *tile_begin;             // [num_tiles + 1] first span of a tile
    uint32_t *plane_masks;           // [num_tiles][depths] bit k: pixel k falls in some cell
    spops_bev_span_counts *counts;   // [1]
    spops_bev_span_counts host_counts;
} spops_bev_spans;

// Slot bev_spans_build: fill spans from the cell (or -1) of each frustum point. Enqueues. Cuts are
// of equal sizes; the first one has wedges for narrow rows of feat and, if any has, the arrays of
// the backward pass; a second one has wedges for rows above SPOPS_BEV_NARROW_COLS.
typedef struct spops_bev_spans_args {
    spops_bev_shape shape;
    const int32_t *cells;         // [B*N*D*H*W]
    const spops_bev_spans *spans; // [num_cuts]
    int num_cuts;
    void *workspace; // bev_spans_workspace_bytes
} spops_bev_spans_args;

// Slots bev_spans_choose and bev_spans_prepare: variants are those of
// kernels/bevpool/bev_spans_tuning.h.
typedef struct spops_bev_spans_choose_args {
    const spops_bev_spans *spans; // finished
    int64_t cols;
} spops_bev_spans_choose_args;
typedef struct spops_bev_spans_prepare_args {
    uint32_t variants; // bits 1 << variant
    bool gradients;
} spops_bev_spans_prepare_args;

// Slot bev_spans_pool: as segreduce's SUM over the plan's lists, in another order of terms. Slot
// bev_spans_pool_fits says whether the matrices suit it; it does not look at `parts`.
typedef struct spops_bev_spans_pool_args {
    const spops_bev_spans *spans;
    spops_bev_shape shape;
    int32_t variant;
    int64_t num_cells;
    float *parts;                  // scratch: [num_shared_parts][spops_bev_part_cols]
    spops_matrix depth, feat, out; // channels last; feat of at most 16 bits
    spops_matrix feat_scales;      // of 4-bit feat
    const float *feat_scale, *depth_scale, *out_scale; // NULL: 1
} spops_bev_spans_pool_args;

// Columns of a shared part in scratch, which holds 32 channels together.
static inline int64_t spops_bev_part_cols(int64_t cols)
{
    return (cols + 31) / 32 * 32;
}

// Spans take rows of whole 16 bytes. Others, of 16 bits, are copied into such rows of scratch.
static inline int64_t spops_bev_padded_cols(int64_t cols)
{
    return (cols + 7) / 8 * 8;
}

// Slot bev_spans_grad: both gradients of SUM, or one (data NULL: not wanted). All of one dtype, f16
// or bf16; every element of a gradient is written. Slot bev_spans_grad_fits says whether the rows
// suit it.
typedef struct spops_bev_spans_grad_args {
    const spops_bev_spans *spans;
    spops_bev_shape shape;
    spops_matrix grad_out, depth, feat; // grad_out channels last
    spops_matrix grad_depth, grad_feat;
} spops_bev_spans_grad_args;

#endif
