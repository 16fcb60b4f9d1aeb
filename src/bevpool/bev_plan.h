// SPDX-License-Identifier: Apache-2.0
// BEV plans: the relation between cells, pixels and depth elements, and what its geometry needs.
#ifndef SPOPS_BEVPOOL_BEV_PLAN_H
#define SPOPS_BEVPOOL_BEV_PLAN_H

#include "bevpool/bev_points.h"
#include "bevpool/bev_span_form.h"
#include "core/plan.h"
#include "segments/segments.h"

// Sizes that follow from a shape.
typedef struct spops_bev_counts {
    int64_t num_cells;      // B * Z * Y * X
    int64_t num_features;   // B * N * H * W
    int64_t num_points;     // B * N * D * H * W, of the whole frustum
    int64_t num_transforms; // B * N
} spops_bev_counts;

struct spops_bev_plan {
    spops_plan base;
    spops_bev_shape shape;
    spops_bev_counts counts;
    spops_segments *segments;
    spops_bev_points_args points;      // of a refillable plan; without transforms
    int32_t input_height, input_width; // likewise
    bool has_depths;                   // given one by one
    double *numbers;                   // transforms, then depths
    spops_bev_span_form spans;
};

// `call` names the public call in messages, here and below.

// bev_plan.c

// Copy the caller's options, whose struct may be shorter, and check them.
spops_status spops_bev_read_options(spops_context *ctx, const char *call,
                                    const spops_bev_options *options, spops_bev_options *read);
spops_gradients spops_bev_gradients(const spops_bev_options *options);

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

spops_bev_scratch spops_bev_carve_scratch(const spops_bev_plan *plan, spops_carver *carver);

#endif
