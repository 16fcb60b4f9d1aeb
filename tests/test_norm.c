// SPDX-License-Identifier: Apache-2.0
// Batch norm, layer norm and RMS norm against FP64, forward and backward, with row counts that only the
// device knows; running statistics; what is refused.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "spops/norm.h"
#include "support/device.h"
#include "tests/ref/ref_norm.h"
#include "tests/support/activation.h"
#include "tests/support/launch.h"
#include "tests/support/params.h"
#include "tests/support/relation.h"

typedef enum norm_kind {
    STATISTICS,
    BATCH_FORWARD,
    BATCH_BACKWARD,
    LAYER_FORWARD,
    LAYER_BACKWARD,
    RMS_FORWARD,
    RMS_BACKWARD,
    NUM_KINDS
} norm_kind;
static const char *const kind_names[] = {"statistics",     "batch", "batch backward", "layer",
                                         "layer backward", "rms",   "rms backward"};

typedef struct norm_case {
    norm_kind kind;
    int64_t rows, capacity, cols;
    spops_dtype dtype;
    bool affine, in_place, fixed_statistics, large_mean;
    ref_activation activation;
    float epsilon; // 0: the default
    uint64_t stream;
    int32_t *num_rows;        // where the backend runs, or NULL
    guarded x, grad_out, out; // out: also grad_x
    guarded mean, var, gamma, beta, grad_gamma, grad_beta;
    ref_tensor expected, expected_gamma, expected_beta;
    double *mean_bound, *var_bound;
} norm_case;

static bool is_batch(const norm_case *c)
{
    return c->kind == BATCH_FORWARD || c->kind == BATCH_BACKWARD;
}
static bool is_backward(const norm_case *c)
{
    return c->kind == BATCH_BACKWARD || c->kind == LAYER_BACKWARD || c->kind == RMS_BACKWARD;
}
static bool is_rms(const norm_case *c)
{
    return c->kind == RMS_FORWARD || c->kind == RMS_BACKWARD;
}

// Whose derivative jumps at 0.
static bool has_kink(const norm_case *c)
{
    return c->activation.kind == SPOPS_ACTIVATION_RELU ||
           c->activation.kind == SPOPS_ACTIVATION_LEAKY_RELU;
}

static double uniform(test_rng *rng, double low, double high)
{
    return low + (high - low) * (double)test_rng_below(rng, 1 << 20) / (1 << 20);
}

// cols values of [low, high) into a vector, uploaded; returned as the doubles they became.
static double *fill_vector(guarded *v, test_rng *rng, double low, double high)
{
    double *values = (double *)malloc((size_t)(v->view.cols + 1) * sizeof *values);
    for (int64_t c = 0; c < v->view.cols; ++c) {
        guarded_set(v, 0, c, uniform(rng, low, high));
        values[c] = guarded_get(v, 0, c);
    }
    guarded_upload(v);
    return values;
}

static double *fill_matrix(guarded *m, test_rng *rng, double offset)
{
    double *values = (double *)malloc((size_t)(m->view.rows * m->view.cols + 1) * sizeof *values);
    for (int64_t r = 0; r < m->view.rows; ++r) {
        for (int64_t c = 0; c < m->view.cols; ++c) {
            guarded_set(m, r, c, offset * (double)(c % 3) + uniform(rng, -2, 2));
            values[r * m->view.cols + c] = guarded_get(m, r, c);
        }
    }
    guarded_upload(m);
    return values;
}

static void destroy_expected(norm_case *c)
{
    ref_tensor_destroy(&c->expected);
    ref_tensor_destroy(&c->expected_gamma);
    ref_tensor_destroy(&c->expected_beta);
    free(c->mean_bound), free(c->var_bound);
    c->mean_bound = c->var_bound = NULL;
}

static void prepare(void *user, int version)
{
    norm_case *c = (norm_case *)user;
    test_rng rng = test_rng_make(c->stream * 2 + (uint64_t)version);
    double *x = fill_matrix(&c->x, &rng, c->large_mean ? 1000 : 1);
    double *grad_out = is_backward(c) ? fill_matrix(&c->grad_out, &rng, 0) : NULL;
    double *mean = NULL, *var = NULL, *gamma = NULL, *beta = NULL;
    ref_norm norm = {c->rows,
                     c->cols,
                     x,
                     grad_out,
                     NULL,
                     NULL,
                     NULL,
                     NULL,
                     0,
                     c->activation,
                     is_rms(c),
                     c->fixed_statistics,
                     test_unit(c->dtype)};
    norm.epsilon = c->epsilon == 0 ? 1e-5 : (double)c->epsilon;
    if (c->dtype == SPOPS_DTYPE_F64)
        norm.epsilon = (double)(float)norm.epsilon; // as options have it

    destroy_expected(c);
    if (is_batch(c)) {
        norm.mean = mean = fill_vector(&c->mean, &rng, -1, 3);
        norm.var = var = fill_vector(&c->var, &rng, 0.5, 2);
    }
    // Where the derivative jumps, beta alone decides the sign of the output, so that no rounding of
    // ours can flip the mask of a gradient. RMS norm keeps the sign of x.
    if (c->affine) {
        norm.gamma = gamma = fill_vector(&c->gamma, &rng, 0.02, has_kink(c) ? 0.06 : 2);
        beta = fill_vector(&c->beta, &rng, -3, 3);
        if (!is_rms(c)) norm.beta = beta;
        for (int64_t i = 0; has_kink(c) && i < c->cols; ++i) {
            beta[i] = i % 2 == 0 ? 3 : -3;
            guarded_set(&c->beta, 0, i, beta[i]);
        }
        guarded_upload(&c->beta);
    }
    c->expected_gamma = ref_tensor_create(1, c->cols);
    c->expected_beta = ref_tensor_create(1, c->cols);
    switch (c->kind) {
    case STATISTICS:
        c->expected = ref_tensor_create(1, 1);
        c->mean_bound = (double *)calloc((size_t)c->cols + 1, sizeof(double));
        c->var_bound = (double *)calloc((size_t)c->cols + 1, sizeof(double));
        // chunks of 32 rows up to 16,384 rows, merged one after the other
        ref_column_statistics(&norm, 32, (c->rows + 31) / 32, &c->expected_gamma, &c->expected_beta,
                              c->mean_bound, c->var_bound);
        break;
    case BATCH_FORWARD:
    case LAYER_FORWARD:
    case RMS_FORWARD:
        c->expected = ref_tensor_create(c->rows, c->cols);
        ref_norm_forward(&norm, &c->expected);
        break;
    default:
        c->expected = ref_tensor_create(c->rows, c->cols);
        ref_norm_backward(&norm, &c->expected, &c->expected_gamma, &c->expected_beta);
    }
    free(x), free(grad_out), free(mean), free(var), free(gamma), free(beta);
}

// A matrix as the library gets it: with all of its capacity.
static spops_matrix with_capacity(const norm_case *c, const guarded *g)
{
    spops_matrix m = g->view;
    m.rows = c->capacity;
    return m;
}

static const float *vector_of(const guarded *g, bool there)
{
    return there ? (const float *)g->view.data : NULL;
}

static spops_status enqueue(void *user, spops_context *ctx)
{
    norm_case *c = (norm_case *)user;
    const spops_matrix x = with_capacity(c, &c->x), out = with_capacity(c, &c->out);
    const float *mean = vector_of(&c->mean, true), *var = vector_of(&c->var, true);
    const float *gamma = vector_of(&c->gamma, c->affine), *beta = vector_of(&c->beta, c->affine);
    float *grad_gamma = (float *)c->grad_gamma.view.data;
    float *grad_beta = (float *)c->grad_beta.view.data;
    spops_norm_options options = spops_norm_options_default();

    options.num_rows = c->num_rows;
    options.epsilon = c->epsilon;
    options.activation = c->activation.kind;
    options.activation_slope = c->activation.slope;
    options.fixed_statistics = c->fixed_statistics;
    switch (c->kind) {
    case STATISTICS:
        return spops_batchnorm_statistics_execute(ctx, x, &options, grad_gamma, grad_beta, NULL,
                                                  NULL);
    case BATCH_FORWARD:
        return spops_batchnorm_execute(ctx, x, mean, var, gamma, beta, &options, out);
    case LAYER_FORWARD: return spops_layernorm_execute(ctx, x, gamma, beta, &options, out);
    case RMS_FORWARD: return spops_rmsnorm_execute(ctx, x, gamma, &options, out);
    case RMS_BACKWARD:
        return spops_rmsnorm_execute_backward(ctx, with_capacity(c, &c->grad_out), x, gamma,
                                              &options, out, grad_gamma);
    case BATCH_BACKWARD:
        return spops_batchnorm_execute_backward(ctx, with_capacity(c, &c->grad_out), x, mean, var,
                                                gamma, beta, &options, out, grad_gamma, grad_beta);
    default:
        return spops_layernorm_execute_backward(ctx, with_capacity(c, &c->grad_out), x, gamma, beta,
                                                &options, out, grad_gamma, grad_beta);
    }
}

static void verify(void *user, int version, const char *what)
{
    norm_case *c = (norm_case *)user;
    (void)version;
    if (c->kind == STATISTICS) {
        guarded_check_bounds(&c->grad_gamma, &c->expected_gamma, c->mean_bound, what);
        guarded_check_bounds(&c->grad_beta, &c->expected_beta, c->var_bound, what);
        return;
    }
    guarded_check(&c->out, &c->expected, false, what);
    if (!is_backward(c)) return;
    guarded_check(&c->grad_gamma, &c->expected_gamma, false, what);
    if (!is_rms(c)) guarded_check(&c->grad_beta, &c->expected_beta, false, what);
}

// A matrix of the capacity, of which the rows that count are its elements and the rest padding.
static guarded create_rows(const test_device *d, const norm_case *c, const char *name,
                           int64_t padding, int64_t shift)
{
    guarded g = guarded_create(d->backend, name, c->capacity, c->cols, padding, shift, c->dtype);
    g.view.rows = c->rows;
    return g;
}

static void check_case(test_device *d, norm_case *c, int64_t padding, int64_t shift)
{
    char text[256];
    const int32_t rows = (int32_t)c->rows;
    const char *what = test_describe(
        text, "%s %s %s, %s: %lld of %lld x %lld + %lld, shift %lld, affine %d, activation %d",
        test_backend_name(d->backend), kind_names[c->kind], test_dtype_name(c->dtype),
        test_launch_name(d->launch), (long long)c->rows, (long long)c->capacity, (long long)c->cols,
        (long long)padding, (long long)shift, c->affine, (int)c->activation.kind);
    const int64_t wide = c->dtype == SPOPS_DTYPE_F64 ? 2 : 1;
    test_call call = {.user = c,
                      .prepare = prepare,
                      .enqueue = enqueue,
                      .verify = verify,
                      .scratch_bytes = spops_norm_scratch_bytes(wide * c->capacity, wide * c->cols),
                      .what = what};
    guarded *const vectors[] = {&c->mean, &c->var, &c->gamma, &c->beta};
    const spops_dtype sums = test_sum_dtype(c->dtype);
    int inputs = 0, outputs = 0;

    c->num_rows = c->rows < c->capacity ? test_upload_i32(d, &rows, 1) : NULL;
    c->x = create_rows(d, c, "x", padding, shift);
    c->grad_out = create_rows(d, c, "grad_out", padding, shift);
    c->out = create_rows(d, c, is_backward(c) ? "grad_x" : "out", 2 * padding, 0);
    c->mean = guarded_create(d->backend, "mean", 1, c->cols, 0, 0, sums);
    c->var = guarded_create(d->backend, "var", 1, c->cols, 0, 0, sums);
    c->gamma = guarded_create(d->backend, "gamma", 1, c->cols, 0, 0, sums);
    c->beta = guarded_create(d->backend, "beta", 1, c->cols, 0, 0, sums);
    c->grad_gamma = guarded_create(d->backend, "grad_gamma", 1, c->cols, 0, 0, sums);
    c->grad_beta = guarded_create(d->backend, "grad_beta", 1, c->cols, 0, 0, sums);
    test_expect_ok(d->ctx, spops_context_reserve(d->ctx, call.scratch_bytes), what);

    call.inputs[inputs++] = &c->x;
    if (is_backward(c)) call.inputs[inputs++] = &c->grad_out;
    for (int i = is_batch(c) ? 0 : 2; i < (c->affine ? 4 : 2); ++i)
        call.inputs[inputs++] = vectors[i];
    if (c->kind != STATISTICS) call.outputs[outputs++] = &c->out;
    if (is_backward(c) || c->kind == STATISTICS) {
        call.outputs[outputs++] = &c->grad_gamma;
        if (!is_rms(c)) call.outputs[outputs++] = &c->grad_beta;
    }
    test_run(d, &call);

    guarded_destroy(&c->x), guarded_destroy(&c->grad_out), guarded_destroy(&c->out);
    for (int i = 0; i < 4; ++i)
        guarded_destroy(vectors[i]);
    guarded_destroy(&c->grad_gamma), guarded_destroy(&c->grad_beta);
    destroy_expected(c);
    test_free(d, c->num_rows);
}

static const int64_t all_rows[] = {1, 2, 33, 31, 1000, 4099},
                     all_cols[] = {1, 3, 8, 33, 64, 300, 128, 600};

// Every kind of call on the first sizes of the lists.
static void check_sizes(test_device *d, int num_rows, int num_cols, spops_dtype dtype,
                        uint64_t stream)
{
    for (int kind = 0; kind < NUM_KINDS; ++kind) {
        for (int r = 0; r < num_rows; ++r) {
            for (int k = 0; k < num_cols; ++k) {
                test_rng rng = test_rng_make(++stream);
                norm_case c = {.kind = (norm_kind)kind,
                               .rows = all_rows[r],
                               .cols = all_cols[k],
                               .dtype = dtype,
                               .stream = stream};
                if (all_rows[r] * all_cols[k] > 300000) continue;
                c.capacity = c.rows + (test_rng_below(&rng, 2) ? test_rng_below(&rng, 5000) : 0);
                c.activation = test_activation(&rng, false);
                c.affine = has_kink(&c) || test_rng_below(&rng, 2) != 0;
                c.fixed_statistics = test_rng_below(&rng, 3) == 0;
                c.epsilon = test_rng_below(&rng, 2) == 0 ? 0 : 0.25f;
                c.large_mean = kind == STATISTICS && c.dtype == SPOPS_DTYPE_F32;
                check_case(d, &c, test_rng_below(&rng, 2) * (1 + test_rng_below(&rng, 7)),
                           test_rng_below(&rng, 2));
            }
        }
    }
}

CaseTest(norm, agrees, every_case(test_row_dtypes, NUM_REAL_DTYPES, NULL, 0), .timeout = 600)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    check_sizes(&d, 6, 8, (spops_dtype)p->dtype, case_number(p) << 32);
    test_close(&d);
}

// Widths whose rows are whole pieces of 16 bytes, as many for each lane: norms without an activation have kernels
// of their own there.
static void check_whole_rows(test_device *d, int64_t rows, spops_dtype dtype, uint64_t stream)
{
    static const norm_kind kinds[] = {BATCH_BACKWARD, LAYER_FORWARD, LAYER_BACKWARD, RMS_FORWARD,
                                      RMS_BACKWARD};
    for (int64_t cols = 16; cols <= 512; cols *= 2) {
        for (int kind = 0; kind < 5; ++kind) {
            test_rng rng = test_rng_make(++stream);
            norm_case c = {.kind = kinds[kind],
                           .rows = rows,
                           .cols = cols,
                           .dtype = dtype,
                           .stream = stream,
                           .epsilon = 0.25f};
            if (rows * cols > 1200000) continue;
            c.capacity = rows + (test_rng_below(&rng, 2) ? test_rng_below(&rng, 5000) : 0);
            c.affine = test_rng_below(&rng, 3) != 0;
            check_case(d, &c, 8 * test_rng_below(&rng, 3), 0);
        }
    }
}

CaseTest(norm, whole_rows, every_case(test_row_dtypes, NUM_REAL_DTYPES, NULL, 0), .timeout = 600)
{
    static const int64_t rows[] = {1, 33, 700, 17003};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    for (int i = 0; i < (test_quick() ? 3 : 4); ++i)
        check_whole_rows(&d, rows[i], (spops_dtype)p->dtype,
                         (case_number(p) << 32) + 1000 * (uint64_t)i);
    test_close(&d);
}

// What a sanitizer runs.
BackendTest(norm, small, .timeout = 600)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    for (int dtype = 0; dtype < NUM_ROW_DTYPES; ++dtype)
        check_sizes(&d, test_quick() ? 2 : 3, 4, test_row_dtypes[dtype], (uint64_t)dtype << 20);
    for (int dtype = 0; dtype < NUM_ROW_DTYPES; ++dtype)
        check_whole_rows(&d, 70, test_row_dtypes[dtype], (uint64_t)dtype << 24);
    test_close(&d);
}

static float *device_floats(test_device *d, const float *values, int64_t n)
{
    return (float *)(void *)test_upload_i32(d, (const int32_t *)(const void *)values, n);
}

static void fetch_floats(test_device *d, float *values, const float *from, int64_t n)
{
    test_download_i32(d, (int32_t *)(void *)values, (const int32_t *)(const void *)from, n);
}

// Two batches move the running statistics as PyTorch's would be moved; an empty one leaves them.
BackendTest(norm, updates_running_statistics)
{
    static const float x[4] = {1, 2, 3, 6}; // mean 3, variance 3.5, unbiased 14 / 3
    float mean = 10, var = 20;
    spops_norm_options options = spops_norm_options_default();
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    float *rows = device_floats(&d, x, 4), *out = device_floats(&d, x, 2);
    float *running_mean = device_floats(&d, &mean, 1), *running_var = device_floats(&d, &var, 1);
    const spops_matrix m = spops_matrix_dense(rows, 4, 1, SPOPS_DTYPE_F32);
    const spops_matrix none = spops_matrix_dense(rows, 0, 1, SPOPS_DTYPE_F32);
    options.momentum = 0.25f;
    test_expect_ok(d.ctx, spops_context_reserve(d.ctx, spops_norm_scratch_bytes(4, 1)), "reserve");
    test_expect_ok(d.ctx,
                   spops_batchnorm_statistics_execute(d.ctx, m, &options, out, out + 1,
                                                      running_mean, running_var),
                   "statistics");
    fetch_floats(&d, &mean, running_mean, 1), fetch_floats(&d, &var, running_var, 1);
    cr_assert_float_eq(mean, 10 + 0.25 * (3 - 10), 1e-6);
    cr_assert_float_eq(var, 20 + 0.25 * (14.0 / 3 - 20), 1e-5);
    test_expect_ok(d.ctx,
                   spops_batchnorm_statistics_execute(d.ctx, none, &options, out, out + 1,
                                                      running_mean, running_var),
                   "statistics of no rows");
    float again[2], batch[2];
    fetch_floats(&d, &again[0], running_mean, 1), fetch_floats(&d, &again[1], running_var, 1);
    fetch_floats(&d, batch, out, 2);
    cr_assert(again[0] == mean && again[1] == var);
    cr_assert(batch[0] == 0 && batch[1] == 0);
    test_free(&d, rows), test_free(&d, out);
    test_free(&d, running_mean), test_free(&d, running_var);
    test_close(&d);
}

// The mean of finite values is finite, though their difference, or its square, is not.
BackendTest(norm, of_huge_values)
{
    enum { ROWS = 100, COLS = 3, SLOTS = 4 * COLS };
    float x[ROWS * COLS], found[SLOTS], running[SLOTS] = {3e38f, 0, -3e38f};
    spops_norm_options options = spops_norm_options_default();
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    for (int r = 0; r < ROWS; ++r) {
        x[r * COLS + 0] = r % 2 == 0 ? 3e38f : -3e38f;
        x[r * COLS + 1] = 1e20f;
        x[r * COLS + 2] = 3e38f;
    }
    float *rows = device_floats(&d, x, ROWS * COLS), *out = device_floats(&d, running, SLOTS);
    options.momentum = 0.5f;
    test_expect_ok(d.ctx, spops_context_reserve(d.ctx, spops_norm_scratch_bytes(ROWS, COLS)),
                   "reserve");
    test_expect_ok(d.ctx,
                   spops_batchnorm_statistics_execute(
                       d.ctx, spops_matrix_dense(rows, ROWS, COLS, SPOPS_DTYPE_F32), &options,
                       out + COLS, out + 2 * COLS, out, out + 3 * COLS),
                   "statistics");
    test_wait(&d);
    fetch_floats(&d, found, out, SLOTS);
    cr_assert(fabsf(found[COLS]) <= 3e33f && isinf(found[2 * COLS]), "mean %g, var %g",
              (double)found[COLS], (double)found[2 * COLS]);
    cr_assert(found[COLS + 1] == 1e20f && found[2 * COLS + 1] == 0, "mean %g, var %g",
              (double)found[COLS + 1], (double)found[2 * COLS + 1]);
    cr_assert(found[COLS + 2] == 3e38f && found[2 * COLS + 2] == 0, "mean %g, var %g",
              (double)found[COLS + 2], (double)found[2 * COLS + 2]);
    cr_assert(found[2] == 0 && isfinite(found[0]), "running means %g, %g", (double)found[2],
              (double)found[0]);
    test_free(&d, rows), test_free(&d, out);
    test_close(&d);
}

// The variance is as precise as norm.h says, however large the mean is beside the deviations. Values are
// quarters, so that f32 holds them; in one chunk of rows, and in many.
BackendTest(norm, variance_beside_large_means)
{
    enum { ROWS = 20000, MEANS = 4 };
    static const double means[MEANS] = {0, 300, -4096, 65536};
    static const int64_t counts[] = {2, 7, 300, ROWS};
    static float x[ROWS * MEANS];
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    test_expect_ok(d.ctx, spops_context_reserve(d.ctx, spops_norm_scratch_bytes(ROWS, MEANS)), "");
    for (int64_t i = 0; i < ROWS * MEANS; ++i)
        x[i] = (float)(means[i % MEANS] + 0.25 * (double)((i / MEANS * 37 + i % MEANS) % 13 - 6));
    float *rows = device_floats(&d, x, ROWS * MEANS), *out = device_floats(&d, x, 2 * MEANS);
    for (size_t k = 0; k < sizeof counts / sizeof *counts; ++k) {
        const spops_matrix m = spops_matrix_dense(rows, counts[k], MEANS, SPOPS_DTYPE_F32);
        float found[2 * MEANS];
        test_expect_ok(
            d.ctx, spops_batchnorm_statistics_execute(d.ctx, m, NULL, out, out + MEANS, NULL, NULL),
            "statistics");
        fetch_floats(&d, found, out, 2 * MEANS);
        for (int c = 0; c < MEANS; ++c) {
            double mean = 0, var = 0;
            for (int64_t r = 0; r < counts[k]; ++r)
                mean += (double)x[r * MEANS + c] / (double)counts[k];
            for (int64_t r = 0; r < counts[k]; ++r)
                var += ((double)x[r * MEANS + c] - mean) * ((double)x[r * MEANS + c] - mean) /
                       (double)counts[k];
            const double precision = 4e-6 + 0x1p-22 * fabs(mean) / sqrt(var);
            cr_assert(fabs((double)found[MEANS + c] - var) <= precision * var,
                      "%d rows with mean %g: variance %.9g, expected %.9g", (int)counts[k],
                      means[c], (double)found[MEANS + c], var);
            cr_assert(fabs((double)found[c] - mean) <= 0x1p-21 * fabs(mean) + 4e-6,
                      "%d rows: mean %.9g, expected %.9g", (int)counts[k], (double)found[c], mean);
        }
    }
    test_free(&d, rows), test_free(&d, out);
    test_close(&d);
}

// A gradient may be written over the one it is made of, a result over its input.
BackendTest(norm, works_in_place)
{
    enum { ROWS = 70, COLS = 40, N = ROWS * COLS };
    float x[N], g[N], one[COLS], apart[N], in_place[N];
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    for (int i = 0; i < N; ++i) {
        x[i] = (float)((i * 37) % 101) / 50;
        g[i] = (float)((i * 53) % 97) / 48 - 1;
    }
    for (int i = 0; i < COLS; ++i)
        one[i] = 1;
    test_expect_ok(d.ctx, spops_context_reserve(d.ctx, spops_norm_scratch_bytes(ROWS, COLS)), "");
    for (int layer = 0; layer < 2; ++layer) {
        for (int backward = 0; backward < 2; ++backward) {
            float *dx = device_floats(&d, x, N), *dg = device_floats(&d, g, N);
            float *dy = device_floats(&d, g, N), *dv = device_floats(&d, one, COLS);
            const spops_matrix mx = spops_matrix_dense(dx, ROWS, COLS, SPOPS_DTYPE_F32);
            const spops_matrix mg = spops_matrix_dense(dg, ROWS, COLS, SPOPS_DTYPE_F32);
            const spops_matrix my = spops_matrix_dense(dy, ROWS, COLS, SPOPS_DTYPE_F32);
            for (int same = 0; same < 2; ++same) {
                const spops_matrix to = !same ? my : backward ? mg : mx;
                const spops_status status =
                    layer && backward ? spops_layernorm_execute_backward(d.ctx, mg, mx, NULL, NULL,
                                                                         NULL, to, NULL, NULL)
                    : layer           ? spops_layernorm_execute(d.ctx, mx, NULL, NULL, NULL, to)
                    : backward ? spops_batchnorm_execute_backward(d.ctx, mg, mx, dv, dv, dv, dv,
                                                                  NULL, to, NULL, NULL)
                               : spops_batchnorm_execute(d.ctx, mx, dv, dv, dv, dv, NULL, to);
                test_expect_ok(d.ctx, status, "in place");
                fetch_floats(&d, same ? in_place : apart, (const float *)to.data, N);
            }
            cr_assert_arr_eq(in_place, apart, sizeof apart, "layer %d, backward %d", layer,
                             backward);
            cr_assert(memcmp(apart, g, sizeof g) != 0);
            test_free(&d, dx), test_free(&d, dg), test_free(&d, dy), test_free(&d, dv);
        }
    }
    test_close(&d);
}

// What the rows cannot say; tests/test_operators.c has the faults of arguments.
BackendTest(norm, refuses)
{
    enum { ROWS = 4, COLS = 8 };
    static const float zeros[ROWS * COLS];
    float after[ROWS * COLS];
    spops_norm_options options = spops_norm_options_default();
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    float *x = device_floats(&d, zeros, ROWS * COLS), *y = device_floats(&d, zeros, ROWS * COLS);
    float *v = device_floats(&d, zeros, COLS);
    const spops_matrix mx = spops_matrix_dense(x, ROWS, COLS, SPOPS_DTYPE_F32);
    const spops_matrix my = spops_matrix_dense(y, ROWS, COLS, SPOPS_DTYPE_F32);
    const spops_matrix shifted_x = spops_matrix_dense(x + 1, ROWS - 1, COLS, SPOPS_DTYPE_F32);
    const spops_matrix first_x = spops_matrix_dense(x, ROWS - 1, COLS, SPOPS_DTYPE_F32);
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;

    test_expect(d.ctx, spops_layernorm_execute(d.ctx, first_x, v, v, NULL, shifted_x), invalid,
                "layernorm_execute: out", "overlap");
    test_expect(d.ctx,
                spops_layernorm_execute(d.ctx, spops_matrix_dense(x, ROWS, 0, SPOPS_DTYPE_F32),
                                        NULL, NULL, NULL,
                                        spops_matrix_dense(y, ROWS, 0, SPOPS_DTYPE_F32)),
                invalid, "layernorm_execute: x has no columns", "no columns");
    test_expect(d.ctx, spops_batchnorm_statistics_execute(d.ctx, mx, NULL, v, y, v, NULL), invalid,
                "one of running_mean and running_var is NULL", "one running");
    test_expect(d.ctx, spops_batchnorm_statistics_execute(d.ctx, mx, NULL, v, y, NULL, NULL),
                SPOPS_STATUS_SCRATCH_TOO_SMALL,
                "call spops_context_reserve with spops_norm_scratch_bytes(", "no scratch");
    options.momentum = 2;
    test_expect(d.ctx, spops_layernorm_execute(d.ctx, mx, v, v, &options, my), invalid,
                "momentum is 2, expected 0 to 1", "momentum");
    options = spops_norm_options_default();
    options.fixed_statistics = 2;
    test_expect(d.ctx, spops_layernorm_execute(d.ctx, mx, v, v, &options, my), invalid,
                "fixed_statistics is 2, expected 0 or 1", "fixed_statistics");
    fetch_floats(&d, after, y, ROWS * COLS);
    cr_assert_arr_eq(after, zeros, sizeof zeros);
    test_free(&d, x), test_free(&d, y), test_free(&d, v);
    test_close(&d);
}

// ---- Overlaps -----------------------------------------------------------------------------------

// Arguments of the calls, each with memory of its own.
typedef enum norm_slot {
    X,
    GRAD_OUT,
    OUT, // also grad_x
    MEAN,
    VAR,
    GAMMA,
    BETA,
    NUM_ROWS,
    GRAD_GAMMA, // also running_mean
    GRAD_BETA,  // also running_var
    NUM_SLOTS
} norm_slot;

enum { SLOT_ROWS = 4, SLOT_COLS = 3, SLOT_FLOATS = SLOT_ROWS * SLOT_COLS };

// How the calls name them; NULL: no argument.
static const char *const slot_names[NUM_KINDS][NUM_SLOTS] = {
    {"x", NULL, NULL, "mean", "var", NULL, NULL, "num_rows", "running_mean", "running_var"},
    {"x", NULL, "out", "mean", "var", "gamma", "beta", "num_rows", NULL, NULL},
    {"x", "grad_out", "grad_x", "mean", "var", "gamma", "beta", "num_rows", "grad_gamma",
     "grad_beta"},
    {"x", NULL, "out", NULL, NULL, "gamma", "beta", "num_rows", NULL, NULL},
    {"x", "grad_out", "grad_x", NULL, NULL, "gamma", "beta", "num_rows", "grad_gamma", "grad_beta"},
    {"x", NULL, "out", NULL, NULL, "gamma", NULL, "num_rows", NULL, NULL},
    {"x", "grad_out", "grad_x", NULL, NULL, "gamma", NULL, "num_rows", "grad_gamma", NULL},
};

static bool is_written(norm_kind kind, int slot)
{
    if (kind == STATISTICS) return slot == MEAN || slot == VAR || slot >= GRAD_GAMMA;
    return slot == OUT || slot >= GRAD_GAMMA;
}

static spops_status call_slots(spops_context *ctx, norm_kind kind, float *const *at)
{
    const spops_matrix x = spops_matrix_dense(at[X], SLOT_ROWS, SLOT_COLS, SPOPS_DTYPE_F32);
    spops_matrix g = x, out = x;
    spops_norm_options o = spops_norm_options_default();
    o.num_rows = (const int32_t *)(const void *)at[NUM_ROWS];
    g.data = at[GRAD_OUT];
    out.data = at[OUT];
    switch (kind) {
    case STATISTICS:
        return spops_batchnorm_statistics_execute(ctx, x, &o, at[MEAN], at[VAR], at[GRAD_GAMMA],
                                                  at[GRAD_BETA]);
    case BATCH_FORWARD:
        return spops_batchnorm_execute(ctx, x, at[MEAN], at[VAR], at[GAMMA], at[BETA], &o, out);
    case BATCH_BACKWARD:
        return spops_batchnorm_execute_backward(ctx, g, x, at[MEAN], at[VAR], at[GAMMA], at[BETA],
                                                &o, out, at[GRAD_GAMMA], at[GRAD_BETA]);
    case LAYER_FORWARD: return spops_layernorm_execute(ctx, x, at[GAMMA], at[BETA], &o, out);
    case RMS_FORWARD: return spops_rmsnorm_execute(ctx, x, at[GAMMA], &o, out);
    case RMS_BACKWARD:
        return spops_rmsnorm_execute_backward(ctx, g, x, at[GAMMA], &o, out, at[GRAD_GAMMA]);
    default:
        return spops_layernorm_execute_backward(ctx, g, x, at[GAMMA], at[BETA], &o, out,
                                                at[GRAD_GAMMA], at[GRAD_BETA]);
    }
}

// The one pair that may be the same memory.
static bool may_alias(norm_kind kind, int a, int b)
{
    const bool backward = kind == BATCH_BACKWARD || kind == LAYER_BACKWARD || kind == RMS_BACKWARD;
    return a == OUT && b == (backward ? GRAD_OUT : X);
}

// No output lies over an input, or over another output, but for the results over what they are
// made of.
BackendTest(norm, refuses_overlaps)
{
    static const float zeros[NUM_SLOTS * SLOT_FLOATS];
    float after[NUM_SLOTS * SLOT_FLOATS];
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    float *memory = device_floats(&d, zeros, NUM_SLOTS * SLOT_FLOATS);
    test_expect_ok(d.ctx,
                   spops_context_reserve(d.ctx, spops_norm_scratch_bytes(SLOT_ROWS, SLOT_COLS)),
                   "reserve");
    for (int kind = 0; kind < NUM_KINDS; ++kind) {
        const char *const *names = slot_names[kind];
        for (int a = 0; a < NUM_SLOTS; ++a) {
            for (int b = 0; b < NUM_SLOTS; ++b) {
                float *at[NUM_SLOTS];
                char first[96], second[96];
                if (a == b || names[a] == NULL || names[b] == NULL) continue;
                if (!is_written((norm_kind)kind, a)) continue;
                for (int i = 0; i < NUM_SLOTS; ++i)
                    at[i] = memory + i * SLOT_FLOATS;
                at[a] = at[b];
                if (may_alias((norm_kind)kind, a, b)) continue;
                const spops_status status = call_slots(d.ctx, (norm_kind)kind, at);
                snprintf(first, sizeof first, ": %s overlaps %s,", names[a], names[b]);
                snprintf(second, sizeof second, ": %s overlaps %s,", names[b], names[a]);
                cr_assert(status == SPOPS_STATUS_INVALID_ARGUMENT &&
                              (strstr(spops_last_error(d.ctx), first) != NULL ||
                               strstr(spops_last_error(d.ctx), second) != NULL),
                          "%s, %s over %s: %s", kind_names[kind], names[a], names[b],
                          status == SPOPS_STATUS_OK ? "OK" : spops_last_error(d.ctx));
            }
        }
    }
    fetch_floats(&d, after, memory, NUM_SLOTS * SLOT_FLOATS);
    cr_assert_arr_eq(after, zeros, sizeof zeros);
    test_free(&d, memory);
    test_close(&d);
}
