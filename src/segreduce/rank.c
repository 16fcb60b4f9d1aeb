// SPDX-License-Identifier: Apache-2.0
// The rank of a term in its segment: the check, the slot, and the boxed function.
#include "call/boxed.h"
#include "segments/segments.h"
#include "segreduce/rank_args.h"

spops_status spops_rank_execute(spops_context *ctx, const spops_segments *segments, int32_t *ranks)
{
    static const char call[] = "rank_execute";
    const void *const given[] = {segments, ranks};
    spops_rank_args args;

    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_rank, given, NULL));
    SPOPS_REQUIRE_SLOT(ctx, call, rank);
    SPOPS_TRY(spops_segments_check_terms(ctx, call, segments));
    if (segments->max_terms == 0) return SPOPS_STATUS_OK;
    args = (spops_rank_args){&segments->forward, ranks};
    return ctx->backend->rank(ctx, &args);
}

spops_status spops_boxed_rank(spops_boxed_call *b)
{
    return spops_rank_execute(b->ctx, b->args[0], b->matrices[1].data);
}
