/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Normalisation of rows: batch norm over the rows of a cloud, group and instance norm over the rows of
 * each sample, layer norm and RMS norm over the columns of each row, with an activation in the same
 * pass, and their gradients.
 *
 * How many rows count may be known to the device alone (a voxel set inside a captured graph): the
 * options take a pointer to that number, and the matrices are then as long as the capacity.
 */
#ifndef SPOPS_NORM_H
#define SPOPS_NORM_H

#include "spops/activation.h"
#include "spops/segments.h"

SPOPS_EXTERN_C_BEGIN

/** Choices of the norms of rows. */
typedef struct spops_norm_options {
    size_t struct_size; /* sizeof(spops_norm_options) */
    /* [1] where ctx runs: the first rows that count; NULL: all. Rows after them are neither read
       nor written. A number outside 0 to x.rows is clamped. */
    const int32_t *num_rows;
    float epsilon;  /* added to the variance, finite; 0: 1e-5 */
    float momentum; /* of running statistics, 0 to 1; 0: 0.1 */
    spops_activation activation;
    int32_t
        fixed_statistics;   /* gradient of batch norm: 1 where mean and var are constants, else 0 */
    float activation_slope; /* of LEAKY_RELU, finite; 0: 0.01 */
} spops_norm_options;

SPOPS_DEFINE_DEFAULT(spops_norm_options)

/** Scratch of every call here, for matrices of at most max_rows x max_cols; both count twice for f64. */
SPOPS_API size_t spops_norm_scratch_bytes(int64_t max_rows, int64_t max_cols);

/* clang-format off */
/**
 * Statistics of every column over the n rows that count, and the running ones of training:
 *
 *     mean[c] = sum over r of x[r, c] / n
 *     var[c]  = sum over r of (x[r, c] - mean[c])^2 / n
 *     running_mean[c] = (1 - momentum) running_mean[c] + momentum mean[c]
 *     running_var[c]  = (1 - momentum) running_var[c]  + momentum var[c] n / (n - 1)
 *
 * With n = 0 mean and var are 0 and the running statistics stay; with n = 1 the last factor is 1.
 *
 * x             [rows, cols], f32 f16 bf16; on the CPU f64. Every vector here and below is f32,
 *               and f64 where x is f64.
 * mean, var     [cols].
 * running_*     [cols], both or neither (NULL).
 * options       NULL: defaults.
 *
 * Memory    Where ctx runs. No pointer is kept. No output may overlap another, or any input.
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Scratch   spops_norm_scratch_bytes, reserved in ctx beforehand.
 * Numerics  Rows are taken in chunks that depend on n alone; each has its mean and sum of squared
 *           deviations updated row by row, and chunks are merged in a fixed order: no difference of
 *           large sums, the same bits on every run and thread count. An error of var
 *           is about 2^-23 |mean| / sqrt(var) of var, beside what summing n terms brings: subtract a
 *           constant from a column whose mean is thousands of its deviations. The mean of finite
 *           values is finite; var is infinite where it does not fit f32.
 * Errors    INVALID_ARGUMENT, SCRATCH_TOO_SMALL, NOT_SUPPORTED, CUDA. After any but CUDA, nothing
 *           was enqueued.
 * Threads   One thread at a time per ctx.
 * Source    Ioffe and Szegedy, Batch Normalization, Algorithm 1; updating and merging after Chan,
 *           Golub, LeVeque, Algorithms for Computing the Sample Variance.
 */
SPOPS_API spops_status spops_batchnorm_statistics_execute(spops_context *ctx, spops_matrix x,
                                                          const spops_norm_options *options,
                                                          void *mean, void *var,
                                                          void *running_mean, void *running_var);

/**
 * Normalise columns, in training (mean and var of this batch) and inference (running ones) alike:
 *
 *     out[r, c] = activation((x[r, c] - mean[c]) * gamma[c] / sqrt(var[c] + epsilon) + beta[c])
 *
 * x, out        [rows, cols], f32 f16 bf16, on the CPU f64, of one dtype. out may be x.
 * mean, var     [cols].
 * gamma, beta   [cols], or NULL: 1 and 0.
 *
 * The rest as spops_batchnorm_statistics_execute; needs no scratch.
 */
SPOPS_API spops_status spops_batchnorm_execute(spops_context *ctx, spops_matrix x,
                                               const void *mean, const void *var,
                                               const void *gamma, const void *beta,
                                               const spops_norm_options *options, spops_matrix out);

/**
 * Gradients of spops_batchnorm_execute. With h[r, c] the normalised value (x - mean) / sqrt(var +
 * epsilon) and g the gradient of what the activation takes:
 *
 *     grad_beta[c]  = sum over r of g[r, c]
 *     grad_gamma[c] = sum over r of g[r, c] h[r, c]
 *     grad_x[r, c]  = gamma[c] / sqrt(var[c] + epsilon)
 *                     * (g[r, c] - grad_beta[c] / n - h[r, c] grad_gamma[c] / n)
 *
 * where the two last terms are left out with options->fixed_statistics.
 *
 * grad_out, x, grad_x   [rows, cols], of one dtype. grad_x may be grad_out.
 * grad_gamma, grad_beta [cols], or NULL.
 *
 * The rest as spops_batchnorm_statistics_execute.
 */
SPOPS_API spops_status spops_batchnorm_execute_backward(
    spops_context *ctx, spops_matrix grad_out, spops_matrix x, const void *mean, const void *var,
    const void *gamma, const void *beta, const spops_norm_options *options, spops_matrix grad_x,
    void *grad_gamma, void *grad_beta);

/**
 * Batch norm of rows that lie in several places (chunks of a partition, spops/halo.h; devices): each has its
 * own statistics, by spops_batchnorm_statistics_execute without running ones, and this merges them in their
 * order into those of all rows, and updates the running ones.
 *
 * chunk_rows    [chunks] i32: the rows of each, 0 or more.
 * statistics    [chunks, 2 cols], f32 f64: mean [cols] and var [cols] of each. Of a chunk without rows they
 *               do not count.
 * options       momentum counts; NULL: defaults.
 * mean, var     [cols] of the dtype of statistics.
 * running_*     [cols], both or neither (NULL).
 *
 * Scratch       None.
 * Numerics      The bits depend on the arguments alone.
 * The rest as spops_batchnorm_statistics_execute.
 */
SPOPS_API spops_status spops_batchnorm_merge_execute(spops_context *ctx, const int32_t *chunk_rows,
                                                     spops_matrix statistics,
                                                     const spops_norm_options *options, void *mean,
                                                     void *var, void *running_mean,
                                                     void *running_var);

/**
 * The sums of spops_batchnorm_execute_backward over the rows that there are, alone: of a chunk, to be added
 * to those of the others.
 *
 * grad_gamma, grad_beta [cols], both.
 *
 * The rest as spops_batchnorm_execute_backward.
 */
SPOPS_API spops_status spops_batchnorm_sums_execute(spops_context *ctx, spops_matrix grad_out,
                                                    spops_matrix x, const void *mean,
                                                    const void *var, const void *gamma,
                                                    const void *beta,
                                                    const spops_norm_options *options,
                                                    void *grad_gamma, void *grad_beta);

/**
 * grad_x of spops_batchnorm_execute_backward from the sums over all rows.
 *
 * grad_gamma, grad_beta [cols], both: the sums.
 * total_rows            n of the formula, 1 or more: the rows that the sums are of, of which x has a part.
 * options               fixed_statistics is 0: where they are constants, no sums are needed.
 *
 * The rest as spops_batchnorm_execute_backward.
 */
SPOPS_API spops_status spops_batchnorm_gradient_execute(
    spops_context *ctx, spops_matrix grad_out, spops_matrix x, const void *mean, const void *var,
    const void *gamma, const void *beta, const void *grad_gamma, const void *grad_beta,
    int64_t total_rows, const spops_norm_options *options, spops_matrix grad_x);

/**
 * Normalise every row over its columns:
 *
 *     out[r, c] = activation((x[r, c] - mean[r]) * gamma[c] / sqrt(var[r] + epsilon) + beta[c])
 *
 * with mean and variance (over cols, not cols - 1) of the row. x needs at least one column.
 *
 * The rest as spops_batchnorm_execute.
 * Source    Ba, Kiros, Hinton, Layer Normalization, section 3.
 */
SPOPS_API spops_status spops_layernorm_execute(spops_context *ctx, spops_matrix x,
                                               const void *gamma, const void *beta,
                                               const spops_norm_options *options, spops_matrix out);

/**
 * Gradients of spops_layernorm_execute. With h the normalised value, g the gradient of what
 * the activation takes and q = g gamma:
 *
 *     grad_beta[c]  = sum over r of g[r, c]
 *     grad_gamma[c] = sum over r of g[r, c] h[r, c]
 *     grad_x[r, c]  = (q[r, c] - mean over c of q - h[r, c] * mean over c of q h)
 *                     / sqrt(var[r] + epsilon)
 *
 * The rest as spops_batchnorm_execute_backward.
 */
SPOPS_API spops_status spops_layernorm_execute_backward(
    spops_context *ctx, spops_matrix grad_out, spops_matrix x, const void *gamma,
    const void *beta, const spops_norm_options *options, spops_matrix grad_x, void *grad_gamma,
    void *grad_beta);

/**
 * Normalise every row by the root of the mean of its squares:
 *
 *     out[r, c] = activation(x[r, c] * gamma[c] / sqrt(mean over c of x[r, c]^2 + epsilon))
 *
 * A row whose squares are beyond f32 becomes 0. The rest as spops_layernorm_execute.
 * Source    Zhang and Sennrich, Root Mean Square Layer Normalization, equation 4.
 */
SPOPS_API spops_status spops_rmsnorm_execute(spops_context *ctx, spops_matrix x, const void *gamma,
                                             const spops_norm_options *options, spops_matrix out);

/**
 * Gradients of spops_rmsnorm_execute: as those of layer norm, without the mean of q.
 *
 * The rest as spops_layernorm_execute_backward.
 */
SPOPS_API spops_status spops_rmsnorm_execute_backward(spops_context *ctx, spops_matrix grad_out,
                                                      spops_matrix x, const void *gamma,
                                                      const spops_norm_options *options,
                                                      spops_matrix grad_x, void *grad_gamma);

/** Choices of spops_addnorm_execute. */
typedef struct spops_addnorm_options {
    size_t struct_size;          /* sizeof(spops_addnorm_options) */
    const int32_t *num_rows;     /* as of spops_norm_options */
    float epsilon;               /* of both norms, finite; 0: 1e-5 */
    spops_activation activation; /* of out */
    float activation_slope;      /* of LEAKY_RELU, finite; 0: 0.01 */
    int32_t norm_y;              /* 1: y is normalised before it is added */
    int32_t rms;                 /* 1: norms are RMS norms, else layer norms */
    int32_t reserved;            /* 0 */
} spops_addnorm_options;

SPOPS_DEFINE_DEFAULT(spops_addnorm_options)

/**
 * Add a branch to the rows that it leaves, and normalise the sum for the next one, in one pass:
 *
 *     total[r, c] = x[r, c] + y[r, c]
 *     out[r, c] = activation(norm(total)[r, c])
 *
 * where norm is that of spops_layernorm_execute, or of spops_rmsnorm_execute with beta added, by gamma and
 * beta. With options->norm_y the total is x + norm(y), by y_gamma and y_beta, which else are not read.
 *
 * x, y, total, out  [rows, cols], of one dtype. total may be x, and out may be y.
 * gamma, beta, y_gamma, y_beta   [cols], or NULL: 1 and 0.
 *
 * Numerics  The bits of the calls of which it takes the place, one after the other: norm of y, sum, norm
 *           of the sum, each rounded to the dtype.
 * The rest as spops_layernorm_execute.
 */
SPOPS_API spops_status spops_addnorm_execute(spops_context *ctx, spops_matrix x, spops_matrix y,
                                             const void *y_gamma, const void *y_beta,
                                             const void *gamma, const void *beta,
                                             const spops_addnorm_options *options,
                                             spops_matrix total, spops_matrix out);

/**
 * Gradients of spops_addnorm_execute. With s the gradient of norm(total) for grad_out:
 *
 *     grad_x = s + grad_total
 *     grad_y = grad_x, or, with options->norm_y, the gradient of norm(y) for grad_x
 *
 * Those of gamma and beta are those of the norms; of y_gamma and y_beta without norm_y they are 0.
 *
 * grad_out, total, y  [rows, cols], of one dtype: y as it was given, total as it came.
 * grad_total          [rows, cols], or NULL: the total has no other reader.
 * grad_x, grad_y    [rows, cols]. grad_x may be grad_total. Without norm_y grad_y may be grad_x.
 * grad_y_gamma, grad_y_beta, grad_gamma, grad_beta   [cols], or NULL.
 *
 * Scratch   spops_norm_scratch_bytes.
 * The rest as spops_layernorm_execute_backward.
 */
SPOPS_API spops_status spops_addnorm_execute_backward(
    spops_context *ctx, spops_matrix grad_out, const spops_matrix *grad_total, spops_matrix total,
    spops_matrix y, const void *y_gamma, const void *y_beta, const void *gamma, const void *beta,
    const spops_addnorm_options *options, spops_matrix grad_x, spops_matrix grad_y,
    void *grad_y_gamma, void *grad_y_beta, void *grad_gamma, void *grad_beta);

/** Scratch of the calls of group norm with samples, for matrices of at most max_cols; 0 for NULL. */
SPOPS_API size_t spops_groupnorm_scratch_bytes(const spops_segments *samples, int64_t max_cols);

/**
 * Statistics of every sample and group of columns. Sample s is the rows of segment s of samples, group k
 * the columns k cols / groups to (k + 1) cols / groups - 1, and m the rows of s times cols / groups:
 *
 *     mean[s groups + k] = sum over the rows r and columns c of both of x[r, c] / m
 *     var[s groups + k]  = sum over them of (x[r, c] - mean)^2 / m
 *
 * groups = cols is instance norm, groups = 1 with a sample is layer norm over a cloud. Both are 0 of a
 * sample without a row.
 *
 * samples       Which rows belong to which sample: by offsets or keys (spops_segments_create,
 *               spops_segments_create_from_keys), or of a set of coordinates
 *               (spops_pool_segments of spops_pool_create_global); a plan into a capacity too. A row
 *               is in at most one term: else which term's value it has is not said.
 * groups        1 to cols; cols is a multiple of it.
 * x             [samples' rows, cols], f32 f16 bf16; on the CPU f64.
 * mean, var     [samples' segments * groups], f32, and f64 where x is f64. Several devices that have
 *               rows of the same samples merge theirs before they normalise.
 *
 * Memory    Where ctx runs. No pointer is kept. No output may overlap another, or any input.
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Scratch   spops_groupnorm_scratch_bytes, reserved in ctx beforehand; for f64 of twice the columns.
 * Numerics  As spops_batchnorm_statistics_execute. The rows of a sample are taken in chunks, whose
 *           number depends on the sample's rows alone: where a sample stands in a batch changes no bit.
 * Errors    INVALID_ARGUMENT, SCRATCH_TOO_SMALL, NOT_SUPPORTED, CUDA. After any but CUDA, nothing
 *           was enqueued.
 * Threads   One thread at a time per ctx; samples may be shared.
 * Source    Wu and He, Group Normalization; Ulyanov et al., Instance Normalization.
 */
SPOPS_API spops_status spops_groupnorm_statistics_execute(spops_context *ctx,
                                                          const spops_segments *samples,
                                                          int32_t groups, spops_matrix x,
                                                          void *mean, void *var);

/**
 * Normalise the rows of every sample, with s the sample of r and k the group of c:
 *
 *     out[r, c] = activation((x[r, c] - mean[s, k]) * gamma[c] / sqrt(var[s, k] + epsilon) + beta[c])
 *
 * x, out        [samples' rows, cols], of one dtype. out may be x. Rows of no sample are neither read
 *               nor written.
 * mean, var     [samples' segments * groups].
 * gamma, beta   [cols], or NULL: 1 and 0.
 * options       num_rows is NULL: samples know their rows.
 *
 * The rest as spops_groupnorm_statistics_execute; needs no scratch.
 */
SPOPS_API spops_status spops_groupnorm_execute(spops_context *ctx, const spops_segments *samples,
                                               int32_t groups, spops_matrix x, const void *mean,
                                               const void *var, const void *gamma,
                                               const void *beta, const spops_norm_options *options,
                                               spops_matrix out);

/**
 * Gradients of spops_groupnorm_execute. With h the normalised value, g the gradient of what the
 * activation takes, q = g gamma, and means over the m values of a sample and group:
 *
 *     grad_beta[c]  = sum over r of g[r, c]
 *     grad_gamma[c] = sum over r of g[r, c] h[r, c]
 *     grad_x[r, c]  = (q[r, c] - mean of q - h[r, c] * mean of q h) / sqrt(var[s, k] + epsilon)
 *
 * where the two means are left out with options->fixed_statistics.
 *
 * grad_out, x, grad_x   [samples' rows, cols], of one dtype. grad_x may be grad_out.
 * grad_gamma, grad_beta [cols], or NULL.
 *
 * The rest as spops_groupnorm_statistics_execute.
 */
SPOPS_API spops_status spops_groupnorm_execute_backward(
    spops_context *ctx, const spops_segments *samples, int32_t groups, spops_matrix grad_out,
    spops_matrix x, const void *mean, const void *var, const void *gamma, const void *beta,
    const spops_norm_options *options, spops_matrix grad_x, void *grad_gamma, void *grad_beta);
/* clang-format on */

SPOPS_EXTERN_C_END

#endif
