// SPDX-License-Identifier: Apache-2.0
// Group and instance norm over samples against FP64: samples by offsets, by keys in any order and of a set
// of coordinates; empty samples and samples of one row; a plan that is refilled; places in a batch; what is
// refused.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "spops/norm.h"
#include "spops/pool.h"
#include "tests/ref/ref_norm.h"
#include "tests/support/activation.h"
#include "tests/support/operator.h"
#include "tests/support/params.h"

typedef enum group_kind { STATISTICS, FORWARD, BACKWARD, NUM_KINDS } group_kind;
static const int all_kinds[] = {STATISTICS, FORWARD, BACKWARD};

enum { X, GRAD_OUT, MEAN, VAR, GAMMA, BETA };
enum { OUT, GRAD_GAMMA, GRAD_BETA }; // of STATISTICS: mean and var

typedef struct group_case {
    group_kind kind;
    int64_t rows, cols, num_samples;
    int32_t groups;
    spops_dtype dtype;
    ref_activation activation;
    bool fixed_statistics;
    int32_t *sample; // [rows]; -1: none
    spops_segments *samples;
} group_case;

static bool has_kink(const group_case *c)
{
    return c->activation.kind == SPOPS_ACTIVATION_RELU ||
           c->activation.kind == SPOPS_ACTIVATION_LEAKY_RELU;
}

static void *data_of(const spops_matrix *m)
{
    return m == NULL ? NULL : m->data;
}

static spops_status run(void *user, spops_context *ctx, const spops_matrix *const *in,
                        const spops_matrix *const *out)
{
    const group_case *c = (const group_case *)user;
    spops_norm_options options = spops_norm_options_default();
    options.activation = c->activation.kind;
    options.activation_slope = c->activation.slope;
    options.fixed_statistics = c->fixed_statistics;
    if (c->kind == STATISTICS)
        return spops_groupnorm_statistics_execute(ctx, c->samples, c->groups, *in[X], out[0]->data,
                                                  out[1]->data);
    if (c->kind == FORWARD)
        return spops_groupnorm_execute(ctx, c->samples, c->groups, *in[X], in[MEAN]->data,
                                       in[VAR]->data, data_of(in[GAMMA]), data_of(in[BETA]),
                                       &options, *out[OUT]);
    return spops_groupnorm_execute_backward(ctx, c->samples, c->groups, *in[GRAD_OUT], *in[X],
                                            in[MEAN]->data, in[VAR]->data, data_of(in[GAMMA]),
                                            data_of(in[BETA]), &options, *out[OUT],
                                            data_of(out[GRAD_GAMMA]), data_of(out[GRAD_BETA]));
}

static ref_group_norm norm_of(const group_case *c, const double *const *in)
{
    const double epsilon = c->dtype == SPOPS_DTYPE_F64 ? (double)1e-5f : 1e-5;
    return (ref_group_norm){.rows = c->rows,
                            .cols = c->cols,
                            .groups = c->groups,
                            .num_samples = c->num_samples,
                            .sample = c->sample,
                            .x = in[X],
                            .grad_out = in[GRAD_OUT],
                            .mean = in[MEAN],
                            .var = in[VAR],
                            .gamma = in[GAMMA],
                            .beta = in[BETA],
                            .epsilon = epsilon,
                            .activation = c->activation,
                            .fixed_statistics = c->fixed_statistics,
                            .unit = test_unit(c->dtype)};
}

// Small enough values that a bound of f16 is one; where the activation jumps, beta alone decides the sign.
static double drawn(const group_case *c, int input, int64_t i, test_rng *rng)
{
    const double u = (double)test_rng_below(rng, 1 << 20) / (1 << 20);
    switch (input) {
    case MEAN: return 2 * u - 1;
    case VAR: return 0.5 + 1.5 * u;
    case GAMMA: return has_kink(c) ? 0.02 + 0.04 * u : 2 * u;
    case BETA: return has_kink(c) ? (i % 2 == 0 ? 3 : -3) : 6 * u - 3;
    case X: return 4 * u - 2 + (double)(i % 3);
    default: return 4 * u - 2;
    }
}

static void adjust(void *user, int version, test_rng *rng, guarded *const *in,
                   double *const *values)
{
    const group_case *c = (const group_case *)user;
    (void)version;
    for (int k = 0; k <= BETA; ++k) {
        if (in[k] == NULL) continue;
        const int64_t cols = in[k]->view.cols;
        for (int64_t i = 0; i < in[k]->view.rows * cols; ++i) {
            guarded_set(in[k], i / cols, i % cols, drawn(c, k, i, rng));
            values[k][i] = guarded_get(in[k], i / cols, i % cols);
        }
    }
}

static void reference(void *user, const double *const *in, ref_tensor *const *out)
{
    const group_case *c = (const group_case *)user;
    const ref_group_norm norm = norm_of(c, in);
    if (c->kind == STATISTICS) {
        const int64_t n = c->num_samples * c->groups;
        double *bounds = (double *)calloc((size_t)(2 * n) + 1, sizeof *bounds);
        cr_assert(bounds != NULL);
        ref_group_statistics(&norm, 256, out[0], out[1], bounds, bounds + n);
        // The bound as a scale: one rounding of it.
        for (int64_t i = 0; i < n; ++i) {
            out[0]->scale[i] = bounds[i] / norm.unit, out[0]->roundings[i] = 1;
            out[1]->scale[i] = bounds[n + i] / norm.unit, out[1]->roundings[i] = 1;
        }
        free(bounds);
    } else if (c->kind == FORWARD) {
        ref_group_forward(&norm, out[OUT]);
    } else {
        ref_tensor gamma = ref_tensor_create(1, c->cols), beta = ref_tensor_create(1, c->cols);
        ref_group_backward(&norm, out[OUT], out[GRAD_GAMMA] != NULL ? out[GRAD_GAMMA] : &gamma,
                           out[GRAD_BETA] != NULL ? out[GRAD_BETA] : &beta);
        ref_tensor_destroy(&gamma), ref_tensor_destroy(&beta);
    }
}

// Samples of rows that follow each other: offsets; of any rows: keys in any order.
static void make_samples(test_device *d, group_case *c, bool by_keys, test_rng *rng)
{
    const int64_t n = c->num_samples;
    int32_t *offsets = (int32_t *)calloc((size_t)n + 1, sizeof *offsets);
    cr_assert(offsets != NULL);
    c->sample = (int32_t *)malloc((size_t)(c->rows + 1) * sizeof *c->sample);
    cr_assert(c->sample != NULL);
    for (int64_t r = 0; r < c->rows; ++r) // some samples are empty, some have one row
        c->sample[r] = (int32_t)(test_rng_below(rng, 7) == 0 ? test_rng_below(rng, n)
                                                             : r * n / c->rows / 3 * 3);
    for (int64_t s = 0, r = 0; s < n && !by_keys; ++s) {
        const int64_t left = c->rows - r;
        const int64_t many = s == n - 1 ? left : test_rng_below(rng, 3) == 0 ? 0 : 2 * left / n + 1;
        const int64_t take = many < left ? many : left;
        for (int64_t i = 0; i < take; ++i)
            c->sample[r + i] = (int32_t)s;
        r += take;
        offsets[s + 1] = (int32_t)r;
    }
    int32_t *on_device =
        by_keys ? test_upload_i32(d, c->sample, c->rows) : test_upload_i32(d, offsets, n + 1);
    test_expect_ok(d->ctx,
                   by_keys ? spops_segments_create_from_keys(d->ctx, n, c->rows, on_device,
                                                             SPOPS_KEYS_UNSORTED, NULL, &c->samples)
                           : spops_segments_create(d->ctx, n, on_device, NULL, &c->samples),
                   "samples");
    test_free(d, on_device);
    free(offsets);
}

static void check_case(test_device *d, group_case *c, uint64_t stream, test_rng *rng)
{
    const spops_dtype sums = test_sum_dtype(c->dtype);
    const int64_t all = c->num_samples * c->groups, wide = c->dtype == SPOPS_DTYPE_F64 ? 2 : 1;
    const bool affine = has_kink(c) || test_rng_below(rng, 2) == 0;
    char text[256];
    test_operator op = {
        .stream = stream, .user = c, .run = run, .reference = reference, .adjust = adjust};

    op.what = test_describe(text, "kind %d, %d samples, %d groups, activation %d, fixed %d",
                            (int)c->kind, (int)c->num_samples, (int)c->groups,
                            (int)c->activation.kind, c->fixed_statistics);
    op.scratch_bytes = spops_groupnorm_scratch_bytes(c->samples, wide * c->cols);
    test_expect_ok(d->ctx, spops_context_reserve(d->ctx, op.scratch_bytes), "reserve");
    op.in[X] = test_view(test_input("x", c->rows, c->cols, c->dtype, VALUES_RANDOM),
                         test_rng_below(rng, 2) * 4, test_rng_below(rng, 2));
    if (c->kind == STATISTICS) {
        op.out[0] = test_output("mean", 1, all, sums, CHECK_BOUND);
        op.out[1] = test_output("var", 1, all, sums, CHECK_BOUND);
        test_operator_run(d, &op);
        return;
    }
    op.in[MEAN] = test_input("mean", 1, all, sums, VALUES_RANDOM);
    op.in[VAR] = test_input("var", 1, all, sums, VALUES_RANDOM);
    if (affine) op.in[GAMMA] = test_input("gamma", 1, c->cols, sums, VALUES_RANDOM);
    if (affine) op.in[BETA] = test_input("beta", 1, c->cols, sums, VALUES_RANDOM);
    op.out[OUT] = test_view(
        test_output(c->kind == FORWARD ? "out" : "grad_x", c->rows, c->cols, c->dtype, CHECK_BOUND),
        test_rng_below(rng, 2) * 8, test_rng_below(rng, 2));
    if (c->kind == BACKWARD) {
        op.in[GRAD_OUT] =
            test_view(test_input("grad_out", c->rows, c->cols, c->dtype, VALUES_RANDOM), 0,
                      test_rng_below(rng, 2));
        if (test_rng_below(rng, 3) > 0)
            op.out[GRAD_GAMMA] = test_output("grad_gamma", 1, c->cols, sums, CHECK_BOUND);
        if (test_rng_below(rng, 3) > 0)
            op.out[GRAD_BETA] = test_output("grad_beta", 1, c->cols, sums, CHECK_BOUND);
    }
    test_operator_run(d, &op);
}

static const struct group_size {
    int64_t rows, cols, samples;
    int32_t groups;
} sizes[] = {{1, 1, 1, 1},    {5, 8, 3, 2},      {40, 33, 4, 11}, {257, 16, 1, 16},
             {900, 24, 2, 3}, {1300, 64, 9, 64}, {70, 520, 5, 8}, {2100, 8, 40, 1}};
enum { NUM_SIZES = sizeof sizes / sizeof *sizes, NUM_SMALL_SIZES = 4 };

static void check_sizes(test_device *d, int num_sizes, group_kind kind, spops_dtype dtype,
                        uint64_t stream)
{
    test_rng rng = test_rng_make(stream + 3);

    for (int i = 0; i < num_sizes; ++i)
        for (int by_keys = 0; by_keys < 2; ++by_keys) {
            group_case c = {.kind = kind,
                            .rows = sizes[i].rows,
                            .cols = sizes[i].cols,
                            .num_samples = sizes[i].samples,
                            .groups = sizes[i].groups,
                            .dtype = dtype,
                            .activation = test_activation(&rng, false),
                            .fixed_statistics = test_rng_below(&rng, 4) == 0};
            make_samples(d, &c, by_keys == 1, &rng);
            check_case(d, &c, ++stream, &rng);
            spops_segments_destroy(c.samples);
            free(c.sample);
        }
}

CaseTest(group_norm, agrees, every_case(test_row_dtypes, NUM_REAL_DTYPES, all_kinds, NUM_KINDS),
         .timeout = 600)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    check_sizes(&d, NUM_SIZES, (group_kind)p->op, (spops_dtype)p->dtype, case_number(p) << 32);
    test_close(&d);
}

// What a sanitizer runs.
BackendTest(group_norm, small, .timeout = 600)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    for (int kind = 0; kind < NUM_KINDS; ++kind)
        for (int dtype = 0; dtype < NUM_ROW_DTYPES; ++dtype)
            check_sizes(&d, NUM_SMALL_SIZES, (group_kind)kind, test_row_dtypes[dtype],
                        (uint64_t)(kind * NUM_ROW_DTYPES + dtype) << 20);
    test_close(&d);
}

// ---- One sample among others, sets of coordinates, capacities -----------------------------------

static float *upload(test_device *d, const float *values, int64_t n)
{
    return (float *)(void *)test_upload_i32(d, (const int32_t *)(const void *)values, n);
}

static void download(test_device *d, float *values, const float *from, int64_t n)
{
    test_download_i32(d, (int32_t *)(void *)values, (const int32_t *)(const void *)from, n);
}

enum { ROWS = 700, COLS = 12, GROUPS = 3, N = ROWS * COLS };

static void fill(float *x, int seed)
{
    test_rng rng = test_rng_make((uint64_t)seed);
    for (int i = 0; i < N; ++i)
        x[i] = (float)test_rng_unit(&rng) * 4 - 1;
}

// Statistics and output of samples; out keeps what it has where no sample has a row.
static void normalise(test_device *d, const spops_segments *samples, int64_t num_samples,
                      int64_t rows, const float *x, float *mean, float *var, float *out)
{
    const int64_t all = num_samples * GROUPS;
    float *dx = upload(d, x, rows * COLS), *dy = upload(d, out, rows * COLS);
    float *dm = upload(d, x, all), *dv = upload(d, x, all);
    const spops_matrix mx = spops_matrix_dense(dx, rows, COLS, SPOPS_DTYPE_F32);
    const spops_matrix my = spops_matrix_dense(dy, rows, COLS, SPOPS_DTYPE_F32);

    test_expect_ok(d->ctx,
                   spops_context_reserve(d->ctx, spops_groupnorm_scratch_bytes(samples, COLS)), "");
    test_expect_ok(d->ctx, spops_groupnorm_statistics_execute(d->ctx, samples, GROUPS, mx, dm, dv),
                   "");
    test_expect_ok(
        d->ctx, spops_groupnorm_execute(d->ctx, samples, GROUPS, mx, dm, dv, NULL, NULL, NULL, my),
        "");
    test_wait(d);
    download(d, mean, dm, all), download(d, var, dv, all), download(d, out, dy, rows * COLS);
    test_free(d, dx), test_free(d, dy), test_free(d, dm), test_free(d, dv);
}

// Where a sample stands in a batch changes no bit.
BackendTest(group_norm, of_a_sample_wherever_it_is)
{
    static float x[N], alone[N], among[N], mean[3 * GROUPS], var[3 * GROUPS];
    float first_mean[GROUPS], first_var[GROUPS];
    enum { BEFORE = 131, OWN = 300 };
    const int32_t own[] = {0, OWN}, all[] = {0, BEFORE, BEFORE + OWN, ROWS};
    spops_segments *samples = NULL;
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    fill(x, 5);
    int32_t *offsets = test_upload_i32(&d, own, 2);
    test_expect_ok(d.ctx, spops_segments_create(d.ctx, 1, offsets, NULL, &samples), "alone");
    normalise(&d, samples, 1, OWN, x + BEFORE * COLS, first_mean, first_var, alone);
    spops_segments_destroy(samples);
    test_free(&d, offsets);
    offsets = test_upload_i32(&d, all, 4);
    test_expect_ok(d.ctx, spops_segments_create(d.ctx, 3, offsets, NULL, &samples), "among");
    normalise(&d, samples, 3, ROWS, x, mean, var, among);
    cr_assert(memcmp(mean + GROUPS, first_mean, sizeof first_mean) == 0);
    cr_assert(memcmp(var + GROUPS, first_var, sizeof first_var) == 0);
    cr_assert(memcmp(among + BEFORE * COLS, alone, OWN * COLS * sizeof *alone) == 0);
    spops_segments_destroy(samples);
    test_free(&d, offsets);
    test_close(&d);
}

// The samples of a set of coordinates, which lie in any order.
BackendTest(group_norm, of_a_set_of_coordinates)
{
    enum { SAMPLES = 4 }; // the third has no row
    static float x[N], out[N];
    static int32_t rows[ROWS][2];
    float mean[SAMPLES * GROUPS], var[SAMPLES * GROUPS];
    spops_coords *set = NULL;
    spops_pool *pool = NULL;
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    fill(x, 6);
    for (int r = 0; r < ROWS; ++r) {
        rows[r][0] = r % 7 == 0 ? 3 : r % 2;
        rows[r][1] = r;
    }
    int32_t *coords = test_upload_i32(&d, rows[0], 2 * ROWS);
    test_expect_ok(d.ctx, spops_coords_create(d.ctx, 1, ROWS, coords, NULL, &set), "set");
    test_expect_ok(d.ctx, spops_pool_create_global(d.ctx, set, SAMPLES, NULL, &pool), "pool");
    normalise(&d, spops_pool_segments(pool), SAMPLES, ROWS, x, mean, var, out);
    for (int s = 0; s < SAMPLES; ++s)
        for (int k = 0; k < GROUPS; ++k) {
            double sum = 0, squares = 0, of_out = 0, n = 0;
            for (int i = 0; i < N; ++i)
                if (rows[i / COLS][0] == s && i % COLS / (COLS / GROUPS) == k)
                    sum += (double)x[i], of_out += (double)out[i], n += 1;
            for (int i = 0; i < N && n > 0; ++i)
                if (rows[i / COLS][0] == s && i % COLS / (COLS / GROUPS) == k)
                    squares += ((double)x[i] - sum / n) * ((double)x[i] - sum / n);
            const int at = s * GROUPS + k;
            cr_assert(fabs((double)mean[at] - (n > 0 ? sum / n : 0)) < 1e-6);
            cr_assert(fabs((double)var[at] - (n > 0 ? squares / n : 0)) < 1e-5);
            cr_assert(fabs(of_out) < 1e-3, "%d, %d: the normalised values add to %g", s, k, of_out);
        }
    spops_pool_destroy(pool);
    spops_coords_destroy(set);
    test_free(&d, coords);
    test_close(&d);
}

// A plan into a capacity, refilled; rows that no sample has stay.
BackendTest(group_norm, of_a_refilled_plan)
{
    enum { SAMPLES = 3 };
    static float x[N], out[N], expected[N];
    static int32_t keys[ROWS];
    float mean[2][SAMPLES * GROUPS], var[2][SAMPLES * GROUPS];
    static const int32_t counts[] = {0, 1, 257, ROWS};
    spops_segments *samples = NULL;
    spops_segments_options options = spops_segments_options_default();
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    fill(x, 7);
    for (int r = 0; r < ROWS; ++r)
        keys[r] = r * r % 11 % SAMPLES;
    options.num_rows = ROWS;
    test_expect_ok(d.ctx, spops_segments_reserve(d.ctx, SAMPLES, ROWS, &options, &samples), "");
    int32_t *on_device = test_upload_i32(&d, keys, ROWS);
    for (size_t k = 0; k < sizeof counts / sizeof *counts; ++k) {
        spops_segments *made = NULL;
        int32_t *n = test_upload_i32(&d, &counts[k], 1);
        for (int i = 0; i < N; ++i)
            out[i] = expected[i] = 77;
        test_expect_ok(d.ctx, spops_segments_update(d.ctx, samples, n, on_device, NULL, NULL), "");
        normalise(&d, samples, SAMPLES, ROWS, x, mean[0], var[0], out);
        test_expect_ok(d.ctx,
                       spops_segments_create_from_keys(d.ctx, SAMPLES, counts[k], on_device,
                                                       SPOPS_KEYS_UNSORTED, NULL, &made),
                       "");
        normalise(&d, made, SAMPLES, counts[k], x, mean[1], var[1], expected);
        cr_assert(memcmp(mean[0], mean[1], sizeof mean[0]) == 0, "%d rows", (int)counts[k]);
        cr_assert(memcmp(var[0], var[1], sizeof var[0]) == 0, "%d rows", (int)counts[k]);
        cr_assert(memcmp(out, expected, sizeof out) == 0, "%d rows", (int)counts[k]);
        spops_segments_destroy(made);
        test_free(&d, n);
    }
    spops_segments_destroy(samples);
    test_free(&d, on_device);
    test_close(&d);
}

// Without a sample there is nothing to write but the gradients of columns, which are 0.
BackendTest(group_norm, of_no_samples)
{
    static float x[N], after[N], grads[2 * COLS];
    static const int32_t none = 0;
    spops_segments_options options = spops_segments_options_default();
    spops_segments *samples = NULL;
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    fill(x, 9);
    options.num_rows = ROWS;
    test_expect_ok(d.ctx, spops_segments_reserve(d.ctx, 0, ROWS, &options, &samples), "reserve");
    int32_t *on_device = test_upload_i32(&d, &none, 1);
    float *dx = upload(&d, x, N), *dy = upload(&d, x, N), *dg = upload(&d, x, 2 * COLS);
    const spops_matrix mx = spops_matrix_dense(dx, ROWS, COLS, SPOPS_DTYPE_F32);
    const spops_matrix my = spops_matrix_dense(dy, ROWS, COLS, SPOPS_DTYPE_F32);
    float *empty = (float *)(void *)on_device;
    test_expect_ok(d.ctx,
                   spops_context_reserve(d.ctx, spops_groupnorm_scratch_bytes(samples, COLS)), "");
    test_expect_ok(
        d.ctx,
        spops_groupnorm_execute(d.ctx, samples, GROUPS, mx, empty, empty, NULL, NULL, NULL, my),
        "forward");
    test_expect_ok(d.ctx,
                   spops_groupnorm_execute_backward(d.ctx, samples, GROUPS, mx, mx, empty, empty,
                                                    NULL, NULL, NULL, my, dg, dg + COLS),
                   "backward");
    test_wait(&d);
    download(&d, after, dy, N), download(&d, grads, dg, 2 * COLS);
    cr_assert(memcmp(after, x, sizeof x) == 0);
    for (int c = 0; c < 2 * COLS; ++c)
        cr_assert(grads[c] == 0, "%g", (double)grads[c]);
    spops_segments_destroy(samples);
    test_free(&d, dx), test_free(&d, dy), test_free(&d, dg), test_free(&d, on_device);
    test_close(&d);
}

// out over x, grad_x over grad_out: the same bits as apart.
BackendTest(group_norm, works_in_place)
{
    static float x[N], g[N], found[4][N];
    static const int32_t own[] = {0, 3, ROWS};
    spops_segments *samples = NULL;
    spops_norm_options options = spops_norm_options_default();
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    fill(x, 10), fill(g, 11);
    options.activation = SPOPS_ACTIVATION_SILU;
    int32_t *offsets = test_upload_i32(&d, own, 3);
    test_expect_ok(d.ctx, spops_segments_create(d.ctx, 2, offsets, NULL, &samples), "samples");
    test_expect_ok(d.ctx,
                   spops_context_reserve(d.ctx, spops_groupnorm_scratch_bytes(samples, COLS)), "");
    float *mean = upload(&d, x, 2 * GROUPS), *var = upload(&d, x, 2 * GROUPS);
    for (int k = 0; k < 4; ++k) {
        const bool backward = k / 2 == 1, in_place = k % 2 == 1;
        float *dx = upload(&d, x, N), *dg = upload(&d, g, N), *dy = upload(&d, g, N);
        const spops_matrix mx = spops_matrix_dense(dx, ROWS, COLS, SPOPS_DTYPE_F32);
        const spops_matrix mg = spops_matrix_dense(dg, ROWS, COLS, SPOPS_DTYPE_F32);
        const spops_matrix my = spops_matrix_dense(dy, ROWS, COLS, SPOPS_DTYPE_F32);
        const spops_matrix to = !in_place ? my : backward ? mg : mx;
        test_expect_ok(
            d.ctx, spops_groupnorm_statistics_execute(d.ctx, samples, GROUPS, mx, mean, var), "");
        test_expect_ok(d.ctx,
                       backward ? spops_groupnorm_execute_backward(d.ctx, samples, GROUPS, mg, mx,
                                                                   mean, var, NULL, NULL, &options,
                                                                   to, NULL, NULL)
                                : spops_groupnorm_execute(d.ctx, samples, GROUPS, mx, mean, var,
                                                          NULL, NULL, &options, to),
                       "in place");
        test_wait(&d);
        download(&d, found[k], (const float *)to.data, N);
        test_free(&d, dx), test_free(&d, dg), test_free(&d, dy);
    }
    cr_assert(memcmp(found[0], found[1], sizeof found[0]) == 0, "forward");
    cr_assert(memcmp(found[2], found[3], sizeof found[0]) == 0, "backward");
    cr_assert(memcmp(found[0], x, sizeof x) != 0 && memcmp(found[2], g, sizeof g) != 0);
    spops_segments_destroy(samples);
    test_free(&d, mean), test_free(&d, var), test_free(&d, offsets);
    test_close(&d);
}

// Finite values have finite means; a NaN stays in its sample and group.
BackendTest(group_norm, of_hostile_values)
{
    static float x[N], out[N];
    const int32_t own[] = {0, 1, 300, ROWS};
    float mean[3 * GROUPS], var[3 * GROUPS];
    spops_segments *samples = NULL;
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    fill(x, 8);
    for (int r = 1; r < 300; ++r)
        for (int c = 0; c < 4; ++c)
            x[r * COLS + c] = (r + c) % 2 == 0 ? 3e38f : -3e38f;
    x[450 * COLS + 5] = NAN;
    int32_t *offsets = test_upload_i32(&d, own, 4);
    test_expect_ok(d.ctx, spops_segments_create(d.ctx, 3, offsets, NULL, &samples), "samples");
    normalise(&d, samples, 3, ROWS, x, mean, var, out);
    for (int k = 0; k < 3 * GROUPS; ++k) {
        cr_assert((k == 2 * GROUPS + 1) == isnan(mean[k]), "%d: %g", k, (double)mean[k]);
        cr_assert(isnan(mean[k]) || isfinite(mean[k]), "%d: %g", k, (double)mean[k]);
        cr_assert((k == GROUPS) == isinf(var[k]), "%d: %g", k, (double)var[k]);
    }
    for (int i = 0; i < N; ++i)
        cr_assert((i / COLS >= 300 && i % COLS / 4 == 1) == isnan(out[i]), "%d: %g", i,
                  (double)out[i]);
    spops_segments_destroy(samples);
    test_free(&d, offsets);
    test_close(&d);
}

BackendTest(group_norm, refuses)
{
    enum { R = 4, C = 6 };
    static const float zeros[R * C];
    float after[R * C];
    const int32_t own[] = {0, 3, R};
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    spops_norm_options options = spops_norm_options_default();
    spops_segments *samples = NULL;
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    int32_t *offsets = test_upload_i32(&d, own, 3);
    test_expect_ok(d.ctx, spops_segments_create(d.ctx, 2, offsets, NULL, &samples), "samples");
    float *x = upload(&d, zeros, R * C), *y = upload(&d, zeros, R * C), *v = upload(&d, zeros, 24);
    const spops_matrix mx = spops_matrix_dense(x, R, C, SPOPS_DTYPE_F32);
    const spops_matrix my = spops_matrix_dense(y, R, C, SPOPS_DTYPE_F32);
    const spops_matrix fewer = spops_matrix_dense(y, R - 1, C, SPOPS_DTYPE_F32);
    const spops_matrix none = spops_matrix_dense(y, R, 0, SPOPS_DTYPE_F32);

    test_expect(d.ctx, spops_groupnorm_statistics_execute(d.ctx, NULL, 2, mx, v, v + 12), invalid,
                "groupnorm_statistics_execute: samples is NULL", "no samples");
    test_expect(d.ctx, spops_groupnorm_statistics_execute(d.ctx, samples, 4, mx, v, v + 12),
                invalid, "x has 6 columns, expected a multiple of groups = 4", "groups");
    test_expect(d.ctx, spops_groupnorm_statistics_execute(d.ctx, samples, 0, mx, v, v + 12),
                invalid, "groupnorm_statistics_execute: groups is 0, expected 1 to", "no groups");
    test_expect(d.ctx, spops_groupnorm_statistics_execute(d.ctx, samples, 2, fewer, v, v + 12),
                invalid, "groupnorm_statistics_execute: x", "fewer rows");
    test_expect(d.ctx, spops_groupnorm_statistics_execute(d.ctx, samples, 1, none, v, v + 12),
                invalid, "x has no columns", "no columns");
    test_expect(d.ctx, spops_groupnorm_statistics_execute(d.ctx, samples, 2, mx, v, v + 1), invalid,
                "var overlaps mean, expected separate memory", "var over mean");
    test_expect(d.ctx, spops_groupnorm_statistics_execute(d.ctx, samples, 2, mx, v, v + 12),
                SPOPS_STATUS_SCRATCH_TOO_SMALL, "spops_groupnorm_scratch_bytes(samples, 6)",
                "no scratch");
    test_expect(d.ctx,
                spops_groupnorm_execute(d.ctx, samples, 2, mx, NULL, v, NULL, NULL, NULL, my),
                invalid, "groupnorm_execute: mean is NULL", "no mean");
    test_expect(d.ctx,
                spops_groupnorm_execute(d.ctx, samples, 2, mx, v, v, NULL, NULL, NULL, fewer),
                invalid, "groupnorm_execute: out", "fewer rows");
    test_expect(d.ctx,
                spops_groupnorm_execute_backward(d.ctx, samples, 2, my, mx, v, v, NULL, NULL, NULL,
                                                 mx, NULL, NULL),
                invalid, "groupnorm_execute_backward: grad_x overlaps x", "grad_x over x");
    options.num_rows = offsets;
    test_expect(d.ctx,
                spops_groupnorm_execute(d.ctx, samples, 2, mx, v, v, NULL, NULL, &options, my),
                invalid, "num_rows is not NULL", "num_rows");
    options = spops_norm_options_default();
    options.activation = (spops_activation)11;
    test_expect(d.ctx,
                spops_groupnorm_execute(d.ctx, samples, 2, mx, v, v, NULL, NULL, &options, my),
                invalid, "activation is 11, expected 0 to 6", "activation");
    cr_assert(spops_groupnorm_scratch_bytes(NULL, 4) == 0);
    cr_assert(spops_groupnorm_scratch_bytes(samples, -1) == 0);
    download(&d, after, y, R * C);
    cr_assert_arr_eq(after, zeros, sizeof zeros);
    test_free(&d, x), test_free(&d, y), test_free(&d, v), test_free(&d, offsets);
    spops_segments_destroy(samples);
    test_close(&d);
}
