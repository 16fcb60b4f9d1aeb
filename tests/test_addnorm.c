// SPDX-License-Identifier: Apache-2.0
// A sum and its norm against FP64, forward and backward, step by step from what was stored; against the
// calls that it takes the place of, bit for bit; what is refused.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "spops/activation.h"
#include "spops/norm.h"
#include "support/device.h"
#include "tests/ref/ref_norm.h"
#include "tests/support/activation.h"
#include "tests/support/launch.h"
#include "tests/support/params.h"
#include "tests/support/relation.h"

enum { MORE_MATRICES = 7, VECTORS = 4 };

typedef struct addnorm_case {
    bool backward, norm_y, rms, affine, has_grad_sum;
    int64_t rows, capacity, cols;
    spops_dtype dtype;
    ref_activation activation;
    double epsilon;
    uint64_t stream;
    int32_t *num_rows; // where the backend runs, or NULL
    guarded x, y, sum, out, grad_out, grad_sum, grad_x, grad_y;
    guarded y_gamma, y_beta, gamma, beta;
    guarded grads[VECTORS]; // of the four above
    double *x_values, *y_values, *sum_values, *grad_out_values, *grad_sum_values;
    double *vectors[VECTORS];
} addnorm_case;

static double uniform(test_rng *rng, double low, double high)
{
    return low + (high - low) * (double)test_rng_below(rng, 1 << 20) / (1 << 20);
}

static double *values_of(const guarded *m)
{
    double *values = (double *)malloc((size_t)(m->view.rows * m->view.cols + 1) * sizeof *values);
    for (int64_t i = 0; i < m->view.rows * m->view.cols; ++i)
        values[i] = guarded_get(m, i / m->view.cols, i % m->view.cols);
    return values;
}

static double *fill(guarded *m, test_rng *rng, double low, double high)
{
    for (int64_t i = 0; i < m->view.rows * m->view.cols; ++i)
        guarded_set(m, i / m->view.cols, i % m->view.cols, uniform(rng, low, high));
    guarded_upload(m);
    return values_of(m);
}

static bool has_kink(const addnorm_case *c)
{
    return c->activation.kind == SPOPS_ACTIVATION_RELU ||
           c->activation.kind == SPOPS_ACTIVATION_LEAKY_RELU;
}

static void discard_values(addnorm_case *c)
{
    free(c->x_values), free(c->y_values), free(c->sum_values);
    free(c->grad_out_values), free(c->grad_sum_values);
    for (int i = 0; i < VECTORS; ++i)
        free(c->vectors[i]);
}

static void prepare(void *user, int version)
{
    addnorm_case *c = (addnorm_case *)user;
    test_rng rng = test_rng_make(c->stream * 2 + (uint64_t)version);
    discard_values(c);
    c->x_values = fill(&c->x, &rng, -2, 3);
    c->y_values = fill(&c->y, &rng, -3, 2);
    c->sum_values = c->backward ? fill(&c->sum, &rng, -3, 4) : NULL;
    c->grad_out_values = fill(&c->grad_out, &rng, -2, 2);
    c->grad_sum_values = fill(&c->grad_sum, &rng, -2, 2);
    // Where the derivative jumps, beta alone decides the sign of the output.
    c->vectors[0] = fill(&c->y_gamma, &rng, 0.5, 2);
    c->vectors[1] = fill(&c->y_beta, &rng, -1, 1);
    c->vectors[2] = fill(&c->gamma, &rng, 0.02, has_kink(c) ? 0.06 : 2);
    c->vectors[3] = fill(&c->beta, &rng, -3, 3);
    for (int64_t i = 0; has_kink(c) && i < c->cols; ++i) {
        c->vectors[3][i] = i % 2 == 0 ? 3 : -3;
        guarded_set(&c->beta, 0, i, c->vectors[3][i]);
    }
    guarded_upload(&c->beta);
}

static spops_matrix with_capacity(const addnorm_case *c, const guarded *g)
{
    spops_matrix m = g->view;
    m.rows = c->capacity;
    return m;
}

static spops_addnorm_options options_of(const addnorm_case *c)
{
    spops_addnorm_options o = spops_addnorm_options_default();
    o.num_rows = c->num_rows;
    o.epsilon = (float)c->epsilon;
    o.activation = c->activation.kind;
    o.activation_slope = c->activation.slope;
    o.norm_y = c->norm_y;
    o.rms = c->rms;
    return o;
}

static spops_status enqueue(void *user, spops_context *ctx)
{
    addnorm_case *c = (addnorm_case *)user;
    const spops_addnorm_options o = options_of(c);
    const spops_matrix x = with_capacity(c, &c->x), y = with_capacity(c, &c->y);
    const spops_matrix sum = with_capacity(c, &c->sum), out = with_capacity(c, &c->out);
    const spops_matrix grad_sum = with_capacity(c, &c->grad_sum);
    const spops_matrix grad_y = with_capacity(c, &c->grad_y);
    const void *y_gamma = c->affine ? c->y_gamma.view.data : NULL;
    const void *y_beta = c->affine ? c->y_beta.view.data : NULL;
    const void *gamma = c->affine || has_kink(c) ? c->gamma.view.data : NULL;
    const void *beta = c->affine || has_kink(c) ? c->beta.view.data : NULL;
    if (!c->backward)
        return spops_addnorm_execute(ctx, x, y, y_gamma, y_beta, gamma, beta, &o, sum, out);
    return spops_addnorm_execute_backward(
        ctx, with_capacity(c, &c->grad_out), c->has_grad_sum ? &grad_sum : NULL, sum, y, y_gamma,
        y_beta, gamma, beta, &o, with_capacity(c, &c->grad_x), grad_y, c->grads[0].view.data,
        c->grads[1].view.data, c->grads[2].view.data, c->grads[3].view.data);
}

static ref_norm norm_of(const addnorm_case *c, const double *x, const double *grad_out, bool of_y)
{
    const bool affine = c->affine || (!of_y && has_kink(c));
    ref_norm norm = {.rows = c->rows,
                     .cols = c->cols,
                     .x = x,
                     .grad_out = grad_out,
                     .gamma = affine ? c->vectors[of_y ? 0 : 2] : NULL,
                     .beta = affine ? c->vectors[of_y ? 1 : 3] : NULL,
                     .epsilon = c->epsilon,
                     .is_rms = c->rms,
                     .unit = test_unit(c->dtype)};
    if (!of_y) norm.activation = c->activation;
    return norm;
}

// Half of the distance of numbers of a dtype around 1.
static double storage_unit(spops_dtype dtype)
{
    return ldexp(1, dtype == SPOPS_DTYPE_F64   ? -53
                    : dtype == SPOPS_DTYPE_F32 ? -24
                    : dtype == SPOPS_DTYPE_F16 ? -11
                                               : -8);
}

// The sum from its addends; the norm from the sum that was stored.
static void verify_forward(addnorm_case *c, const char *what)
{
    const int64_t n = c->rows * c->cols;
    const double u = test_unit(c->dtype), stored = storage_unit(c->dtype);
    ref_tensor sum = ref_tensor_create(c->rows, c->cols);
    ref_tensor out = ref_tensor_create(c->rows, c->cols);
    double *bounds = (double *)calloc((size_t)n + 1, sizeof *bounds);
    double *found = values_of(&c->sum);
    const ref_norm of_y = norm_of(c, c->y_values, NULL, true);
    const ref_norm of_sum = norm_of(c, found, NULL, false);
    if (c->norm_y) ref_norm_forward(&of_y, &sum);
    for (int64_t i = 0; i < n; ++i) {
        const double y = c->norm_y ? sum.value[i] : c->y_values[i];
        // The norm of y is rounded to the dtype before it is added.
        sum.value[i] = y + c->x_values[i];
        bounds[i] = (sum.roundings[i] + 2) * u * (sum.scale[i] + fabs(sum.value[i]));
        if (c->norm_y)
            bounds[i] += stored * fabs(y) + (c->dtype == SPOPS_DTYPE_F16 ? ldexp(1, -25) : 0);
    }
    guarded_check_bounds(&c->sum, &sum, bounds, what);
    ref_norm_forward(&of_sum, &out);
    guarded_check(&c->out, &out, false, what);
    ref_tensor_destroy(&sum), ref_tensor_destroy(&out);
    free(bounds), free(found);
}

static void verify_backward(addnorm_case *c, const char *what)
{
    const int64_t n = c->rows * c->cols;
    ref_tensor grad_x = ref_tensor_create(c->rows, c->cols);
    ref_tensor grad_y = ref_tensor_create(c->rows, c->cols);
    ref_tensor grads[VECTORS];
    double *found = values_of(&c->grad_x);
    const ref_norm of_sum = norm_of(c, c->sum_values, c->grad_out_values, false);
    const ref_norm of_y = norm_of(c, c->y_values, found, true);
    for (int i = 0; i < VECTORS; ++i)
        grads[i] = ref_tensor_create(1, c->cols);
    ref_norm_backward(&of_sum, &grad_x, &grads[2], &grads[3]);
    for (int64_t i = 0; i < n && c->has_grad_sum; ++i) {
        grad_x.value[i] += c->grad_sum_values[i];
        grad_x.scale[i] += fabs(c->grad_sum_values[i]);
        grad_x.roundings[i] += 1;
    }
    guarded_check(&c->grad_x, &grad_x, false, what);
    if (c->norm_y) ref_norm_backward(&of_y, &grad_y, &grads[0], &grads[1]);
    for (int64_t i = 0; i < n && !c->norm_y; ++i)
        grad_y.value[i] = found[i];
    guarded_check(&c->grad_y, &grad_y, !c->norm_y, what);
    for (int i = 0; i < VECTORS; ++i)
        guarded_check(&c->grads[i], &grads[i], i < 2 && !c->norm_y, what);
    for (int i = 0; i < VECTORS; ++i)
        ref_tensor_destroy(&grads[i]);
    ref_tensor_destroy(&grad_x), ref_tensor_destroy(&grad_y);
    free(found);
}

static void verify(void *user, int version, const char *what)
{
    addnorm_case *c = (addnorm_case *)user;
    (void)version;
    if (c->backward)
        verify_backward(c, what);
    else
        verify_forward(c, what);
}

static void check_case(test_device *d, addnorm_case *c, int64_t padding, int64_t shift)
{
    static const char *const names[] = {"x",        "y",        "sum",    "out",
                                        "grad_out", "grad_sum", "grad_x", "grad_y"};
    static const char *const vector_names[] = {"y_gamma", "y_beta", "gamma", "beta"};
    char text[256];
    const int32_t rows = (int32_t)c->rows;
    const char *what = test_describe(
        text, "%s addnorm %s %s, %s: %lld of %lld x %lld + %lld, shift %lld, norm_y %d, rms %d",
        test_backend_name(d->backend), c->backward ? "backward" : "forward",
        test_dtype_name(c->dtype), test_launch_name(d->launch), (long long)c->rows,
        (long long)c->capacity, (long long)c->cols, (long long)padding, (long long)shift, c->norm_y,
        c->rms);
    const int64_t wide = c->dtype == SPOPS_DTYPE_F64 ? 2 : 1;
    test_call call = {.user = c,
                      .prepare = prepare,
                      .enqueue = enqueue,
                      .verify = verify,
                      .scratch_bytes = spops_norm_scratch_bytes(wide * c->capacity, wide * c->cols),
                      .what = what};
    guarded *const matrices[] = {&c->x,        &c->y,        &c->sum,    &c->out,
                                 &c->grad_out, &c->grad_sum, &c->grad_x, &c->grad_y};
    guarded *const vectors[] = {&c->y_gamma, &c->y_beta, &c->gamma, &c->beta};
    int inputs = 0, outputs = 0;

    c->num_rows = c->rows < c->capacity ? test_upload_i32(d, &rows, 1) : NULL;
    for (int i = 0; i <= MORE_MATRICES; ++i) {
        *matrices[i] = guarded_create(d->backend, names[i], c->capacity, c->cols,
                                      i % 2 ? padding : 2 * padding, i % 2 ? shift : 0, c->dtype);
        matrices[i]->view.rows = c->rows;
    }
    for (int i = 0; i < VECTORS; ++i) {
        const spops_dtype sums = test_sum_dtype(c->dtype);
        *vectors[i] = guarded_create(d->backend, vector_names[i], 1, c->cols, 0, 0, sums);
        c->grads[i] = guarded_create(d->backend, vector_names[i], 1, c->cols, 0, 0, sums);
        call.inputs[inputs++] = vectors[i];
        if (c->backward) call.outputs[outputs++] = &c->grads[i];
    }
    if (c->backward) {
        call.inputs[inputs++] = &c->grad_out, call.inputs[inputs++] = &c->sum;
        call.inputs[inputs++] = &c->y, call.inputs[inputs++] = &c->grad_sum;
        call.outputs[outputs++] = &c->grad_x, call.outputs[outputs++] = &c->grad_y;
    } else {
        call.inputs[inputs++] = &c->x, call.inputs[inputs++] = &c->y;
        call.outputs[outputs++] = &c->sum, call.outputs[outputs++] = &c->out;
    }
    test_expect_ok(d->ctx, spops_context_reserve(d->ctx, call.scratch_bytes), what);
    test_run(d, &call);
    for (int i = 0; i <= MORE_MATRICES; ++i)
        guarded_destroy(matrices[i]);
    for (int i = 0; i < VECTORS; ++i)
        guarded_destroy(vectors[i]), guarded_destroy(&c->grads[i]);
    discard_values(c);
    test_free(d, c->num_rows);
}

static const int64_t all_rows[] = {1, 2, 33, 1000}, all_cols[] = {1, 8, 33, 64, 300, 128, 600, 512};

static void check_sizes(test_device *d, int num_rows, int num_cols, spops_dtype dtype,
                        uint64_t stream)
{
    for (int kind = 0; kind < 8; ++kind) {
        for (int r = 0; r < num_rows; ++r) {
            for (int k = 0; k < num_cols; ++k) {
                test_rng rng = test_rng_make(++stream);
                addnorm_case c = {.backward = kind % 2,
                                  .norm_y = kind / 2 % 2,
                                  .rms = kind / 4,
                                  .rows = all_rows[r],
                                  .cols = all_cols[k],
                                  .dtype = dtype,
                                  .stream = stream};
                c.capacity = c.rows + (test_rng_below(&rng, 2) ? test_rng_below(&rng, 500) : 0);
                c.activation = test_activation(&rng, false);
                c.affine = test_rng_below(&rng, 3) != 0;
                c.has_grad_sum = test_rng_below(&rng, 3) != 0;
                c.epsilon = 0.25;
                check_case(d, &c, test_rng_below(&rng, 2) * (1 + test_rng_below(&rng, 7)),
                           test_rng_below(&rng, 2));
            }
        }
    }
}

CaseTest(addnorm, agrees, every_case(test_row_dtypes, NUM_REAL_DTYPES, NULL, 0), .timeout = 600)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    check_sizes(&d, test_quick() ? 2 : 4, 8, (spops_dtype)p->dtype, case_number(p) << 32);
    test_close(&d);
}

// What a sanitizer runs.
BackendTest(addnorm, small, .timeout = 600)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    for (int dtype = 0; dtype < NUM_ROW_DTYPES; ++dtype)
        check_sizes(&d, 3, test_quick() ? 4 : 7, test_row_dtypes[dtype], (uint64_t)dtype << 20);
    test_close(&d);
}

// The norm of y, the sum and its norm by calls of their own, and the one call that may write over x and y.
static void check_bits(test_device *d, int64_t cols, spops_dtype dtype, bool norm_y, bool rms)
{
    enum { ROWS = 77 };
    test_rng rng = test_rng_make((uint64_t)(4 * cols + 2 * norm_y + rms));
    guarded m[5], v[VECTORS];
    for (int i = 0; i < 5; ++i) {
        m[i] = guarded_create(d->backend, "matrix", ROWS, cols, 0, 0, dtype);
        free(fill(&m[i], &rng, -2, 3));
    }
    for (int i = 0; i < VECTORS; ++i) {
        v[i] = guarded_create(d->backend, "vector", 1, cols, 0, 0, test_sum_dtype(dtype));
        free(fill(&v[i], &rng, i % 2 && rms ? 0 : 0.5, i % 2 && rms ? 0 : 2));
    }
    const spops_matrix x = m[0].view, y = m[1].view, ny = m[2].view, sum = m[3].view;
    const spops_matrix out = m[4].view;
    spops_addnorm_options o = spops_addnorm_options_default();
    spops_norm_options norm = spops_norm_options_default();
    o.norm_y = norm_y;
    o.rms = rms;
    o.activation = norm.activation = SPOPS_ACTIVATION_SILU;
    const spops_norm_options plain = spops_norm_options_default();
    test_expect_ok(
        d->ctx,
        rms ? spops_rmsnorm_execute(d->ctx, y, v[0].view.data, &plain, ny)
            : spops_layernorm_execute(d->ctx, y, v[0].view.data, v[1].view.data, &plain, ny),
        "norm of y");
    test_expect_ok(d->ctx, spops_add_execute(d->ctx, x, norm_y ? ny : y, NULL, sum), "sum");
    test_expect_ok(
        d->ctx,
        rms ? spops_rmsnorm_execute(d->ctx, sum, v[2].view.data, &norm, out)
            : spops_layernorm_execute(d->ctx, sum, v[2].view.data, v[3].view.data, &norm, out),
        "norm");
    test_expect_ok(d->ctx,
                   spops_addnorm_execute(d->ctx, x, y, v[0].view.data, v[1].view.data,
                                         v[2].view.data, v[3].view.data, &o, x, y),
                   "at once");
    test_wait(d);
    for (int i = 0; i < 2; ++i) {
        guarded_download(&m[i]), guarded_download(&m[3 + i]);
        unsigned char *found = guarded_elements(&m[i]), *expected = guarded_elements(&m[3 + i]);
        cr_assert(memcmp(found, expected, (size_t)(ROWS * cols) * spops_dtype_bytes(dtype)) == 0,
                  "%s of %lld columns, %s, norm_y %d, rms %d", i == 0 ? "sum" : "out",
                  (long long)cols, test_dtype_name(dtype), norm_y, rms);
        free(found), free(expected);
    }
    for (int i = 0; i < 5; ++i)
        guarded_destroy(&m[i]);
    for (int i = 0; i < VECTORS; ++i)
        guarded_destroy(&v[i]);
}

BackendTest(addnorm, bits_of_calls_in_turn)
{
    static const int64_t cols[] = {5, 32, 256, 384, 512, 520};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (int i = 0; i < 6; ++i)
        for (int dtype = 0; dtype < NUM_ROW_DTYPES; ++dtype)
            for (int kind = 0; kind < 4; ++kind)
                check_bits(&d, cols[i], test_row_dtypes[dtype], kind % 2, kind / 2);
    test_close(&d);
}

// Without norm_y one matrix may be grad_total, grad_x and grad_y.
BackendTest(addnorm, gradients_in_one_place)
{
    enum { ROWS = 5, COLS = 16, N = ROWS * COLS, TOTAL = 0, GRAD_OUT, GRAD_TOTAL, X, Y, PLACES };
    float values[PLACES * N], found[PLACES * N];
    spops_matrix m[PLACES];
    spops_addnorm_options o = spops_addnorm_options_default();
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (int i = 0; i < PLACES * N; ++i)
        values[i] = i < X * N ? (float)(i * 37 % 101) / 16.0f - 3.0f : -1e9f;
    float *memory =
        (float *)(void *)test_upload_i32(&d, (const int32_t *)(const void *)values, PLACES * N);
    for (int i = 0; i < PLACES; ++i)
        m[i] = spops_matrix_dense(memory + i * N, ROWS, COLS, SPOPS_DTYPE_F32);
    test_expect_ok(d.ctx, spops_context_reserve(d.ctx, spops_norm_scratch_bytes(ROWS, COLS)), "");
#define BACKWARD(x, y)                                                                             \
    spops_addnorm_execute_backward(d.ctx, m[GRAD_OUT], &m[GRAD_TOTAL], m[TOTAL], m[TOTAL], NULL,   \
                                   NULL, NULL, NULL, &o, m[x], m[y], NULL, NULL, NULL, NULL)
    test_expect_ok(d.ctx, BACKWARD(X, Y), "apart");
    test_expect_ok(d.ctx, BACKWARD(GRAD_TOTAL, GRAD_TOTAL), "in one place");
    o.norm_y = 1;
    test_expect(d.ctx, BACKWARD(X, X), SPOPS_STATUS_INVALID_ARGUMENT,
                "grad_y is grad_x and norm_y is 1, expected separate memory", "with norm_y");
    test_expect(d.ctx, BACKWARD(X, GRAD_TOTAL), SPOPS_STATUS_INVALID_ARGUMENT,
                "grad_y overlaps grad_total", "grad_total alone");
#undef BACKWARD
    test_download_i32(&d, (int32_t *)(void *)found, (const int32_t *)(const void *)memory,
                      PLACES * N);
    for (int i = 0; i < N; ++i)
        cr_assert(found[X * N + i] > -100.0f && found[X * N + i] < 100.0f, "%d", i);
    cr_assert_arr_eq(found + X * N, found + Y * N, N * sizeof *found);
    cr_assert_arr_eq(found + X * N, found + GRAD_TOTAL * N, N * sizeof *found);
    cr_assert_arr_eq(found, values, 2 * N * sizeof *found);
    test_free(&d, memory);
    test_close(&d);
}

BackendTest(addnorm, refused)
{
    static const float zeros[48];
    float after[48];
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    float *memory = (float *)(void *)test_upload_i32(&d, (const int32_t *)(const void *)zeros, 48);
    spops_matrix m[4];
    spops_addnorm_options o = spops_addnorm_options_default();
    for (int i = 0; i < 4; ++i)
        m[i] = spops_matrix_dense(memory + 12 * i, 3, 4, SPOPS_DTYPE_F32);
#define REFUSED(fragment)                                                                          \
    do {                                                                                           \
        test_expect(                                                                               \
            d.ctx,                                                                                 \
            spops_addnorm_execute(d.ctx, m[0], m[1], NULL, NULL, NULL, NULL, &o, m[2], m[3]),      \
            SPOPS_STATUS_INVALID_ARGUMENT, fragment, fragment);                                    \
        o = spops_addnorm_options_default();                                                       \
        for (int i = 0; i < 4; ++i)                                                                \
            m[i] = spops_matrix_dense(memory + 12 * i, 3, 4, SPOPS_DTYPE_F32);                     \
    } while (0)
    o.norm_y = 2;
    REFUSED("norm_y is 2, expected 0 or 1");
    o.rms = -1;
    REFUSED("rms is -1, expected 0 or 1");
    o.reserved = 1;
    REFUSED("reserved is 1");
    o.epsilon = -1;
    REFUSED("epsilon is -1");
    m[1].rows = 2;
    REFUSED("y is [2, 4], expected [3, 4]");
    m[2].data = memory + 12; // y
    REFUSED("total overlaps y");
    m[3].data = memory; // x
    REFUSED("out overlaps x");
    m[3].data = m[2].data;
    REFUSED("out overlaps total");
    for (int i = 0; i < 4; ++i)
        m[i].cols = 0;
    REFUSED("x has no columns");
#undef REFUSED
    test_download_i32(&d, (int32_t *)(void *)after, (const int32_t *)(const void *)memory, 48);
    cr_assert_arr_eq(after, zeros, sizeof zeros);
    test_free(&d, memory);
    test_close(&d);
}
