// SPDX-License-Identifier: Apache-2.0
// Fuzzes the import of BEV plans from the depth-outer form.
#include "fuzz_bev_arrays.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fuzz_input input = {data, bytes, 0};
    const fuzz_bev_head head = fuzz_read_bev_head(&input);
    fuzz_memory memory;
    spops_bev_plan *plan = NULL;
    spops_bev_intervals_out intervals;
    spops_bev_intervals given;
    if (head.num_points > FUZZ_MAX_COUNT || head.num_intervals > FUZZ_MAX_COUNT) return 0;
    intervals = fuzz_intervals(&input, head.num_points, head.num_intervals);
    given = spops_bev_intervals_of(&intervals);

    spops_context *ctx = fuzz_context_create(&memory, head.num_threads);
    if (head.fail_at > 0) memory.fail_at = memory.num_allocs + head.fail_at;
    const spops_status status =
        spops_bev_plan_create_from_intervals(ctx, &head.shape, &given, &head.options, &plan);
    fuzz_finish_bev_plan(ctx, &memory, status, plan);
    fuzz_context_destroy(ctx, &memory);

    fuzz_free_intervals(&intervals);
    return 0;
}
