// SPDX-License-Identifier: Apache-2.0
// Activations alone, and their gradients, against FP64: every kind of values, strides and launches; the
// error in units of the last place; limits; rows that only the device counts; what is refused.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ref/ref_activation.h"
#include "tests/support/operator.h"
#include "tests/support/params.h"
#include "tests/support/relation.h"

enum { X, GRAD_OUT };

typedef struct activation_case {
    ref_activation how;
    bool backward, is_f64;
} activation_case;

static spops_activation_options options_of(const activation_case *c)
{
    spops_activation_options options = spops_activation_options_default();
    options.activation_slope = c->how.slope;
    return options;
}

static spops_status run(void *user, spops_context *ctx, const spops_matrix *const *in,
                        const spops_matrix *const *out)
{
    const activation_case *c = (const activation_case *)user;
    const spops_activation_options options = options_of(c);
    if (c->backward)
        return spops_activation_execute_backward(ctx, c->how.kind, *in[GRAD_OUT], *in[X], &options,
                                                 *out[0]);
    return spops_activation_execute(ctx, c->how.kind, *in[X], &options, *out[0]);
}

// The relative error of GELU_TANH below 0 grows with the exponent of what it multiplies by; that of GELU in
// f64 too, of which f32 has more digits.
static double growth_of(ref_activation a, bool is_f64, double y)
{
    if (a.kind == SPOPS_ACTIVATION_GELU && is_f64 && y < 0) return 1 + fmin(y * y, 2000);
    if (a.kind != SPOPS_ACTIVATION_GELU_TANH || !(y < 0)) return 1;
    return 1 + fmin(fabs(y) * (1.6 + 0.08 * y * y), 110);
}

static void reference(void *user, const double *const *in, ref_tensor *const *out)
{
    const activation_case *c = (const activation_case *)user;
    for (int64_t i = 0; i < out[0]->rows * out[0]->cols; ++i) {
        const double y = in[X][i], value = ref_activate(c->how, y);
        if (c->backward) {
            const double g = in[GRAD_OUT][i], slope = ref_activation_derivative(c->how, y);
            const bool masked = c->how.kind == SPOPS_ACTIVATION_RELU && y <= 0;
            out[0]->value[i] = masked ? 0 : g * slope;
            out[0]->scale[i] = fabs(g) * (fabs(slope) + 1);
        } else {
            out[0]->value[i] = value;
            out[0]->scale[i] = fabs(value) * growth_of(c->how, c->is_f64, y);
        }
        // What is below the smallest normal number has fewer digits.
        out[0]->roundings[i] = fabs(value) < 1e-36 ? 64 : REF_ACTIVATION_ROUNDINGS;
    }
}

static const int64_t shapes[][2] = {{0, 5},   {5, 0},   {1, 1},    {3, 7},
                                    {17, 33}, {64, 64}, {5, 2049}, {300, 24}};
enum { NUM_SHAPES = sizeof shapes / sizeof *shapes, NUM_SMALL_SHAPES = 5, WHOLE_SHAPE = 4 };

static void check_shape(test_device *d, const int64_t shape[2], spops_activation kind,
                        spops_dtype dtype, test_values values, test_rng *rng, uint64_t stream)
{
    static const float slopes[] = {0, 0.25f, -3, 100};
    const test_check check = kind <= SPOPS_ACTIVATION_RELU ? CHECK_EXACT : CHECK_BOUND;

    for (int backward = 0; backward < 2; ++backward) {
        activation_case c = {
            .how = {kind, 0}, .backward = backward == 1, .is_f64 = dtype == SPOPS_DTYPE_F64};
        test_operator op = {.what = backward ? "gradient" : "activation",
                            .stream = 2 * stream + (uint64_t)backward,
                            .user = &c,
                            .run = run,
                            .reference = reference};
        if (kind == SPOPS_ACTIVATION_LEAKY_RELU) c.how.slope = slopes[test_rng_below(rng, 4)];
        op.in[X] = test_view(test_input("x", shape[0], shape[1], dtype, values),
                             test_rng_below(rng, 3) * 4, test_rng_below(rng, 2));
        if (backward)
            op.in[GRAD_OUT] =
                test_view(test_input("grad_out", shape[0], shape[1], dtype,
                                     values == VALUES_NAN ? VALUES_NAN : VALUES_RANDOM),
                          test_rng_below(rng, 3) * 4, test_rng_below(rng, 2));
        op.out[0] =
            test_view(test_output(backward ? "grad_x" : "out", shape[0], shape[1], dtype, check),
                      test_rng_below(rng, 3) * 8, test_rng_below(rng, 2));
        test_operator_run(d, &op);
    }
}

static const int all_kinds[] = {0, 1, 2, 3, 4, 5, 6};

CaseTest(activation, agrees,
         every_case(test_row_dtypes, NUM_REAL_DTYPES, all_kinds, REF_NUM_ACTIVATIONS),
         .timeout = 600)
{
    uint64_t stream = case_number(p) << 32;
    test_rng rng = test_rng_make(stream + 11);
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    for (int s = 0; s < NUM_SHAPES; ++s)
        for (int values = 0; values <= VALUES_LARGE; ++values) {
            // Every kind of values at one size, and a part of them at the others.
            if (s != WHOLE_SHAPE && (s + values + p->op) % 4 != 0) continue;
            check_shape(&d, shapes[s], (spops_activation)p->op, (spops_dtype)p->dtype,
                        (test_values)values, &rng, ++stream);
        }
    test_close(&d);
}

// ---- Sums ---------------------------------------------------------------------------------------

enum { FIRST, SECOND };

typedef struct sum_case {
    float scale;
    ref_activation how;
} sum_case;

static spops_status run_sum(void *user, spops_context *ctx, const spops_matrix *const *in,
                            const spops_matrix *const *out)
{
    const sum_case *c = (const sum_case *)user;
    spops_add_options options = spops_add_options_default();
    options.scale = c->scale;
    options.activation = c->how.kind;
    return spops_add_execute(ctx, *in[FIRST], *in[SECOND], &options, *out[0]);
}

static void reference_sum(void *user, const double *const *in, ref_tensor *const *out)
{
    const sum_case *c = (const sum_case *)user;
    const double scale = c->scale == 0 ? 1 : (double)c->scale;
    for (int64_t i = 0; i < out[0]->rows * out[0]->cols; ++i) {
        const double value = ref_activate(c->how, in[FIRST][i]), more = scale * in[SECOND][i];
        out[0]->value[i] = value + more;
        out[0]->scale[i] = fabs(value) + fabs(more);
        out[0]->roundings[i] = c->how.kind == SPOPS_ACTIVATION_NONE ? 2 : REF_ACTIVATION_ROUNDINGS;
    }
}

// What `form` names of sums: every shape and scale, without an activation and with one. Streams are those
// after `stream`.
static void check_sums(const struct case_param *p, const test_operator *form, uint64_t stream)
{
    static const float scales[] = {0, 1, -0.37f, 1e-3f};
    const spops_dtype dtype = (spops_dtype)p->dtype;
    test_rng rng = test_rng_make(stream + 13);
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    for (int s = 0; s < NUM_SHAPES; ++s)
        for (int k = 0; k < 8; ++k) {
            const int64_t rows = shapes[s][0], cols = shapes[s][1];
            sum_case c = {scales[k / 2],
                          {k % 2 == 0 ? SPOPS_ACTIVATION_NONE : SPOPS_ACTIVATION_SILU, 0}};
            test_operator op = *form;
            op.stream = ++stream;
            op.user = &c;
            for (int i = 0; i < 2; ++i) {
                op.in[i] = test_view(test_input(form->in[i].name, rows, cols, dtype, VALUES_RANDOM),
                                     test_rng_below(&rng, 3) * 4, test_rng_below(&rng, 2));
                if (form->out[i].name != NULL)
                    op.out[i] =
                        test_view(test_output(form->out[i].name, rows, cols, dtype, CHECK_BOUND),
                                  test_rng_below(&rng, 3) * 8, test_rng_below(&rng, 2));
            }
            test_operator_run(&d, &op);
        }
    test_close(&d);
}

CaseTest(activation, sums_agree, every_case(test_row_dtypes, NUM_REAL_DTYPES, all_kinds, 1),
         .timeout = 600)
{
    const test_operator form = {.what = "sum",
                                .run = run_sum,
                                .reference = reference_sum,
                                .in = {[FIRST] = {.name = "x"}, [SECOND] = {.name = "y"}},
                                .out = {{.name = "out"}}};
    check_sums(p, &form, (case_number(p) << 32) + (1 << 20));
}

// Gradients of both addends.
static spops_status run_sum_backward(void *user, spops_context *ctx, const spops_matrix *const *in,
                                     const spops_matrix *const *out)
{
    const sum_case *c = (const sum_case *)user;
    spops_add_options options = spops_add_options_default();
    options.scale = c->scale;
    options.activation = c->how.kind;
    return spops_add_execute_backward(ctx, *in[GRAD_OUT], *in[X], &options, out[0], out[1]);
}

static void reference_sum_backward(void *user, const double *const *in, ref_tensor *const *out)
{
    const sum_case *c = (const sum_case *)user;
    const double scale = c->scale == 0 ? 1 : (double)c->scale;
    for (int64_t i = 0; i < out[0]->rows * out[0]->cols; ++i) {
        const double g = in[GRAD_OUT][i], slope = ref_activation_derivative(c->how, in[X][i]);
        out[0]->value[i] = g * slope;
        out[0]->scale[i] = fabs(g) * (fabs(slope) + 1);
        out[0]->roundings[i] = REF_ACTIVATION_ROUNDINGS;
        out[1]->value[i] = scale * g;
        out[1]->scale[i] = fabs(scale * g);
        out[1]->roundings[i] = 1;
    }
}

CaseTest(activation, gradients_of_sums_agree,
         every_case(test_row_dtypes, NUM_REAL_DTYPES, all_kinds, 1), .timeout = 600)
{
    const test_operator form = {.what = "gradients of a sum",
                                .run = run_sum_backward,
                                .reference = reference_sum_backward,
                                .in = {[X] = {.name = "x"}, [GRAD_OUT] = {.name = "grad_out"}},
                                .out = {{.name = "grad_x"}, {.name = "grad_y"}}};
    check_sums(p, &form, (case_number(p) << 32) + (1 << 21));
}

// A step of gradient descent: out is x, and rows after those in use stay.
BackendTest(activation, adds_in_place)
{
    enum { ROWS = 9, COLS = 5, N = ROWS * COLS, IN_USE = 4 };
    static const int32_t in_use = IN_USE;
    float x[N], y[N], found[N];
    spops_add_options options = spops_add_options_default();
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    for (int i = 0; i < N; ++i) {
        x[i] = (float)(i - 20) / 4;
        y[i] = (float)(3 * i + 1) / 8;
    }
    float *dx = (float *)(void *)test_upload_i32(&d, (const int32_t *)(const void *)x, N);
    float *dy = (float *)(void *)test_upload_i32(&d, (const int32_t *)(const void *)y, N);
    int32_t *rows = test_upload_i32(&d, &in_use, 1);
    const spops_matrix mx = spops_matrix_dense(dx, ROWS, COLS, SPOPS_DTYPE_F32);
    const spops_matrix my = spops_matrix_dense(dy, ROWS, COLS, SPOPS_DTYPE_F32);
    options.num_rows = rows;
    options.scale = -0.5f;
    test_expect_ok(d.ctx, spops_add_execute(d.ctx, mx, my, &options, mx), "in place");
    test_wait(&d);
    test_download_i32(&d, (int32_t *)(void *)found, (const int32_t *)(const void *)dx, N);
    for (int i = 0; i < N; ++i)
        cr_assert_eq(found[i], i / COLS < IN_USE ? x[i] - 0.5f * y[i] : x[i], "%d: %g", i,
                     (double)found[i]);
    test_free(&d, dx), test_free(&d, dy), test_free(&d, rows);
    test_close(&d);
}

BackendTest(activation, refuses_sums)
{
    enum { ROWS = 4, COLS = 6, N = ROWS * COLS };
    static const float zeros[3 * N];
    float after[3 * N];
    spops_add_options options = spops_add_options_default();
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    float *all = (float *)(void *)test_upload_i32(&d, (const int32_t *)(const void *)zeros, 3 * N);
    const spops_matrix x = spops_matrix_dense(all, ROWS, COLS, SPOPS_DTYPE_F32);
    const spops_matrix y = spops_matrix_dense(all + N, ROWS, COLS, SPOPS_DTYPE_F32);
    const spops_matrix out = spops_matrix_dense(all + 2 * N, ROWS, COLS, SPOPS_DTYPE_F32);
    const spops_matrix fewer = spops_matrix_dense(all + N, ROWS - 1, COLS, SPOPS_DTYPE_F32);
    const spops_matrix half = spops_matrix_dense(all + N, ROWS, COLS, SPOPS_DTYPE_F16);

    test_expect(d.ctx, spops_add_execute(d.ctx, x, fewer, NULL, out), invalid,
                "add_execute: y is [3, 6], expected [4, 6]", "fewer rows");
    test_expect(d.ctx, spops_add_execute(d.ctx, x, half, NULL, out), invalid, "add_execute: y",
                "another dtype");
    test_expect(d.ctx, spops_add_execute(d.ctx, x, y, NULL, y), invalid,
                "add_execute: out overlaps y", "out over y");
    options.scale = INFINITY;
    test_expect(d.ctx, spops_add_execute(d.ctx, x, y, &options, out), invalid,
                "add_execute: scale is", "scale");
    options.scale = 1;
    options.activation = (spops_activation)9;
    test_expect(d.ctx, spops_add_execute(d.ctx, x, y, &options, out), invalid,
                "add_execute: activation is 9, expected 0 to 6", "activation");
    options.activation = SPOPS_ACTIVATION_NONE;
    options.reserved = 1;
    test_expect(d.ctx, spops_add_execute(d.ctx, x, y, &options, out), invalid,
                "add_execute: reserved is 1, expected 0", "reserved");
    cr_assert_eq(spops_add_execute(NULL, x, y, NULL, out), invalid);
    test_wait(&d);
    test_download_i32(&d, (int32_t *)(void *)after, (const int32_t *)(const void *)all, 3 * N);
    cr_assert_arr_eq(after, zeros, sizeof zeros);
    test_free(&d, all);
    test_close(&d);
}

// What a sanitizer runs.
BackendTest(activation, small, .timeout = 600)
{
    test_rng rng = test_rng_make(12);
    uint64_t stream = 0;
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    for (int kind = 0; kind < REF_NUM_ACTIVATIONS; ++kind)
        for (int dtype = 0; dtype < NUM_ROW_DTYPES; ++dtype)
            for (int s = test_quick() ? 3 : 0; s < NUM_SMALL_SHAPES; ++s)
                check_shape(&d, shapes[s], (spops_activation)kind, test_row_dtypes[dtype],
                            VALUES_RANDOM, &rng, ++stream);
    test_close(&d);
}

// ---- The error, and that the reference's derivatives are those of its values ---------------------

Test(activation, derivatives_are_slopes)
{
    for (int kind = 0; kind < REF_NUM_ACTIVATIONS; ++kind) {
        const ref_activation a = {(spops_activation)kind, 0.3f};
        for (double y = -9.013; y < 9; y += 0.027) {
            const double h = 1e-5;
            const double slope = (ref_activate(a, y + h) - ref_activate(a, y - h)) / (2 * h);
            const double grown =
                fabs(ref_activation_derivative(a, y + h) - ref_activation_derivative(a, y - h)) /
                (2 * h);
            cr_assert(fabs(slope - ref_activation_derivative(a, y)) < 1e-8, "%d at %g", kind, y);
            cr_assert(fabs(slope) <= ref_activation_growth(a) + 1e-6, "%d at %g", kind, y);
            cr_assert(grown <= ref_activation_curvature(a) + 1e-6, "%d at %g: %g", kind, y, grown);
        }
    }
}

enum { POINTS = 1 << 16 };

// Values of f32, close to each other from -14 to 14 and to -104, and towards 0 from both sides.
static void fill_points(float *x)
{
    for (int i = 0; i < POINTS; ++i) {
        const double at = (double)(i / 2) / (POINTS / 2);
        x[i] = i % 2 == 0 ? (float)(-14 + 28 * at) : (float)(-104 + 104 * at);
        if (i % 16 == 5) x[i] = (float)((i % 32 == 5 ? 1 : -1) * pow(10, -37 * at));
    }
}

static float *upload(test_device *d, const float *values, int64_t n)
{
    return (float *)(void *)test_upload_i32(d, (const int32_t *)(const void *)values, n);
}

static void download(test_device *d, float *values, const float *from, int64_t n)
{
    test_download_i32(d, (int32_t *)(void *)values, (const int32_t *)(const void *)from, n);
}

BackendTest(activation, error_of_f32)
{
    static float x[POINTS], found[POINTS];
    test_device d;

    // CUDA's exp and reciprocal are each off by a unit of the last place, two of these, more than ours.
    const double most = p->backend == SPOPS_BACKEND_CUDA ? 16 : 8;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    fill_points(x);
    float *dx = upload(&d, x, POINTS), *dy = upload(&d, x, POINTS);
    const spops_matrix mx = spops_matrix_dense(dx, POINTS / 64, 64, SPOPS_DTYPE_F32);
    const spops_matrix my = spops_matrix_dense(dy, POINTS / 64, 64, SPOPS_DTYPE_F32);
    for (int kind = SPOPS_ACTIVATION_SILU; kind < REF_NUM_ACTIVATIONS; ++kind) {
        const ref_activation a = {(spops_activation)kind, 0};
        test_expect_ok(d.ctx, spops_activation_execute(d.ctx, a.kind, mx, NULL, my), "error");
        test_wait(&d);
        download(&d, found, dy, POINTS);
        for (int i = 0; i < POINTS; ++i) {
            const double value = ref_activate(a, (double)x[i]);
            const double unit = 0x1p-24 * fabs(value) * growth_of(a, false, (double)x[i]);
            cr_assert(fabs((double)found[i] - value) <= most * unit + 64 * 0x1p-149,
                      "%d of %.9g is %.9g, expected %.9g: %g units", kind, (double)x[i],
                      (double)found[i], value, fabs((double)found[i] - value) / unit);
        }
    }
    test_free(&d, dx), test_free(&d, dy);
    test_close(&d);
}

// What an activation says of numbers that are none.
BackendTest(activation, limits)
{
    enum { N = 6 };
    const float x[N] = {-INFINITY, INFINITY, NAN, -3e38f, 3e38f, -1e5f};
    float y[N], g[N];
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    const float ones[N] = {1, 1, 1, 1, 1, 1};
    float *dx = upload(&d, x, N), *dy = upload(&d, x, N), *dg = upload(&d, ones, N);
    const spops_matrix mx = spops_matrix_dense(dx, 2, 3, SPOPS_DTYPE_F32);
    const spops_matrix my = spops_matrix_dense(dy, 2, 3, SPOPS_DTYPE_F32);
    const spops_matrix mg = spops_matrix_dense(dg, 2, 3, SPOPS_DTYPE_F32);
    for (int kind = SPOPS_ACTIVATION_SILU; kind < REF_NUM_ACTIVATIONS; ++kind) {
        const bool is_sigmoid = kind == SPOPS_ACTIVATION_SIGMOID;
        const spops_activation a = (spops_activation)kind;
        test_expect_ok(d.ctx, spops_activation_execute(d.ctx, a, mx, NULL, my), "limits");
        test_wait(&d);
        download(&d, y, dy, N);
        test_expect_ok(d.ctx, spops_activation_execute_backward(d.ctx, a, mg, mx, NULL, my), "");
        test_wait(&d);
        download(&d, g, dy, N);
        cr_assert(y[0] == 0 && y[3] == 0 && y[5] == 0, "%d: %g %g %g", kind, (double)y[0],
                  (double)y[3], (double)y[5]);
        cr_assert(y[1] == (is_sigmoid ? 1 : INFINITY) && y[4] == (is_sigmoid ? 1 : 3e38f),
                  "%d: %g %g", kind, (double)y[1], (double)y[4]);
        cr_assert(isnan(y[2]) && isnan(g[2]), "%d: %g %g", kind, (double)y[2], (double)g[2]);
        cr_assert(g[0] == 0 && g[3] == 0 && g[5] == 0, "%d: %g", kind, (double)g[0]);
        cr_assert(g[1] == !is_sigmoid && g[4] == !is_sigmoid, "%d: %g", kind, (double)g[1]);
    }
    test_free(&d, dx), test_free(&d, dy), test_free(&d, dg);
    test_close(&d);
}

// Every instruction set gives the same bits.
Test(activation, of_every_instruction_set)
{
    static const char *const sets[] = {"baseline", "avx2", "avx512"};
    static float x[POINTS], first[2][POINTS], found[POINTS];
    int compared = 0;

    fill_points(x);
    for (int kind = SPOPS_ACTIVATION_LEAKY_RELU; kind < REF_NUM_ACTIVATIONS; ++kind)
        for (int set = 0; set < 3; ++set)
            for (int backward = 0; backward < 2; ++backward) {
                const spops_activation a = (spops_activation)kind;
                const spops_matrix mx = spops_matrix_dense(x, 64, POINTS / 64, SPOPS_DTYPE_F32);
                const spops_matrix my = spops_matrix_dense(found, 64, POINTS / 64, SPOPS_DTYPE_F32);
                spops_context_options options = spops_context_options_default();
                spops_context *ctx = NULL;
                setenv("SPOPS_CPU_ISA", sets[set], 1);
                options.backend = SPOPS_BACKEND_CPU;
                if (spops_context_create(&options, &ctx) != SPOPS_STATUS_OK) continue;
                const spops_status status =
                    backward ? spops_activation_execute_backward(ctx, a, mx, mx, NULL, my)
                             : spops_activation_execute(ctx, a, mx, NULL, my);
                cr_assert_eq(status, SPOPS_STATUS_OK, "%s", spops_last_error(ctx));
                if (set == 0) memcpy(first[backward], found, sizeof found);
                cr_assert(memcmp(first[backward], found, sizeof found) == 0, "%d by %s", kind,
                          sets[set]);
                ++compared;
                spops_context_destroy(ctx);
            }
    unsetenv("SPOPS_CPU_ISA");
    cr_assert(compared >= 10);
}

// ---- Rows in use, places, and what is refused ---------------------------------------------------

BackendTest(activation, of_rows_in_use)
{
    enum { ROWS = 9, COLS = 5, N = ROWS * COLS };
    static const int32_t counts[] = {0, 1, 4, ROWS, ROWS + 3, -2};
    float x[N], y[N], g[N];
    spops_activation_options options = spops_activation_options_default();
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    for (int i = 0; i < N; ++i)
        x[i] = (float)(i - 20) / 4;
    for (size_t k = 0; k < sizeof counts / sizeof *counts; ++k) {
        const int32_t in_use = counts[k] < 0 ? 0 : counts[k] > ROWS ? ROWS : counts[k];
        float *dx = upload(&d, x, N), *dy = upload(&d, x, N);
        int32_t *rows = test_upload_i32(&d, &counts[k], 1);
        const spops_matrix mx = spops_matrix_dense(dx, ROWS, COLS, SPOPS_DTYPE_F32);
        const spops_matrix my = spops_matrix_dense(dy, ROWS, COLS, SPOPS_DTYPE_F32);
        options.num_rows = rows;
        // grad_x over grad_out, then out over x
        test_expect_ok(
            d.ctx,
            spops_activation_execute_backward(d.ctx, SPOPS_ACTIVATION_SILU, my, mx, &options, my),
            "in place");
        test_expect_ok(d.ctx,
                       spops_activation_execute(d.ctx, SPOPS_ACTIVATION_GELU, mx, &options, mx),
                       "in place");
        test_wait(&d);
        download(&d, y, dx, N), download(&d, g, dy, N);
        for (int i = 0; i < N; ++i) {
            const ref_activation gelu = {SPOPS_ACTIVATION_GELU, 0},
                                 silu = {SPOPS_ACTIVATION_SILU, 0};
            const double v = (double)x[i];
            const bool used = i / COLS < in_use;
            const double value = used ? ref_activate(gelu, v) : v;
            const double slope = used ? v * ref_activation_derivative(silu, v) : v;
            cr_assert(fabs((double)y[i] - value) <= (used ? 1e-6 : 0), "%d rows: y[%d] is %g",
                      (int)counts[k], i, (double)y[i]);
            cr_assert(fabs((double)g[i] - slope) <= (used ? 5e-6 : 0), "%d rows: g[%d] is %g",
                      (int)counts[k], i, (double)g[i]);
        }
        test_free(&d, dx), test_free(&d, dy), test_free(&d, rows);
    }
    test_close(&d);
}

BackendTest(activation, refuses)
{
    enum { ROWS = 4, COLS = 6, N = ROWS * COLS };
    static const float zeros[N];
    float after[N];
    spops_activation_options options = spops_activation_options_default();
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    const spops_activation silu = SPOPS_ACTIVATION_SILU;
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    float *x = upload(&d, zeros, N), *y = upload(&d, zeros, N);
    const spops_matrix mx = spops_matrix_dense(x, ROWS, COLS, SPOPS_DTYPE_F32);
    const spops_matrix my = spops_matrix_dense(y, ROWS, COLS, SPOPS_DTYPE_F32);
    const spops_matrix half = spops_matrix_dense(y, ROWS, COLS, SPOPS_DTYPE_F16);
    const spops_matrix fewer = spops_matrix_dense(y, ROWS - 1, COLS, SPOPS_DTYPE_F32);
    const spops_matrix shifted = spops_matrix_dense(x + 1, ROWS - 1, COLS, SPOPS_DTYPE_F32);
    const spops_matrix first = spops_matrix_dense(x, ROWS - 1, COLS, SPOPS_DTYPE_F32);

    test_expect(d.ctx, spops_activation_execute(d.ctx, (spops_activation)7, mx, NULL, my), invalid,
                "activation_execute: kind is 7, expected 0 to 6", "kind");
    test_expect(d.ctx, spops_activation_execute(d.ctx, silu, mx, NULL, half), invalid,
                "activation_execute: out", "another dtype");
    test_expect(d.ctx, spops_activation_execute(d.ctx, silu, mx, NULL, fewer), invalid,
                "activation_execute: out", "fewer rows");
    test_expect(d.ctx, spops_activation_execute(d.ctx, silu, first, NULL, shifted), invalid,
                "activation_execute: out overlaps x", "overlap");
    test_expect(d.ctx, spops_activation_execute_backward(d.ctx, silu, my, mx, NULL, mx), invalid,
                "activation_execute_backward: grad_x overlaps x", "grad_x over x");
    options.activation_slope = NAN;
    test_expect(d.ctx,
                spops_activation_execute(d.ctx, SPOPS_ACTIVATION_LEAKY_RELU, mx, &options, my),
                invalid, "activation_execute: activation_slope is", "slope");
    options = spops_activation_options_default();
    options.num_rows = (const int32_t *)(const void *)y;
    test_expect(d.ctx, spops_activation_execute(d.ctx, silu, mx, &options, my), invalid,
                "overlaps num_rows", "num_rows in out");
    options.struct_size += 8;
    test_expect(d.ctx, spops_activation_execute(d.ctx, silu, mx, &options, my), invalid,
                "struct_size", "options of a newer library");
    cr_assert_eq(spops_activation_execute(NULL, silu, mx, NULL, my), invalid);
    download(&d, after, y, N);
    cr_assert_arr_eq(after, zeros, sizeof zeros);
    test_free(&d, x), test_free(&d, y);
    test_close(&d);
}
