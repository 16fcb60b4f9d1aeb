// SPDX-License-Identifier: Apache-2.0
// Farthest point sampling: checks and scratch.
#include "call/call_check.h"
#include "points/farthest_args.h"

size_t spops_farthest_scratch_bytes(spops_context *ctx, int64_t max_points, int64_t num_samples)
{
    // Of a cloud with such sizes nothing else is read.
    const spops_point_cloud cloud = {.points = {.rows = max_points}, .num_samples = num_samples};
    const spops_farthest_args args = {.cloud = &cloud};

    if (ctx == NULL || ctx->backend->farthest_workspace_bytes == NULL) return 0;
    if (max_points < 0 || num_samples < 0 || max_points > SPOPS_MAX_COUNT ||
        num_samples > SPOPS_MAX_COUNT)
        return 0;
    return ctx->backend->farthest_workspace_bytes(ctx, &args);
}

static spops_status get_scratch(spops_context *ctx, const char *call, spops_farthest_args *args)
{
    const int64_t rows = args->cloud->points.rows, samples = spops_cloud_samples(args->cloud);
    const size_t bytes = spops_farthest_scratch_bytes(ctx, rows, samples);
    const spops_status status = spops_context_scratch(ctx, call, bytes, &args->workspace);

    if (status == SPOPS_STATUS_SCRATCH_TOO_SMALL)
        return spops_fail(ctx, status,
                          "%s: the context's scratch is %zu bytes, expected at least %zu: call "
                          "spops_context_reserve with spops_farthest_scratch_bytes(%" PRId64
                          ", %" PRId64 ")",
                          call, ctx->scratch_bytes, bytes, rows, samples);
    return status;
}

spops_status spops_farthest_execute(spops_context *ctx, const spops_point_cloud *cloud,
                                    int32_t count, const int32_t *counts, int32_t *rows,
                                    float *distances2)
{
    static const char call[] = "farthest_execute";
    spops_farthest_args args = {cloud, count, counts, rows, distances2, NULL};

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(spops_cloud_check(ctx, call, "cloud", cloud));
    const int64_t samples = spops_cloud_samples(cloud);
    const spops_matrix to = spops_matrix_dense(rows, samples, count, SPOPS_DTYPE_I32);
    const spops_matrix d2 = spops_matrix_dense(distances2, samples, count, SPOPS_DTYPE_F32);
    const void *const given[] = {&cloud->points, cloud->offsets, counts, &to,
                                 distances2 == NULL ? NULL : &d2};
    const spops_call_number attributes[] = {{.i = samples}, {.i = count}};
    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_farthest, given, attributes));
    SPOPS_REQUIRE_SLOT(ctx, call, farthest);
    SPOPS_TRY(get_scratch(ctx, call, &args));
    return ctx->backend->farthest(ctx, &args);
}
