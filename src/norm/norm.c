// SPDX-License-Identifier: Apache-2.0
// Normalisation: argument checks, scratch, then the backend's slots.
#include "spops/norm.h"

#include <math.h>

#include "core/backend.h"
#include "core/check.h"
#include "core/matrix.h"
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
    const size_t bytes = spops_norm_scratch_bytes(args->x.rows, args->x.cols);
    spops_carver c = {NULL, 0};
    void *base;

    SPOPS_TRY(spops_context_scratch(ctx, call, bytes, &base));
    c.base = base;
    args->scratch = carve_scratch(args->x.rows, args->x.cols, &c);
    return SPOPS_STATUS_OK;
}

// x and what all calls take from the options.
static spops_status read_common(spops_context *ctx, const char *call, spops_matrix x,
                                const spops_norm_options *options, spops_norm_args *args)
{
    spops_norm_options read = {0};

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(spops_read_options(ctx, call, options, &read, sizeof read));
    SPOPS_TRY(spops_check_matrix(ctx, call, "x", x, x.rows, x.cols, SPOPS_DTYPES_FLOAT));
    SPOPS_REQUIRE(ctx, read.epsilon >= 0.0f && isfinite(read.epsilon),
                  "%s: options->epsilon is %g, expected a finite number, 0 or more", call,
                  (double)read.epsilon);
    SPOPS_REQUIRE(ctx, read.momentum >= 0.0f && read.momentum <= 1.0f,
                  "%s: options->momentum is %g, expected 0 to 1", call, (double)read.momentum);
    SPOPS_REQUIRE(
        ctx, read.activation == SPOPS_ACTIVATION_NONE || read.activation == SPOPS_ACTIVATION_RELU,
        "%s: options->activation is %d, expected 0 or 1", call, (int)read.activation);
    SPOPS_TRY(spops_check_flag(ctx, call, "options->fixed_statistics", read.fixed_statistics));
    SPOPS_TRY(
        spops_check_aligned(ctx, call, "options->num_rows", read.num_rows, sizeof *read.num_rows));
    args->x = x;
    args->num_rows = read.num_rows;
    args->epsilon = read.epsilon == 0.0f ? 1e-5f : read.epsilon;
    args->momentum = read.momentum == 0.0f ? 0.1f : read.momentum;
    args->activation = read.activation;
    args->fixed_statistics = read.fixed_statistics;
    return SPOPS_STATUS_OK;
}

static spops_matrix column_vector(const float *v, int64_t cols)
{
    return spops_matrix_dense((void *)(uintptr_t)v, 1, cols, SPOPS_DTYPE_F32);
}

// A vector of cols numbers that must be there.
static spops_status check_vector(spops_context *ctx, const char *call, const char *name,
                                 const float *v, int64_t cols)
{
    return spops_check_matrix(ctx, call, name, column_vector(v, cols), 1, cols,
                              1u << SPOPS_DTYPE_F32);
}

static spops_status check_optional(spops_context *ctx, const char *call, const char *name,
                                   const float *v, int64_t cols)
{
    return v == NULL ? SPOPS_STATUS_OK : check_vector(ctx, call, name, v, cols);
}

static spops_argument vector_argument(const char *name, const float *v, int64_t cols)
{
    return spops_array_argument(name, v, cols, SPOPS_DTYPE_F32);
}

static spops_argument num_rows_argument(const spops_norm_args *args)
{
    return spops_array_argument("options->num_rows", args->num_rows, 1, SPOPS_DTYPE_I32);
}

// m has x's shape and dtype, and is x itself or apart from it.
static spops_status check_like(spops_context *ctx, const char *call, const char *name,
                               spops_matrix m, const char *other_name, spops_matrix other)
{
    SPOPS_TRY(spops_check_matrix(ctx, call, name, m, other.rows, other.cols, 1u << other.dtype));
    if (m.data == other.data && (m.rows <= 1 || m.row_stride == other.row_stride))
        return SPOPS_STATUS_OK;
    return spops_check_no_overlap(ctx, call, name, m, other_name, other);
}

spops_status spops_batchnorm_statistics_execute(spops_context *ctx, spops_matrix x,
                                                const spops_norm_options *options, float *mean,
                                                float *var, float *running_mean, float *running_var)
{
    static const char call[] = "batchnorm_statistics_execute";
    spops_norm_args args = {0};

    SPOPS_TRY(read_common(ctx, call, x, options, &args));
    if (x.cols == 0) return SPOPS_STATUS_OK;
    SPOPS_REQUIRE(ctx, mean != NULL, "%s: mean is NULL", call);
    SPOPS_REQUIRE(ctx, var != NULL, "%s: var is NULL", call);
    SPOPS_REQUIRE(ctx, (running_mean == NULL) == (running_var == NULL),
                  "%s: one of running_mean and running_var is NULL, expected both or neither",
                  call);
    const spops_argument ins[] = {spops_plain_argument("x", x), num_rows_argument(&args)};
    const spops_argument outs[] = {vector_argument("mean", mean, x.cols),
                                   vector_argument("var", var, x.cols),
                                   vector_argument("running_mean", running_mean, x.cols),
                                   vector_argument("running_var", running_var, x.cols)};
    SPOPS_TRY(check_vector(ctx, call, "mean", mean, x.cols));
    SPOPS_TRY(check_vector(ctx, call, "var", var, x.cols));
    SPOPS_TRY(check_optional(ctx, call, "running_mean", running_mean, x.cols));
    SPOPS_TRY(check_optional(ctx, call, "running_var", running_var, x.cols));
    SPOPS_TRY(spops_check_apart(ctx, call, outs, 4, ins, 2));
    SPOPS_REQUIRE_SLOT(ctx, call, norm_statistics);
    SPOPS_TRY(get_scratch(ctx, call, &args));
    args.mean_out = mean;
    args.var_out = var;
    args.running_mean = running_mean;
    args.running_var = running_var;
    return ctx->backend->norm_statistics(ctx, &args);
}

// What is read of columns, and how many rows count.
#define NUM_PARAMS 5
static void list_params(const spops_norm_args *args, const float *gamma, const float *beta,
                        spops_argument *ins)
{
    const int64_t cols = args->x.cols;
    ins[0] = vector_argument("gamma", gamma, cols);
    ins[1] = vector_argument("beta", beta, cols);
    ins[2] = vector_argument("mean", args->mean, cols);
    ins[3] = vector_argument("var", args->var, cols);
    ins[4] = num_rows_argument(args);
}

// The two forward passes; layer norm has neither mean nor var.
static spops_status normalise(spops_context *ctx, const char *call, spops_norm_args *args,
                              const float *gamma, const float *beta, spops_matrix out)
{
    const spops_matrix x = args->x;
    const spops_argument written = spops_plain_argument("out", out);
    spops_argument ins[NUM_PARAMS];

    SPOPS_TRY(check_optional(ctx, call, "gamma", gamma, x.cols));
    SPOPS_TRY(check_optional(ctx, call, "beta", beta, x.cols));
    SPOPS_TRY(check_like(ctx, call, "out", out, "x", x));
    list_params(args, gamma, beta, ins);
    SPOPS_TRY(spops_check_apart(ctx, call, &written, 1, ins, NUM_PARAMS));
    SPOPS_REQUIRE_SLOT(ctx, call, norm_forward);
    if (x.rows == 0 || x.cols == 0) return SPOPS_STATUS_OK;
    args->gamma = gamma;
    args->beta = beta;
    args->out = out;
    return ctx->backend->norm_forward(ctx, args);
}

// The two gradients.
static spops_status differentiate(spops_context *ctx, const char *call, spops_norm_args *args,
                                  spops_matrix grad_out, const float *gamma, const float *beta,
                                  spops_matrix grad_x, float *grad_gamma, float *grad_beta)
{
    const spops_matrix x = args->x;
    const spops_argument outs[] = {vector_argument("grad_gamma", grad_gamma, x.cols),
                                   vector_argument("grad_beta", grad_beta, x.cols),
                                   spops_plain_argument("grad_x", grad_x)};
    spops_argument ins[NUM_PARAMS + 2];

    SPOPS_TRY(check_optional(ctx, call, "gamma", gamma, x.cols));
    SPOPS_TRY(check_optional(ctx, call, "beta", beta, x.cols));
    SPOPS_TRY(spops_check_matrix(ctx, call, "grad_out", grad_out, x.rows, x.cols, 1u << x.dtype));
    SPOPS_TRY(check_like(ctx, call, "grad_x", grad_x, "grad_out", grad_out));
    SPOPS_TRY(check_optional(ctx, call, "grad_gamma", grad_gamma, x.cols));
    SPOPS_TRY(check_optional(ctx, call, "grad_beta", grad_beta, x.cols));
    list_params(args, gamma, beta, ins);
    ins[NUM_PARAMS] = spops_plain_argument("x", x);
    ins[NUM_PARAMS + 1] = spops_plain_argument("grad_out", grad_out); // which grad_x may be
    SPOPS_TRY(spops_check_apart(ctx, call, &outs[2], 1, ins, NUM_PARAMS + 1));
    SPOPS_TRY(spops_check_apart(ctx, call, outs, 2, ins, NUM_PARAMS + 2));
    SPOPS_TRY(spops_check_apart(ctx, call, outs, 2, &outs[2], 1));
    SPOPS_REQUIRE_SLOT(ctx, call, norm_backward);
    if (x.cols == 0) return SPOPS_STATUS_OK;
    SPOPS_TRY(get_scratch(ctx, call, args));
    args->gamma = gamma;
    args->beta = beta;
    args->grad_out = grad_out;
    args->grad_x = grad_x;
    args->grad_gamma = grad_gamma;
    args->grad_beta = grad_beta;
    return ctx->backend->norm_backward(ctx, args);
}

// mean and var of batch norm.
static spops_status read_statistics(spops_context *ctx, const char *call, const float *mean,
                                    const float *var, spops_norm_args *args)
{
    SPOPS_TRY(check_vector(ctx, call, "mean", mean, args->x.cols));
    SPOPS_TRY(check_vector(ctx, call, "var", var, args->x.cols));
    args->mean = mean;
    args->var = var;
    return SPOPS_STATUS_OK;
}

spops_status spops_batchnorm_execute(spops_context *ctx, spops_matrix x, const float *mean,
                                     const float *var, const float *gamma, const float *beta,
                                     const spops_norm_options *options, spops_matrix out)
{
    static const char call[] = "batchnorm_execute";
    spops_norm_args args = {0};

    SPOPS_TRY(read_common(ctx, call, x, options, &args));
    SPOPS_TRY(read_statistics(ctx, call, mean, var, &args));
    return normalise(ctx, call, &args, gamma, beta, out);
}

spops_status spops_batchnorm_execute_backward(spops_context *ctx, spops_matrix grad_out,
                                              spops_matrix x, const float *mean, const float *var,
                                              const float *gamma, const float *beta,
                                              const spops_norm_options *options,
                                              spops_matrix grad_x, float *grad_gamma,
                                              float *grad_beta)
{
    static const char call[] = "batchnorm_execute_backward";
    spops_norm_args args = {0};

    SPOPS_TRY(read_common(ctx, call, x, options, &args));
    SPOPS_TRY(read_statistics(ctx, call, mean, var, &args));
    return differentiate(ctx, call, &args, grad_out, gamma, beta, grad_x, grad_gamma, grad_beta);
}

static spops_status check_has_columns(spops_context *ctx, const char *call, spops_matrix x)
{
    SPOPS_REQUIRE(ctx, x.cols > 0, "%s: x has no columns, expected 1 or more", call);
    return SPOPS_STATUS_OK;
}

spops_status spops_layernorm_execute(spops_context *ctx, spops_matrix x, const float *gamma,
                                     const float *beta, const spops_norm_options *options,
                                     spops_matrix out)
{
    static const char call[] = "layernorm_execute";
    spops_norm_args args = {0};

    SPOPS_TRY(read_common(ctx, call, x, options, &args));
    SPOPS_TRY(check_has_columns(ctx, call, x));
    return normalise(ctx, call, &args, gamma, beta, out);
}

spops_status spops_layernorm_execute_backward(spops_context *ctx, spops_matrix grad_out,
                                              spops_matrix x, const float *gamma, const float *beta,
                                              const spops_norm_options *options,
                                              spops_matrix grad_x, float *grad_gamma,
                                              float *grad_beta)
{
    static const char call[] = "layernorm_execute_backward";
    spops_norm_args args = {0};

    SPOPS_TRY(read_common(ctx, call, x, options, &args));
    SPOPS_TRY(check_has_columns(ctx, call, x));
    return differentiate(ctx, call, &args, grad_out, gamma, beta, grad_x, grad_gamma, grad_beta);
}
