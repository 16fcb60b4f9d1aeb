// SPDX-License-Identifier: Apache-2.0
// Ranks of terms on the CPU: segments in turn.
#include "backends/backend_cpu.h"
#include "core/threads.h"
#include "segreduce/rank_args.h"

static void leave_out(const void *work, int64_t begin, int64_t end)
{
    const spops_rank_args *args = (const spops_rank_args *)work;
    for (int64_t t = begin; t < end; ++t)
        args->ranks[t] = -1;
}

static void rank_segments(const void *work, int64_t begin, int64_t end)
{
    const spops_rank_args *args = (const spops_rank_args *)work;
    const spops_lists *lists = args->lists;

    for (int64_t s = begin; s < end; ++s)
        for (int32_t p = lists->offsets[s]; p < lists->offsets[s + 1]; ++p)
            args->ranks[lists->order == NULL ? p : lists->order[p]] = p - lists->offsets[s];
}

spops_status spops_cpu_rank(spops_context *ctx, const spops_rank_args *args)
{
    const int64_t terms = args->lists->max_terms, segments = args->lists->num_segments;
    const spops_team team = spops_team_for(ctx, terms);

    spops_parallel_for(team, terms, 0, leave_out, args);
    spops_parallel_for(team, segments, 0, rank_segments, args);
    return SPOPS_STATUS_OK;
}
