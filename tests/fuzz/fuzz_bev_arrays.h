// SPDX-License-Identifier: Apache-2.0
// The head of an input that becomes a BEV plan: sixteen numbers, then the arrays.
#ifndef SPOPS_TESTS_FUZZ_BEV_ARRAYS_H
#define SPOPS_TESTS_FUZZ_BEV_ARRAYS_H

#include "fuzz.h"

// More points or intervals than this are not tried; negative counts are.
#define FUZZ_MAX_COUNT 4096

typedef struct fuzz_bev_head {
    spops_bev_shape shape;
    int64_t num_points, num_intervals;
    spops_bev_options options;
    int64_t fail_at;
    int num_threads;
} fuzz_bev_head;

static inline fuzz_bev_head fuzz_read_bev_head(fuzz_input *input)
{
    fuzz_bev_head head;
    memset(&head, 0, sizeof head);
    head.shape.num_batches = fuzz_i32(input);
    head.shape.num_cameras = fuzz_i32(input);
    head.shape.num_depths = fuzz_i32(input);
    head.shape.feature_height = fuzz_i32(input);
    head.shape.feature_width = fuzz_i32(input);
    head.shape.num_cells_x = fuzz_i32(input);
    head.shape.num_cells_y = fuzz_i32(input);
    head.shape.num_cells_z = fuzz_i32(input);
    head.num_points = fuzz_i32(input);
    head.num_intervals = fuzz_i32(input);
    head.options = spops_bev_options_default();
    head.options.backward = fuzz_i32(input);
    head.options.max_cols = fuzz_i32(input);
    head.fail_at = fuzz_i32(input) & 31;
    head.num_threads = 1 + (fuzz_i32(input) & 1);
    fuzz_i32(input);
    fuzz_i32(input);
    return head;
}

// A plan was asked for with allocations that may have failed: nothing may be left of it, and
// without the failures the context works on. Runs the plan if there is one.
static inline void fuzz_finish_bev_plan(spops_context *ctx, fuzz_memory *memory,
                                        spops_status status, spops_bev_plan *plan)
{
    memory->fail_at = 0;
    FUZZ_REQUIRE((status == SPOPS_STATUS_OK) == (plan != NULL), "%s", spops_status_name(status));
    FUZZ_REQUIRE(status == SPOPS_STATUS_OK || status == SPOPS_STATUS_INVALID_ARGUMENT ||
                     status == SPOPS_STATUS_OUT_OF_MEMORY,
                 "%s: %s", spops_status_name(status), spops_last_error(ctx));
    FUZZ_REQUIRE(status == SPOPS_STATUS_OK || spops_last_error(ctx)[0] != 0, "no message");
    if (plan != NULL) fuzz_run_bev_plan(ctx, plan);
    spops_bev_plan_destroy(plan);
}

#endif
