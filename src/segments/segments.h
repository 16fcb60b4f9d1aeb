// SPDX-License-Identifier: Apache-2.0
// Plans of segments: what they hold, and what the modules above build and run them with. Arrays and
// schedules are filled by the backend (slots lists_build and lists_invert).
#ifndef SPOPS_SEGMENTS_SEGMENTS_H
#define SPOPS_SEGMENTS_SEGMENTS_H

#include "core/backend.h"
#include "core/check.h"
#include "core/plan_file.h"
#include "relation/relation.h"
#include "segments/lists.h"

struct spops_segments {
    spops_plan base;
    int64_t num_segments;
    int64_t max_terms; // terms, or the capacity where the build may leave some out
    int64_t num_rows;
    int64_t num_weights;
    int64_t num_sources; // term numbers are below this
    int64_t max_cols;
    spops_gradients gradients;
    int32_t sum_variant; // asked for; 0: by the tuning table
    bool weights_unique; // with gradients: no two terms name the same weight
    spops_lists forward;
    spops_lists by_row, by_weight;       // with gradients; else all zero
    bool has_pairs, has_order, has_keys; // what is carved
    size_t extra_bytes;                  // at extra
    int32_t *keys;         // [max_terms] segment of term t, its row and weight; NULL: not kept
    void *lists_workspace; // for lists_build and lists_invert
    void *extra;           // for the caller of spops_segments_alloc
};

// Sizes of a plan to make, checked already.
typedef struct spops_segments_sizes {
    int64_t num_segments, max_terms, num_rows, num_weights, num_sources, max_cols;
    spops_gradients gradients;
    int32_t sum_variant;
    bool refillable;
    bool weights_unique;        // known beforehand; else found out once the lists are built
    bool pairs, order;          // whether the forward lists need them
    bool keys;                  // whether the source's keys are kept
    bool in_order;              // of the forward lists (lists.h)
    int32_t most_of_segment;    // terms that a segment has at most; 0: not known
    int32_t most_of_row;        // the same of a row, with gradients
    size_t extra_bytes;         // wanted at segments->extra
    size_t extra_scratch_bytes; // that the caller carves after the plan's own
} spops_segments_sizes;

// True if a plan without idx and weight_idx keeps its keys. Gather uses them to write narrow rows in
// order.
static inline bool spops_segments_keeps_keys(const spops_context *ctx)
{
    return ctx->backend->kind == SPOPS_BACKEND_CUDA;
}

// Allocate a plan: arrays carved, nothing enqueued, scratch reserved in ctx; a part of a plan with
// capacities has no memory yet, and no scratch. `call` names the public call in messages, here and below.
spops_status spops_segments_alloc(spops_context *ctx, const char *call,
                                  const spops_segments_sizes *sizes, spops_segments **out);

// A plan that spops_segments_update fills, of these sizes as they stand (0 rows are none), which know
// the counts, gradients and columns alone: what spops_segments_reserve makes of checked options.
spops_status spops_segments_make(spops_context *ctx, const char *call,
                                 const spops_segments_sizes *sizes, spops_segments **out);

// Enqueue the build of all lists from source. Neither allocates nor waits. A source whose num_terms
// is 0 is taken for one without any term, whatever its arrays.
spops_status spops_segments_enqueue_build(spops_context *ctx, spops_segments *segments,
                                          const spops_lists_source *source);

// After the build of a plan that is not refillable: free its workspace, wait, fetch its counts.
spops_status spops_segments_finish(spops_context *ctx, spops_segments *segments);

// Counts of the forward lists: the host's copy, or the device's where the plan is refillable
// (waits).
spops_status spops_segments_schedule_sync(spops_context *ctx, const spops_segments *segments,
                                          spops_schedule *schedule);

// The state of plans of lists.
static inline void spops_schedule_put_state(const spops_schedule *schedule, int64_t *counts)
{
    counts[0] = schedule->num_terms;
    counts[1] = schedule->num_nonempty;
    counts[2] = schedule->num_dropped;
    counts[3] = schedule->longest;
    counts[4] = schedule->overflow;
}

// Scratch of a plan's calls, measured and carved by one function.
typedef struct spops_segments_scratch {
    void *states;   // [num_segments][max_cols] states, with SPOPS_GRADIENTS_ALL; else NULL
    void *partials; // [most pieces of its lists][max_cols] states
} spops_segments_scratch;

// Of a state: of f32, and on the CPU also of f64.
enum { SPOPS_STATE_BYTES_F32 = 8, SPOPS_STATE_BYTES_F64 = 16 };

spops_segments_scratch spops_segments_carve_scratch(const spops_segments *segments,
                                                    spops_carver *carver);

// The same, taken from ctx.
spops_status spops_segments_get_scratch(spops_context *ctx, const char *call,
                                        const spops_segments *segments,
                                        spops_segments_scratch *scratch);

// Checks of plans and of what they are made from. They report on ctx.

// Rows of `cols` columns fit in the plan's scratch, where they need any.
spops_status spops_segments_check_cols(spops_context *ctx, const char *call, const char *name,
                                       const spops_segments *segments, bool states, int64_t cols);

// Numbers of terms are those of rows 0 .. max_terms - 1: not of a plan that was loaded from bytes which
// say otherwise.
spops_status spops_segments_check_terms(spops_context *ctx, const char *call,
                                        const spops_segments *segments);

// A gradients choice of an options struct.
spops_status spops_check_gradients(spops_context *ctx, const char *call, spops_gradients gradients);

// One of a description.
spops_status spops_check_gradients_field(spops_context *ctx, const char *call, int64_t field,
                                         spops_gradients *gradients);

// The first n elements of an index array are there and 0 to high - 1 (waits). high_name is what the
// caller knows the limit by.
spops_status spops_check_range(spops_context *ctx, const char *call, const char *name,
                               const int32_t *array, int64_t n, int64_t high,
                               const char *high_name);

// They ascend (waits).
spops_status spops_check_ascending(spops_context *ctx, const char *call, const char *name,
                                   const int32_t *array, int64_t n);

// offsets [num_segments + 1] ascend from 0; *num_terms is the last (waits).
spops_status spops_check_offsets(spops_context *ctx, const char *call, const int32_t *offsets,
                                 int64_t num_segments, int64_t *num_terms);

// Saved bytes may be hostile, so that a plan made of them must not cost more than they themselves do,
// times this. Plans that do (of few numbers and wide rows) are saved with zeros after them.
#define SPOPS_SEGMENTS_IMAGE_COST 1024

// Forward lists in host memory, as plans are saved, loaded, imported and exported.
enum { SPOPS_IMAGE_PAIRS = 1, SPOPS_IMAGE_TERM = 2 };
typedef struct spops_segments_image {
    int64_t num_segments, num_terms, num_rows, num_weights, num_sources, max_cols;
    int32_t gradients, parts; // spops_gradients; SPOPS_IMAGE_*
    bool pools;               // of a BEV plan, which needs memory for rows and for points besides
    int64_t num_zeros;        // by place
    int32_t *offsets;         // [num_segments + 1]; the arrays follow each other
    int32_t *a, *b;           // [num_terms] each, of PAIRS; else NULL
    int32_t *term;            // [num_terms], of TERM; else NULL
    int32_t *zeros;           // [num_zeros]
} spops_segments_image;

// Room for the arrays of an image whose numbers are set. Free it also after a failure.
spops_status spops_segments_image_alloc(spops_context *ctx, spops_segments_image *image);
void spops_segments_image_free(spops_context *ctx, spops_segments_image *image);

// Make a plan of an image that is known to be right (waits). extra_scratch_bytes: as in
// spops_segments_sizes.
spops_status spops_segments_image_build(spops_context *ctx, const char *call,
                                        const spops_segments_image *image,
                                        size_t extra_scratch_bytes, spops_segments **out);

// As of a spops_plan_file, for the plans that are saved with their segments. Of a plan: its numbers, then
// its arrays, which have room; waits.
spops_status spops_segments_image_describe(spops_context *ctx, const spops_segments *segments,
                                           spops_segments_image *image);
spops_status spops_segments_image_fetch(spops_context *ctx, const spops_segments *segments,
                                        spops_segments_image *image);
void spops_segments_image_numbers(spops_file *f, void *image);
int64_t spops_segments_image_place(void *image, int32_t *at);
spops_status spops_segments_image_check(spops_context *ctx, const char *call, void *image);
spops_status spops_segments_image_check_arrays(spops_context *ctx, const char *call,
                                               const spops_segments_image *image);

extern const spops_plan_file spops_segments_file;

#endif
