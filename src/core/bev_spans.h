// The span form of a BEV plan, which the CUDA backend pools on tensor cores. A cell takes runs of
// neighbouring pixels at one depth; a span is such a run within one tile of 32 pixels:
//
//     tile    32 pixels of one camera's feature map: a narrow upright strip
//     span    the pixels of a tile that fall in one cell at one depth: a mask of 32 bits
//     bundle  16 cells pooled together
//     step    one tile of a bundle: a 16 x 32 matrix of weights times the tile's 32 x C features
//
// Each call first puts the weights in the order of tiles, [tiles][num_depths][32]: those of a span
// then lie side by side, and one number says where. 8 bytes a span stand for 8 bytes for each of
// its up to 32 points.
//
// The backward pass takes the same spans tile by tile: a span's gradient row is multiplied with the
// tile's features for the gradient of its depths, and with its depths for that of the features.
#ifndef SPOPS_CORE_BEV_SPANS_H
#define SPOPS_CORE_BEV_SPANS_H

#include "core/context.h"
#include "spops/bevpool.h"

#define SPOPS_BEV_TILE_PIXELS  32
#define SPOPS_BEV_BUNDLE_CELLS 16
#define SPOPS_BEV_HELD_WARPS   16    // of a multiprocessor, by the kernel that pools
#define SPOPS_BEV_MAX_STEPS    128   // of a bundle; a plan that needs more keeps its lists
#define SPOPS_BEV_PLANE_SPANS  4     // room for so many cells, on average, in a tile at a depth
#define SPOPS_BEV_SMALL_SPANS  65536 // room for as many as there can be, up to this
#define SPOPS_BEV_SPANS_POINTS ((int64_t)1 << 18) // fewer points are pooled faster by lists
#define SPOPS_BEV_GRAD_POINTS  ((int64_t)1 << 16) // with fewer, gradients are not worth the build

// What one cell adds in a step. Pixel k of a tile lies k / tile_width rows below and k % tile_width
// columns right of its first.
typedef struct spops_bev_span {
    int32_t plane; // tile * num_depths + depth
    uint32_t mask; // bit k: pixel k falls in the cell; 0: no span
} spops_bev_span;

typedef struct spops_bev_step {
    int32_t feature; // row of feat of the tile's first pixel
    uint32_t used;   // bit k: pixel k is in some cell of the bundle
} spops_bev_step;

// A span in the order of tiles, then depths: what its tile adds up in the backward pass.
typedef struct spops_bev_tile_span {
    int32_t cell;
    int32_t depth; // bin
    uint32_t mask;
} spops_bev_tile_span;

// Step 0 of bundle b is step b; steps 1, 2, ... are `more`, more + 1, ...
typedef struct spops_bev_bundle {
    int32_t num_steps;
    int32_t more;
} spops_bev_bundle;

// Bundles lie by how many warps share one, each class in a stretch of max_bundles.
enum { SPOPS_BEV_TEAM4 = 0, SPOPS_BEV_TEAM2 = 1, SPOPS_BEV_TEAM1 = 2, SPOPS_BEV_NUM_TEAMS = 3 };

typedef struct spops_bev_span_counts {
    int32_t num_spans;
    int32_t num_bundles[SPOPS_BEV_NUM_TEAMS];
    int32_t num_more; // steps behind the first ones
    int32_t longest;  // steps of a bundle
    int32_t overflow; // 1: more spans or steps than there is room for
} spops_bev_span_counts;

// Arrays lie in the backend's memory, in one block.
typedef struct spops_bev_spans {
    int32_t tile_width, tile_height;
    int32_t tile_width_log2;
    int32_t tiles_x, tiles_y; // of a feature map
    int32_t group_tiles;      // neighbouring tiles whose bundles follow each other
    int32_t full_spans;       // with so many, every warp that the device holds has about one step
    int64_t num_tiles;        // of all feature maps
    int64_t num_planes;       // tiles at each depth
    bool backward;            // has the arrays of the backward pass
    int64_t max_spans;        // of the build
    int64_t max_bundles;      // of a class
    int64_t max_more;
    spops_bev_bundle *bundles; // [NUM_TEAMS][max_bundles]
    int32_t *cells;            // [NUM_TEAMS][max_bundles][BUNDLE_CELLS]; -1: none
    spops_bev_step *steps;     // [NUM_TEAMS * max_bundles + max_more]
    spops_bev_span *spans;     // [NUM_TEAMS * max_bundles + max_more][BUNDLE_CELLS]
    uint32_t *covered;         // [ceil(num_cells / 32)] bit: some span is the cell's
    // With backward; else NULL.
    spops_bev_tile_span *tile_spans; // [max_spans]
    int32_t *tile_begin;             // [num_tiles + 1] first span of a tile
    uint32_t *plane_masks;           // [num_tiles][depths] bit k: pixel k falls in some cell
    spops_bev_span_counts *counts;   // [1]
    spops_bev_span_counts host_counts;
} spops_bev_spans;

// Slot bev_spans_build: fill spans from the cell (or -1) of each frustum point. Enqueues.
typedef struct spops_bev_spans_args {
    spops_bev_shape shape;
    const int32_t *cells; // [B*N*D*H*W]
    const spops_bev_spans *spans;
    void *workspace; // bev_spans_workspace_bytes
} spops_bev_spans_args;

// Slot bev_spans_pool: as segreduce's SUM over the plan's lists, in another order of terms.
typedef struct spops_bev_spans_pool_args {
    const spops_bev_spans *spans;
    spops_bev_shape shape;
    int64_t num_cells;
    void *weights;                 // scratch: [num_tiles][num_depths][TILE_PIXELS] of 16 bits
    spops_matrix depth, feat, out; // channels last; feat of 8 or 16 bits
    const float *feat_scale, *depth_scale, *out_scale; // NULL: 1
} spops_bev_spans_pool_args;

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
