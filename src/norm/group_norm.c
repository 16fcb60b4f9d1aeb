// SPDX-License-Identifier: Apache-2.0
// Group norm: argument checks, scratch, then the backend's slots.
#include "call/call_check.h"
#include "core/backend.h"
#include "norm/group_args.h"
#include "segments/segments.h"
#include "spops/norm.h"

static spops_group_scratch carve_scratch(const spops_segments *samples, int64_t cols,
                                         spops_carver *c)
{
    const int64_t pieces = spops_group_max_pieces(samples->num_segments, samples->max_terms);
    spops_group_scratch scratch;
    scratch.partials = spops_carve(c, 2 * pieces, cols, sizeof(float));
    scratch.sums = spops_carve(c, 2 * samples->num_segments, cols, sizeof(float));
    return scratch;
}

size_t spops_groupnorm_scratch_bytes(const spops_segments *samples, int64_t max_cols)
{
    spops_carver c = {NULL, 0};
    if (samples == NULL || max_cols < 0) return 0;
    (void)carve_scratch(samples, max_cols, &c);
    return c.used;
}

static spops_status get_scratch(spops_context *ctx, const char *call, const spops_segments *samples,
                                spops_group_norm_args *args)
{
    // Numbers of f64 take the place of two.
    const int64_t cols = (args->x.dtype == SPOPS_DTYPE_F64 ? 2 : 1) * args->x.cols;
    const size_t bytes = spops_groupnorm_scratch_bytes(samples, cols);
    spops_carver c = {NULL, 0};
    void *base;
    const spops_status status = spops_context_scratch(ctx, call, bytes, &base);

    if (status == SPOPS_STATUS_SCRATCH_TOO_SMALL)
        return spops_fail(
            ctx, status,
            "%s: the context's scratch is %zu bytes, expected at least %zu: call "
            "spops_context_reserve with spops_groupnorm_scratch_bytes(samples, %" PRId64 ")",
            call, ctx->scratch_bytes, bytes, cols);
    SPOPS_TRY(status);
    c.base = base;
    args->scratch = carve_scratch(samples, cols, &c);
    return SPOPS_STATUS_OK;
}

// What all calls do once the row was checked; x is there.
static spops_status begin(spops_context *ctx, const char *call, const spops_segments *samples,
                          int32_t groups, spops_matrix x, spops_group_norm_args *args)
{
    SPOPS_REQUIRE(ctx, x.cols > 0, "%s: x has no columns, expected 1 or more", call);
    SPOPS_REQUIRE(ctx, x.cols % groups == 0,
                  "%s: x has %" PRId64 " columns, expected a multiple of groups = %" PRId32, call,
                  x.cols, groups);
    args->samples = (spops_group_samples){samples->forward.offsets, samples->forward.pairs,
                                          samples->num_segments, samples->max_terms};
    args->groups = groups;
    args->x = x;
    args->activations = spops_activation_table_of(ctx);
    return SPOPS_STATUS_OK;
}

static spops_status read_options(spops_context *ctx, const char *call,
                                 const spops_norm_options *options, spops_norm_options *read,
                                 spops_group_norm_args *args)
{
    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(spops_read_options(ctx, call, options, read, sizeof *read));
    SPOPS_REQUIRE(ctx, read->num_rows == NULL,
                  "%s: num_rows is not NULL, expected NULL (samples know their rows)", call);
    SPOPS_REQUIRE(ctx, read->momentum >= 0.0f && read->momentum <= 1.0f,
                  "%s: momentum is %g, expected 0 to 1", call, (double)read->momentum);
    SPOPS_TRY(spops_check_flag(ctx, call, "fixed_statistics", read->fixed_statistics));
    args->epsilon = read->epsilon == 0.0f ? 1e-5f : read->epsilon;
    args->activated = spops_activated_of(read->activation, read->activation_slope);
    args->fixed_statistics = read->fixed_statistics;
    return SPOPS_STATUS_OK;
}

spops_status spops_groupnorm_statistics_execute(spops_context *ctx, const spops_segments *samples,
                                                int32_t groups, spops_matrix x, void *mean,
                                                void *var)
{
    static const char call[] = "groupnorm_statistics_execute";
    const void *const given[] = {&x, samples, mean, var};
    const spops_call_number attributes[] = {{.i = groups}};
    spops_group_norm_args args = {0};

    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_groupnorm_statistics, given, attributes));
    SPOPS_TRY(begin(ctx, call, samples, groups, x, &args));
    if (args.samples.num == 0) return SPOPS_STATUS_OK;
    SPOPS_REQUIRE_SLOT(ctx, call, group_statistics);
    SPOPS_TRY(get_scratch(ctx, call, samples, &args));
    args.mean_out = mean;
    args.var_out = var;
    return ctx->backend->group_statistics(ctx, &args);
}

spops_status spops_groupnorm_execute(spops_context *ctx, const spops_segments *samples,
                                     int32_t groups, spops_matrix x, const void *mean,
                                     const void *var, const void *gamma, const void *beta,
                                     const spops_norm_options *options, spops_matrix out)
{
    static const char call[] = "groupnorm_execute";
    spops_norm_options read = {0};
    spops_group_norm_args args = {.mean = mean, .var = var, .gamma = gamma, .beta = beta};

    SPOPS_TRY(read_options(ctx, call, options, &read, &args));
    const void *const given[] = {&x, mean, var, gamma, beta, samples, &out};
    const spops_call_number attributes[] = {
        {.i = groups}, {.f = read.epsilon}, {.i = read.activation}, {.f = read.activation_slope}};
    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_groupnorm, given, attributes));
    SPOPS_TRY(begin(ctx, call, samples, groups, x, &args));
    if (args.samples.num == 0 || args.samples.max_positions == 0) return SPOPS_STATUS_OK;
    SPOPS_REQUIRE_SLOT(ctx, call, group_forward);
    args.out = out;
    return ctx->backend->group_forward(ctx, &args);
}

spops_status spops_groupnorm_execute_backward(spops_context *ctx, const spops_segments *samples,
                                              int32_t groups, spops_matrix grad_out, spops_matrix x,
                                              const void *mean, const void *var, const void *gamma,
                                              const void *beta, const spops_norm_options *options,
                                              spops_matrix grad_x, void *grad_gamma,
                                              void *grad_beta)
{
    static const char call[] = "groupnorm_execute_backward";
    spops_norm_options read = {0};
    spops_group_norm_args args = {.mean = mean,
                                  .var = var,
                                  .gamma = gamma,
                                  .beta = beta,
                                  .grad_out = grad_out,
                                  .grad_x = grad_x,
                                  .grad_gamma = grad_gamma,
                                  .grad_beta = grad_beta};

    SPOPS_TRY(read_options(ctx, call, options, &read, &args));
    const void *const given[] = {&x,        mean,    var,     gamma,      beta,
                                 &grad_out, samples, &grad_x, grad_gamma, grad_beta};
    const spops_call_number attributes[] = {{.i = groups},
                                            {.f = read.epsilon},
                                            {.i = read.activation},
                                            {.i = read.fixed_statistics},
                                            {.f = read.activation_slope}};
    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_groupnorm_backward, given, attributes));
    SPOPS_TRY(begin(ctx, call, samples, groups, x, &args));
    SPOPS_REQUIRE_SLOT(ctx, call, group_backward);
    SPOPS_TRY(get_scratch(ctx, call, samples, &args));
    return ctx->backend->group_backward(ctx, &args);
}
