// SPDX-License-Identifier: Apache-2.0
// Normalisation: argument checks, scratch, then the backend's slots.
#include "spops/norm.h"

#include "call/call_check.h"
#include "core/backend.h"
#include "norm/norm_args.h"

static spops_norm_scratch carve_scratch(int64_t rows, int64_t cols, spops_carver *c)
{
    spops_norm_scratch scratch;
    scratch.partials = spops_carve(c, 2 * SPOPS_NORM_CHUNKS, cols, sizeof(float));
    scratch.sums = spops_carve(c, 2, cols, sizeof(float));
    scratch.row_mean = spops_carve(c, rows, 1, sizeof(float));
    scratch.row_rstd = spops_carve(c, rows, 1, sizeof(float));
    return scratch;
}

size_t spops_norm_scratch_bytes(int64_t max_rows, int64_t max_cols)
{
    spops_carver c = {NULL, 0};
    if (max_rows < 0 || max_cols < 0) return 0;
    (void)carve_scratch(max_rows, max_cols, &c);
    return c.used;
}

static spops_status get_scratch(spops_context *ctx, const char *call, spops_norm_args *args)
{
    // Numbers of f64 take the place of two.
    const int64_t wide = args->x.dtype == SPOPS_DTYPE_F64 ? 2 : 1;
    const int64_t rows = wide * args->x.rows, cols = wide * args->x.cols;
    const size_t bytes = spops_norm_scratch_bytes(rows, cols);
    spops_carver c = {NULL, 0};
    void *base;
    const spops_status status = spops_context_scratch(ctx, call, bytes, &base);

    if (status == SPOPS_STATUS_SCRATCH_TOO_SMALL)
        return spops_fail(ctx, status,
                          "%s: the context's scratch is %zu bytes, expected at least %zu: call "
                          "spops_context_reserve with spops_norm_scratch_bytes(%" PRId64
                          ", %" PRId64 ")",
                          call, ctx->scratch_bytes, bytes, rows, cols);
    SPOPS_TRY(status);
    c.base = base;
    args->scratch = carve_scratch(rows, cols, &c);
    return SPOPS_STATUS_OK;
}

// What all calls take from the options.
static spops_status read_options(spops_context *ctx, const char *call, spops_matrix x,
                                 const spops_norm_options *options, spops_norm_options *read,
                                 spops_norm_args *args)
{
    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(spops_read_options(ctx, call, options, read, sizeof *read));
    // Also where a call has no use for them.
    SPOPS_REQUIRE(ctx, read->momentum >= 0.0f && read->momentum <= 1.0f,
                  "%s: momentum is %g, expected 0 to 1", call, (double)read->momentum);
    SPOPS_TRY(spops_check_flag(ctx, call, "fixed_statistics", read->fixed_statistics));
    args->x = x;
    args->num_rows = read->num_rows;
    args->epsilon = read->epsilon == 0.0f ? 1e-5f : read->epsilon;
    args->momentum = read->momentum == 0.0f ? 0.1f : read->momentum;
    args->activated = spops_activated_of(read->activation, read->activation_slope);
    args->activations = spops_activation_table_of(ctx);
    args->fixed_statistics = read->fixed_statistics;
    return SPOPS_STATUS_OK;
}

static spops_status check_has_columns(spops_context *ctx, const char *call, spops_matrix x)
{
    SPOPS_REQUIRE(ctx, x.cols > 0, "%s: x has no columns, expected 1 or more", call);
    return SPOPS_STATUS_OK;
}

static spops_status check_running(spops_context *ctx, const char *call, spops_matrix x,
                                  const void *running_mean, const void *running_var)
{
    SPOPS_REQUIRE(ctx, x.cols == 0 || (running_mean == NULL) == (running_var == NULL),
                  "%s: one of running_mean and running_var is NULL, expected both or neither",
                  call);
    return SPOPS_STATUS_OK;
}

spops_status spops_batchnorm_statistics_execute(spops_context *ctx, spops_matrix x,
                                                const spops_norm_options *options, void *mean,
                                                void *var, void *running_mean, void *running_var)
{
    static const char call[] = "batchnorm_statistics_execute";
    spops_norm_options read = {0};
    spops_norm_args args = {0};

    SPOPS_TRY(read_options(ctx, call, x, options, &read, &args));
    SPOPS_TRY(check_running(ctx, call, x, running_mean, running_var));
    const void *const given[] = {&x, read.num_rows, mean, var, running_mean, running_var};
    const spops_call_number attributes[] = {{.f = read.momentum}};
    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_batchnorm_statistics, given, attributes));
    if (x.cols == 0) return SPOPS_STATUS_OK;
    SPOPS_REQUIRE_SLOT(ctx, call, norm_statistics);
    SPOPS_TRY(get_scratch(ctx, call, &args));
    args.mean_out = mean;
    args.var_out = var;
    args.running_mean = running_mean;
    args.running_var = running_var;
    return ctx->backend->norm_statistics(ctx, &args);
}

// The two forward passes; layer norm has neither mean nor var.
static spops_status normalise(spops_context *ctx, const char *call, spops_norm_args *args,
                              const void *gamma, const void *beta, spops_matrix out)
{
    SPOPS_REQUIRE_SLOT(ctx, call, norm_forward);
    if (out.rows == 0 || out.cols == 0) return SPOPS_STATUS_OK;
    args->gamma = gamma;
    args->beta = beta;
    args->out = out;
    return ctx->backend->norm_forward(ctx, args);
}

// The two gradients.
static spops_status differentiate(spops_context *ctx, const char *call, spops_norm_args *args,
                                  spops_matrix grad_out, const void *gamma, const void *beta,
                                  spops_matrix grad_x, void *grad_gamma, void *grad_beta)
{
    SPOPS_REQUIRE_SLOT(ctx, call, norm_backward);
    if (grad_x.cols == 0) return SPOPS_STATUS_OK;
    SPOPS_TRY(get_scratch(ctx, call, args));
    args->gamma = gamma;
    args->beta = beta;
    args->grad_out = grad_out;
    args->grad_x = grad_x;
    args->grad_gamma = grad_gamma;
    args->grad_beta = grad_beta;
    return ctx->backend->norm_backward(ctx, args);
}

spops_status spops_batchnorm_execute(spops_context *ctx, spops_matrix x, const void *mean,
                                     const void *var, const void *gamma, const void *beta,
                                     const spops_norm_options *options, spops_matrix out)
{
    static const char call[] = "batchnorm_execute";
    spops_norm_options read = {0};
    spops_norm_args args = {.mean = mean, .var = var};

    SPOPS_TRY(read_options(ctx, call, x, options, &read, &args));
    const void *const given[] = {&x, mean, var, gamma, beta, read.num_rows, &out};
    const spops_call_number attributes[] = {
        {.f = read.epsilon}, {.i = read.activation}, {.f = read.activation_slope}};
    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_batchnorm, given, attributes));
    return normalise(ctx, call, &args, gamma, beta, out);
}

spops_status spops_batchnorm_execute_backward(spops_context *ctx, spops_matrix grad_out,
                                              spops_matrix x, const void *mean, const void *var,
                                              const void *gamma, const void *beta,
                                              const spops_norm_options *options,
                                              spops_matrix grad_x, void *grad_gamma,
                                              void *grad_beta)
{
    static const char call[] = "batchnorm_execute_backward";
    spops_norm_options read = {0};
    spops_norm_args args = {.mean = mean, .var = var};

    SPOPS_TRY(read_options(ctx, call, x, options, &read, &args));
    const void *const given[] = {&x,        mean,          var,     gamma,      beta,
                                 &grad_out, read.num_rows, &grad_x, grad_gamma, grad_beta};
    const spops_call_number attributes[] = {{.f = read.epsilon},
                                            {.i = read.activation},
                                            {.i = read.fixed_statistics},
                                            {.f = read.activation_slope}};
    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_batchnorm_backward, given, attributes));
    return differentiate(ctx, call, &args, grad_out, gamma, beta, grad_x, grad_gamma, grad_beta);
}

// ---- Batch norm of rows in several places --------------------------------------------------------

spops_status spops_batchnorm_merge_execute(spops_context *ctx, const int32_t *chunk_rows,
                                           spops_matrix statistics,
                                           const spops_norm_options *options, void *mean, void *var,
                                           void *running_mean, void *running_var)
{
    static const char call[] = "batchnorm_merge_execute";
    spops_norm_options read = {0};
    spops_norm_args read_args = {0};
    spops_norm_merge_args args = {.chunks = statistics, .chunk_rows = chunk_rows};

    SPOPS_TRY(read_options(ctx, call, statistics, options, &read, &read_args));
    SPOPS_TRY(check_running(ctx, call, statistics, running_mean, running_var));
    const void *const given[] = {&statistics, chunk_rows, mean, var, running_mean, running_var};
    const spops_call_number attributes[] = {{.f = read.momentum}};
    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_batchnorm_merge, given, attributes));
    SPOPS_REQUIRE(ctx, statistics.cols % 2 == 0,
                  "%s: statistics have %" PRId64 " columns, expected an even number", call,
                  statistics.cols);
    if (statistics.cols == 0) return SPOPS_STATUS_OK;
    SPOPS_REQUIRE_SLOT(ctx, call, norm_merge);
    args.momentum = read_args.momentum;
    args.mean_out = mean;
    args.var_out = var;
    args.running_mean = running_mean;
    args.running_var = running_var;
    return ctx->backend->norm_merge(ctx, &args);
}

spops_status spops_batchnorm_sums_execute(spops_context *ctx, spops_matrix grad_out, spops_matrix x,
                                          const void *mean, const void *var, const void *gamma,
                                          const void *beta, const spops_norm_options *options,
                                          void *grad_gamma, void *grad_beta)
{
    static const char call[] = "batchnorm_sums_execute";
    spops_norm_options read = {0};
    spops_norm_args args = {.mean = mean, .var = var};
    spops_matrix none = grad_out;

    SPOPS_TRY(read_options(ctx, call, x, options, &read, &args));
    const void *const given[] = {&x,        mean,          var,        gamma,    beta,
                                 &grad_out, read.num_rows, grad_gamma, grad_beta};
    const spops_call_number attributes[] = {
        {.f = read.epsilon}, {.i = read.activation}, {.f = read.activation_slope}};
    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_batchnorm_sums, given, attributes));
    SPOPS_REQUIRE_SLOT(ctx, call, norm_merge);
    none.data = NULL; // nothing is written there
    return differentiate(ctx, call, &args, grad_out, gamma, beta, none, grad_gamma, grad_beta);
}

spops_status spops_batchnorm_gradient_execute(spops_context *ctx, spops_matrix grad_out,
                                              spops_matrix x, const void *mean, const void *var,
                                              const void *gamma, const void *beta,
                                              const void *grad_gamma, const void *grad_beta,
                                              int64_t total_rows, const spops_norm_options *options,
                                              spops_matrix grad_x)
{
    static const char call[] = "batchnorm_gradient_execute";
    spops_norm_options read = {0};
    spops_norm_args args = {.mean = mean, .var = var, .total_rows = total_rows};

    SPOPS_TRY(read_options(ctx, call, x, options, &read, &args));
    const void *const given[] = {&x,         mean,      var,       gamma,         beta,
                                 grad_gamma, grad_beta, &grad_out, read.num_rows, &grad_x};
    const spops_call_number attributes[] = {{.i = total_rows},
                                            {.f = read.epsilon},
                                            {.i = read.activation},
                                            {.f = read.activation_slope}};
    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_batchnorm_gradient, given, attributes));
    SPOPS_REQUIRE(ctx, read.fixed_statistics == 0, "%s: options->fixed_statistics is 1, expected 0",
                  call);
    SPOPS_REQUIRE_SLOT(ctx, call, norm_merge);
    if (grad_x.rows == 0 || grad_x.cols == 0) return SPOPS_STATUS_OK;
    return differentiate(ctx, call, &args, grad_out, gamma, beta, grad_x,
                         (void *)(uintptr_t)grad_gamma, (void *)(uintptr_t)grad_beta);
}

spops_status spops_layernorm_execute(spops_context *ctx, spops_matrix x, const void *gamma,
                                     const void *beta, const spops_norm_options *options,
                                     spops_matrix out)
{
    static const char call[] = "layernorm_execute";
    spops_norm_options read = {0};
    spops_norm_args args = {0};

    SPOPS_TRY(read_options(ctx, call, x, options, &read, &args));
    const void *const given[] = {&x, gamma, beta, read.num_rows, &out};
    const spops_call_number attributes[] = {
        {.f = read.epsilon}, {.i = read.activation}, {.f = read.activation_slope}};
    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_layernorm, given, attributes));
    SPOPS_TRY(check_has_columns(ctx, call, x));
    return normalise(ctx, call, &args, gamma, beta, out);
}

spops_status spops_rmsnorm_execute(spops_context *ctx, spops_matrix x, const void *gamma,
                                   const spops_norm_options *options, spops_matrix out)
{
    static const char call[] = "rmsnorm_execute";
    spops_norm_options read = {0};
    spops_norm_args args = {.is_rms = true};

    SPOPS_TRY(read_options(ctx, call, x, options, &read, &args));
    const void *const given[] = {&x, gamma, read.num_rows, &out};
    const spops_call_number attributes[] = {
        {.f = read.epsilon}, {.i = read.activation}, {.f = read.activation_slope}};
    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_rmsnorm, given, attributes));
    SPOPS_TRY(check_has_columns(ctx, call, x));
    return normalise(ctx, call, &args, gamma, NULL, out);
}

spops_status spops_rmsnorm_execute_backward(spops_context *ctx, spops_matrix grad_out,
                                            spops_matrix x, const void *gamma,
                                            const spops_norm_options *options, spops_matrix grad_x,
                                            void *grad_gamma)
{
    static const char call[] = "rmsnorm_execute_backward";
    spops_norm_options read = {0};
    spops_norm_args args = {.is_rms = true};

    SPOPS_TRY(read_options(ctx, call, x, options, &read, &args));
    const void *const given[] = {&x, gamma, &grad_out, read.num_rows, &grad_x, grad_gamma};
    const spops_call_number attributes[] = {
        {.f = read.epsilon}, {.i = read.activation}, {.f = read.activation_slope}};
    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_rmsnorm_backward, given, attributes));
    SPOPS_TRY(check_has_columns(ctx, call, x));
    return differentiate(ctx, call, &args, grad_out, gamma, NULL, grad_x, grad_gamma, NULL);
}

spops_status spops_layernorm_execute_backward(spops_context *ctx, spops_matrix grad_out,
                                              spops_matrix x, const void *gamma, const void *beta,
                                              const spops_norm_options *options,
                                              spops_matrix grad_x, void *grad_gamma,
                                              void *grad_beta)
{
    static const char call[] = "layernorm_execute_backward";
    spops_norm_options read = {0};
    spops_norm_args args = {0};

    SPOPS_TRY(read_options(ctx, call, x, options, &read, &args));
    const void *const given[] = {&x,      gamma,      beta,     &grad_out, read.num_rows,
                                 &grad_x, grad_gamma, grad_beta};
    const spops_call_number attributes[] = {
        {.f = read.epsilon}, {.i = read.activation}, {.f = read.activation_slope}};
    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_layernorm_backward, given, attributes));
    SPOPS_TRY(check_has_columns(ctx, call, x));
    return differentiate(ctx, call, &args, grad_out, gamma, beta, grad_x, grad_gamma, grad_beta);
}
