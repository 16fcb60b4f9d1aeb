// SPDX-License-Identifier: Apache-2.0
// The span form of a BEV plan, as the plan holds it: whether there is one, its memory, and which calls
// it serves. It knows nothing of the plan but what stands here.
#ifndef SPOPS_BEVPOOL_BEV_SPAN_FORM_H
#define SPOPS_BEVPOOL_BEV_SPAN_FORM_H

#include "bevpool/bev_spans.h"
#include "core/backend.h"

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

typedef struct spops_bev_span_form {
    int64_t num_cells, num_points; // of the plan, set before a form is made; of the whole frustum
    int64_t max_cols;
    bool backward;
    spops_bev_kernel kernel; // as asked for; once the form is finished, INTERVALS or SPANS
    int32_t pool_variant;    // asked for; 0: by the tuning table
    // Of SPANS.
    spops_bev_spans cuts[SPOPS_BEV_NUM_CUTS]; // see spops_bev_cut_for
    uint8_t variants[SPOPS_BEV_WIDTHS];       // see spops_bev_variant_for
    void *block, *workspace;
    size_t block_bytes, workspace_bytes;
} spops_bev_span_form;

// Whether plans can have spans where ctx runs.
bool spops_bev_has_spans(const spops_context *ctx);

// Whether a plan should have them.
bool spops_bev_wants_spans(const spops_context *ctx, const spops_bev_span_form *form);

// Which of the cuts rows of `cols` columns take.
int spops_bev_cut_for(const spops_bev_span_form *form, int64_t cols);

// Which variant pools rows of `cols` columns over the spans; 0: the one that was asked for does not
// suit them.
int32_t spops_bev_variant_for(const spops_bev_span_form *form, int64_t cols);

// Enqueue the build of the spans from the cell (or -1) of each frustum point, in the backend's
// memory; then finish it (waits) and settle form->kernel. Without an enqueue before, finish settles
// it to INTERVALS. `call` names the public call in messages.
spops_status spops_bev_spans_enqueue(spops_context *ctx, const char *call,
                                     spops_bev_span_form *form, const spops_bev_shape *shape,
                                     const int32_t *cells);
spops_status spops_bev_spans_finish(spops_context *ctx, const char *call,
                                    spops_bev_span_form *form);
void spops_bev_spans_free(spops_context *ctx, spops_bev_span_form *form);

// Whether the spans pool matrices like these, and make gradients of them.
bool spops_bev_spans_serve(const spops_context *ctx, const spops_bev_span_form *form,
                           const spops_bev_spans_pool_args *args);
bool spops_bev_spans_serve_gradients(const spops_context *ctx, const spops_bev_span_form *form,
                                     const spops_bev_spans_grad_args *args);

#endif
