// SPDX-License-Identifier: Apache-2.0
// The grid of a launcher that walks a plan's lists.
#ifndef SPOPS_KERNELS_SEGMENTS_WALK_PLAN_CUH
#define SPOPS_KERNELS_SEGMENTS_WALK_PLAN_CUH

#include "kernels/core/launch.cuh"
#include "segments/lists.h"
#include "spops/device/segreduce.cuh"

namespace spops
{

// Blocks a kernel that reads its counts from the device is launched with, at most.
inline int resident_blocks(const spops_context *ctx)
{
    return ctx->info.num_processors * 4;
}

inline walk_launch walk_plan(const spops_context *ctx, const spops_lists *lists, int64_t vectors,
                             int threads, int unit = 0)
{
    return walk_plan(spops_segments_view_of(lists),
                     lists->counts_on_device ? nullptr : &lists->host_schedule, vectors, threads,
                     resident_blocks(ctx), unit > 0 ? unit : threads);
}

} // namespace spops

#endif
