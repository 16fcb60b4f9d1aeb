// SPDX-License-Identifier: Apache-2.0
// Normalisation: argument checks, scratch, then the backend's slots.
#include "spops/norm.h"

#include "activation/activation_args.h"
#include "call/call_check.h"
#include "core/backend.h"
#include "norm/addnorm_args.h"

static spops_norm_scratch carve_scratch(int64_t rows, int64_t cols, spops_carver *c)
{
    spops_norm_scratch scratch;
    scratch.partials = spops_carve(c, 2 * SPOPS_NORM_CHUNKS, cols, sizeof(float));
    scratch.more_partials = spops_carve(c, 2 * SPOPS_NORM_CHUNKS, cols, sizeof(float));
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

// ---- A sum and its norm -------------------------------------------------------------------------

static spops_status read_addnorm(spops_context *ctx, const char *call, spops_matrix total,
                                 const spops_addnorm_options *options, spops_addnorm_options *read,
                                 spops_norm_args *args)
{
    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(spops_read_options(ctx, call, options, read, sizeof *read));
    SPOPS_TRY(spops_check_flag(ctx, call, "norm_y", read->norm_y));
    SPOPS_TRY(spops_check_flag(ctx, call, "rms", read->rms));
    SPOPS_TRY(spops_check_reserved(ctx, call, read->reserved));
    args->x = total;
    args->num_rows = read->num_rows;
    args->epsilon = read->epsilon == 0.0f ? 1e-5f : read->epsilon;
    args->activated = spops_activated_of(read->activation, read->activation_slope);
    args->activations = spops_activation_table_of(ctx);
    args->is_rms = read->rms == 1;
    return SPOPS_STATUS_OK;
}

// Layer or RMS norm of y as `of` says it of the total, without its activation.
static spops_norm_args norm_of_y(const spops_norm_args *of, spops_matrix y, const void *gamma,
                                 const void *beta)
{
    spops_norm_args args = *of;
    args.x = y;
    args.gamma = gamma;
    args.beta = beta;
    args.activated = spops_activated_of(SPOPS_ACTIVATION_NONE, 0);
    args.grad_more.data = NULL;
    args.leaves_sums = false;
    return args;
}

// As chunk_elements of kernels says.
static bool is_wide(spops_matrix m)
{
    const uint64_t stride = m.rows <= 1 ? 0 : (uint64_t)m.row_stride * spops_dtype_bytes(m.dtype);
    return (uintptr_t)m.data % 16 == 0 && stride % 16 == 0 && stride >> 32 == 0;
}

// Whether a warp can hold a row, by pieces of 16 bytes or numbers.
static bool is_held(const spops_addnorm_args *a)
{
    const int64_t piece = 16 / (int64_t)spops_dtype_bytes(a->x.dtype);
    const bool wide = piece <= SPOPS_NORM_HELD && is_wide(a->x) && is_wide(a->y) &&
                      is_wide(a->norm.x) && is_wide(a->norm.out);
    return a->x.cols <= 32 * (wide ? SPOPS_NORM_HELD : 1);
}

// out = the norm of y; total = x + out or x + y; out = the norm of the total.
static spops_status run_in_turn(spops_context *ctx, const spops_addnorm_args *a)
{
    const bool norm_y = a->norm_y;
    spops_norm_args of_y = norm_of_y(&a->norm, a->y, a->y_gamma, a->y_beta);
    const spops_activation_args add = {.x = a->x,
                                       .addend = norm_y ? a->norm.out : a->y,
                                       .out = a->norm.x,
                                       .num_rows = a->norm.num_rows,
                                       .addend_scale = 1.0f,
                                       .how = of_y.activated};
    if (norm_y) SPOPS_TRY(ctx->backend->norm_forward(ctx, &of_y));
    SPOPS_TRY(ctx->backend->activation(ctx, &add));
    return ctx->backend->norm_forward(ctx, &a->norm);
}

spops_status spops_addnorm_execute(spops_context *ctx, spops_matrix x, spops_matrix y,
                                   const void *y_gamma, const void *y_beta, const void *gamma,
                                   const void *beta, const spops_addnorm_options *options,
                                   spops_matrix total, spops_matrix out)
{
    static const char call[] = "addnorm_execute";
    spops_addnorm_options read = {0};
    spops_addnorm_args args = {.x = x, .y = y, .y_gamma = y_gamma, .y_beta = y_beta};

    SPOPS_TRY(read_addnorm(ctx, call, total, options, &read, &args.norm));
    const void *const given[] = {&x, &y, y_gamma, y_beta, gamma, beta, read.num_rows, &total, &out};
    const spops_call_number attributes[] = {{.i = read.norm_y},
                                            {.i = read.rms},
                                            {.f = read.epsilon},
                                            {.i = read.activation},
                                            {.f = read.activation_slope}};
    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_addnorm, given, attributes));
    SPOPS_TRY(check_has_columns(ctx, call, x));
    SPOPS_REQUIRE_SLOT(ctx, call, norm_forward);
    SPOPS_REQUIRE_SLOT(ctx, call, activation);
    if (x.rows == 0) return SPOPS_STATUS_OK;
    args.norm.gamma = gamma;
    args.norm.beta = beta;
    args.norm.out = out;
    args.norm_y = read.norm_y == 1;
    if (ctx->backend->addnorm != NULL && is_held(&args)) return ctx->backend->addnorm(ctx, &args);
    return run_in_turn(ctx, &args);
}

// The gradient of y from that of the total, and those of its norm.
static spops_status differentiate_y(spops_context *ctx, spops_norm_args *args, bool norm_y,
                                    spops_matrix grad_y, void *grad_gamma, void *grad_beta)
{
    const spops_activation_args copy = {
        .x = args->grad_out, .out = grad_y, .num_rows = args->num_rows, .how = args->activated};
    args->grad_gamma = grad_gamma;
    args->grad_beta = grad_beta;
    args->grad_x = grad_y;
    if (!norm_y && grad_y.rows > 0 && grad_y.data != args->grad_out.data)
        SPOPS_TRY(ctx->backend->activation(ctx, &copy));
    if (!norm_y && grad_gamma == NULL && grad_beta == NULL) return SPOPS_STATUS_OK;
    // The sums of no rows are 0.
    if (!norm_y) args->x.rows = args->grad_out.rows = args->grad_x.rows = 0;
    return ctx->backend->norm_backward(ctx, args);
}

spops_status spops_addnorm_execute_backward(
    spops_context *ctx, spops_matrix grad_out, const spops_matrix *grad_total, spops_matrix total,
    spops_matrix y, const void *y_gamma, const void *y_beta, const void *gamma, const void *beta,
    const spops_addnorm_options *options, spops_matrix grad_x, spops_matrix grad_y,
    void *grad_y_gamma, void *grad_y_beta, void *grad_gamma, void *grad_beta)
{
    static const char call[] = "addnorm_execute_backward";
    spops_addnorm_options read = {0};
    spops_norm_args args = {0};

    SPOPS_TRY(read_addnorm(ctx, call, total, options, &read, &args));
    const void *const given[] = {&total,  &y,           y_gamma,     y_beta,        gamma,
                                 beta,    grad_total,   &grad_out,   read.num_rows, &grad_x,
                                 &grad_y, grad_y_gamma, grad_y_beta, grad_gamma,    grad_beta};
    const spops_call_number attributes[] = {{.i = read.norm_y},
                                            {.i = read.rms},
                                            {.f = read.epsilon},
                                            {.i = read.activation},
                                            {.f = read.activation_slope}};
    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_addnorm_backward, given, attributes));
    SPOPS_TRY(check_has_columns(ctx, call, total));
    SPOPS_REQUIRE(ctx, read.norm_y == 0 || grad_y.rows == 0 || grad_y.data != grad_x.data,
                  "%s: grad_y is grad_x and norm_y is 1, expected separate memory", call);
    SPOPS_REQUIRE_SLOT(ctx, call, activation);
    if (grad_total != NULL) args.grad_more = *grad_total;
    args.leaves_sums = read.norm_y == 1;
    SPOPS_TRY(
        differentiate(ctx, call, &args, grad_out, gamma, beta, grad_x, grad_gamma, grad_beta));
    spops_norm_args of_y = norm_of_y(&args, y, y_gamma, y_beta);
    of_y.grad_out = grad_x;
    of_y.scratch.partials = args.scratch.more_partials;
    if (args.leaves_sums) of_y.before = &args;
    return differentiate_y(ctx, &of_y, read.norm_y == 1, grad_y, grad_y_gamma, grad_y_beta);
}
