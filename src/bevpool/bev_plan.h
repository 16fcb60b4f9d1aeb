// SPDX-License-Identifier: Apache-2.0
// BEV plans: the relation between cells, pixels and depth elements, and what its geometry needs.
#ifndef SPOPS_BEVPOOL_BEV_PLAN_H
#define SPOPS_BEVPOOL_BEV_PLAN_H

#include "bevpool/bev_points.h"
#include "bevpool/bev_spans.h"
#include "core/plan.h"
#include "segments/segments.h"

// Sizes that follow from a shape.
typedef struct spops_bev_counts {
    int64_t num_cells;      // B * Z * Y * X
    int64_t num_features;   // B * N * H * W
    int64_t num_points;     // B * N * D * H * W, of the whole frustum
    int64_t num_transforms; // B * N
} spops_bev_counts;

// When a plan has spans, and how much room they get: what no kernel knows.
#define SPOPS_BEV_PLANE_SPANS  4     // room for so many cells, on average, in a tile at a depth
#define SPOPS_BEV_SMALL_SPANS  65536 // room for as many as there can be, up to this
#define SPOPS_BEV_SPANS_POINTS ((int64_t)1 << 16) // a plan of fewer points has no spans
#define SPOPS_BEV_NARROW_COLS  96                 // of feat; wider rows are worth larger wedges
#define SPOPS_BEV_WIDE_POINTS  ((int64_t)1 << 19) // with fewer, the same wedges suit all rows

// Spans of many points are cut into wedges twice, as it depends on the rows which wedges are best.
enum { SPOPS_BEV_CUT_NARROW, SPOPS_BEV_CUT_WIDE, SPOPS_BEV_NUM_CUTS };

// Widths of rows that a plan has chosen variants for: multiples of 8 columns, the last for all
// wider ones too.
#define SPOPS_BEV_WIDTHS 128

struct spops_bev_plan {
    spops_plan base;
    spops_bev_shape shape;
    spops_bev_counts counts;
    spops_segments *segments;
    spops_bev_points_args points;      // of a refillable plan; without transforms
    int32_t input_height, input_width; // likewise
    bool has_depths;                   // given one by one
    double *numbers;                   // transforms, then depths
    spops_bev_kernel kernel; // as asked for; once the plan is finished, INTERVALS or SPANS
    int32_t pool_variant;    // asked for; 0: by the tuning table
    spops_bev_spans spans[SPOPS_BEV_NUM_CUTS]; // of SPANS; see spops_bev_cut_for
    uint8_t pool_variants[SPOPS_BEV_WIDTHS];   // of SPANS; see spops_bev_variant_for
    void *spans_block, *spans_workspace;
    size_t spans_block_bytes, spans_workspace_bytes;
};

// `call` names the public call in messages, here and below.

// bev_plan.c

// Copy the caller's options, whose struct may be shorter, and check them.
spops_status spops_bev_read_options(spops_context *ctx, const char *call,
                                    const spops_bev_options *options, spops_bev_options *read);
spops_gradients spops_bev_gradients(const spops_bev_options *options);

// plan is there and lies where ctx runs.
spops_status spops_bev_check_plan(spops_context *ctx, const char *call, const spops_bev_plan *plan);

// A plan without segments yet; `kernel` as the caller asked.
spops_status spops_bev_plan_alloc(spops_context *ctx, const spops_bev_shape *shape,
                                  const spops_bev_counts *counts, spops_bev_kernel kernel,
                                  spops_bev_plan **out);

// The pixel row that a depth element lies on.
static inline int64_t spops_bev_pixel_of(const spops_bev_shape *shape, int64_t point)
{
    const int64_t image = (int64_t)shape->feature_height * shape->feature_width;
    return point / (image * shape->num_depths) * image + point % image;
}

// Its segments, and spans, from an image that is known to be right (waits).
spops_status spops_bev_plan_build_image(spops_context *ctx, const char *call,
                                        const spops_segments_image *image, spops_bev_plan *plan);

// bev_spans.c

// Whether plans can have spans where ctx runs.
bool spops_bev_has_spans(const spops_context *ctx);

// Whether a plan that asked for `kernel` should have spans.
bool spops_bev_wants_spans(const spops_context *ctx, const spops_bev_counts *counts,
                           spops_bev_kernel kernel);

// Which of the plan's spans rows of `cols` columns take.
int spops_bev_cut_for(const spops_bev_plan *plan, int64_t cols);

// Which variant pools rows of `cols` columns over the plan's spans; 0: the one that was asked for
// does not suit them.
int32_t spops_bev_variant_for(const spops_bev_plan *plan, int64_t cols);

// Enqueue the build of the plan's spans from the cell (or -1) of each frustum point, in the
// backend's memory; then finish it (waits) and settle plan->kernel. Without an enqueue before,
// finish settles it to INTERVALS.
spops_status spops_bev_spans_enqueue(spops_context *ctx, const char *call, spops_bev_plan *plan,
                                     const int32_t *cells);
spops_status spops_bev_spans_finish(spops_context *ctx, const char *call, spops_bev_plan *plan);
void spops_bev_spans_free(spops_bev_plan *plan);

// Whether the plan's spans pool matrices like these, and make gradients of them.
bool spops_bev_spans_serve(const spops_context *ctx, const spops_bev_plan *plan,
                           const spops_bev_spans_pool_args *args);
bool spops_bev_spans_serve_gradients(const spops_context *ctx, const spops_bev_plan *plan,
                                     const spops_bev_spans_grad_args *args);

// bev_geometry.c

// Positive sizes whose products can be indexed.
spops_status spops_bev_check_shape(spops_context *ctx, const char *call,
                                   const spops_bev_shape *shape, spops_bev_counts *counts);

// Copy the caller's geometry, whose struct may be shorter, and check all but its cameras.
spops_status spops_bev_read_geometry(spops_context *ctx, const char *call,
                                     const spops_bev_geometry *geometry, spops_bev_geometry *read,
                                     spops_bev_counts *counts);

// Check the cameras and turn them into transforms [num_transforms][SPOPS_BEV_TRANSFORM_DOUBLES].
spops_status spops_bev_make_transforms(spops_context *ctx, const char *call,
                                       const spops_bev_camera *cameras, int64_t num_cameras,
                                       double *transforms);

// Scratch of a plan's calls, measured and carved by one function.
typedef struct spops_bev_scratch {
    spops_segments_scratch segments;
    void *rows;     // [num_cells][padded max_cols] of 4 bytes: out, or grad_out, with channels last
    float *parts;   // spops_bev_spans_pool_args; NULL without spans
    void *feat_f16; // CPU: [num_features][max_cols] f16, an 8- or 4-bit feat, widened; else NULL
    void *feat, *grad_feat; // [num_features][padded max_cols] of 2 bytes; NULL without spans
} spops_bev_scratch;

// Spans take rows of whole 16 bytes. Others, of 16 bits, are copied into such rows of scratch.
static inline int64_t spops_bev_padded_cols(int64_t cols)
{
    return (cols + 7) / 8 * 8;
}
spops_bev_scratch spops_bev_carve_scratch(const spops_bev_plan *plan, spops_carver *carver);

#endif
