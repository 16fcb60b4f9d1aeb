// SPDX-License-Identifier: Apache-2.0
// Quantising against the definitions in spops/quantize.h, code for code on every backend; the error
// that it makes; and everything that is refused.
#include <criterion/criterion.h>
#include <criterion/logging.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/device.h"
#include "tests/support/operator.h"
#include "tests/support/params.h"

static const spops_dtype floats[] = {SPOPS_DTYPE_F32, SPOPS_DTYPE_F16, SPOPS_DTYPE_BF16};
static const spops_dtype quantized[] = {
#define SPOPS_DTYPE_FLOAT8(NAME, name, bits, c_type, device_type) SPOPS_DTYPE_##NAME,
#define SPOPS_DTYPE_FLOAT4(NAME, name, bits, c_type, device_type) SPOPS_DTYPE_##NAME,
#include "src/core/dtypes.def"
};
enum {
    NUM_FLOATS = 3,
    NUM_QUANTIZED = sizeof quantized / sizeof quantized[0],
    BLOCK = SPOPS_QUANTIZE_BLOCK_COLS
};

static int64_t blocks_of(int64_t cols)
{
    return (cols + BLOCK - 1) / BLOCK;
}

// ---- The definitions, each step rounded to f32 ----

static double largest_of(spops_dtype dtype)
{
    const double largest = test_format_of(dtype)->largest;
    return dtype == SPOPS_DTYPE_F4E2M1 ? largest * 448.0 : largest; // with its block scale
}

// One rounding to f32: a quotient in f64, rounded again, is the same.
static double divide(double a, double b)
{
    return (double)(float)(a / b);
}

static double ref_scale(const double *x, int64_t n, spops_dtype dtype)
{
    double largest = 0.0;
    for (int64_t i = 0; i < n; ++i)
        if (isfinite(x[i])) largest = fmax(largest, fabs(x[i]));
    return largest == 0.0 ? 1.0 : fmax(divide(largest, largest_of(dtype)), 0x1p-126);
}

static double ref_block_scale(const double *x, int64_t n, double scale)
{
    double largest = 0.0;
    for (int64_t i = 0; i < n; ++i) {
        if (isnan(x[i])) return (double)NAN;
        largest = fmax(largest, fabs(x[i]));
    }
    return test_round(divide(divide(largest, scale), 6.0), SPOPS_DTYPE_F8E4M3);
}

static double ref_element(double x, double block_scale, double scale, spops_dtype dtype)
{
    if (dtype != SPOPS_DTYPE_F4E2M1) return test_round(divide(x, scale), dtype);
    if (isnan(block_scale) || block_scale == 0.0) return 0.0;
    return test_round(divide(x, (double)(float)(block_scale * scale)), dtype);
}

// ---- Round trips ----

enum { IN = 0 };                           // input
enum { CODES, BACK, SCALE, BLOCK_SCALES }; // outputs

// All three calls, one after the other on the stream.
static spops_status run(void *user, spops_context *ctx, const spops_matrix *const *in,
                        const spops_matrix *const *out)
{
    float *scale = out[SCALE] != NULL ? (float *)out[SCALE]->data : NULL;
    spops_status status = SPOPS_STATUS_OK;
    (void)user;
    if (scale != NULL)
        status = spops_quantize_scale_execute(ctx, *in[IN], out[CODES]->dtype, scale);
    if (status == SPOPS_STATUS_OK)
        status = spops_quantize_execute(ctx, *in[IN], scale, *out[CODES], out[BLOCK_SCALES]);
    if (status == SPOPS_STATUS_OK)
        status = spops_dequantize_execute(ctx, *out[CODES], scale, out[BLOCK_SCALES], *out[BACK]);
    return status;
}

typedef struct quantize_case {
    spops_dtype dtype, q_dtype;
} quantize_case;

static void reference(void *user, const double *const *in, ref_tensor *const *out)
{
    const quantize_case *c = (const quantize_case *)user;
    const int64_t rows = out[CODES]->rows, cols = out[CODES]->cols;
    double scale = 1.0;
    if (out[SCALE] != NULL)
        scale = out[SCALE]->value[0] = ref_scale(in[IN], rows * cols, c->q_dtype);
    for (int64_t i = 0; i < rows * cols; ++i) {
        const int64_t col = i % cols, block = col / BLOCK, left = cols - block * BLOCK;
        double s = 1.0;
        if (out[BLOCK_SCALES] != NULL) {
            s = ref_block_scale(in[IN] + i - col % BLOCK, left < BLOCK ? left : BLOCK, scale);
            out[BLOCK_SCALES]->value[i / cols * blocks_of(cols) + block] = s;
        }
        out[CODES]->value[i] = ref_element(in[IN][i], s, scale, c->q_dtype);
        out[BACK]->value[i] =
            test_round((double)(float)(s * out[CODES]->value[i] * scale), c->dtype);
    }
}

// A row of zeros, one that is tiny beside the others, one that is not.
static void adjust(void *user, int version, test_rng *rng, guarded *const *in,
                   double *const *values)
{
    const spops_matrix *x = &in[IN]->view;
    (void)user, (void)version, (void)rng;
    for (int64_t i = 0; i < x->rows * x->cols; ++i) {
        const int64_t r = i / x->cols;
        const double factor = r % 4 == 1 ? 0.0 : r % 4 == 2 ? 0x1p-14 : 1.0;
        values[IN][i] = test_round(values[IN][i] * factor, x->dtype);
    }
    guarded_fill_from(in[IN], values[IN]);
}

static void check_quantize(test_device *d, quantize_case *c, int64_t rows, int64_t cols,
                           test_values values, bool with_scale, int64_t padding, int64_t shift,
                           uint64_t stream)
{
    test_operator op = {.what = "quantize and back",
                        .stream = stream,
                        .user = c,
                        .run = run,
                        .reference = reference,
                        .adjust = adjust};
    op.in[IN] = test_view(test_input("x", rows, cols, c->dtype, values), padding, shift);
    op.out[CODES] =
        test_view(test_output("q", rows, cols, c->q_dtype, CHECK_SAME), padding * 2, shift * 2);
    op.out[BACK] =
        test_view(test_output("dequantised", rows, cols, c->dtype, CHECK_SAME), padding, shift);
    if (with_scale)
        op.out[SCALE] =
            test_view(test_output("scale", 1, 1, SPOPS_DTYPE_F32, CHECK_SAME), 0, shift);
    if (c->q_dtype == SPOPS_DTYPE_F4E2M1)
        op.out[BLOCK_SCALES] = test_view(
            test_output("block_scales", rows, blocks_of(cols), SPOPS_DTYPE_F8E4M3, CHECK_SAME),
            padding, shift);
    test_operator_run(d, &op);
}

CaseTest(quantize, follows_its_definition, every_case(quantized, NUM_QUANTIZED, NULL, 0),
         .timeout = 600)
{
    static const int64_t shapes[][2] = {{0, 4},  {4, 0},   {1, 2},    {1000, 1}, {7, 16},
                                        {5, 17}, {33, 34}, {64, 128}, {9, 80},   {3, 1030}};
    static const test_values kinds[] = {VALUES_RANDOM,    VALUES_EXACT,    VALUES_ZEROS,
                                        VALUES_SUBNORMAL, VALUES_INFINITE, VALUES_NAN,
                                        VALUES_CANCEL};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    uint64_t stream = case_number(p) << 32;
    for (int s = 0; s < 10; ++s) {
        for (int t = 0; t < NUM_FLOATS; ++t) {
            for (int k = 0; k < 7; ++k) {
                quantize_case c = {.dtype = floats[t], .q_dtype = (spops_dtype)p->dtype};
                const bool even = c.q_dtype == SPOPS_DTYPE_F4E2M1;
                const int64_t cols = even ? shapes[s][1] + shapes[s][1] % 2 : shapes[s][1];
                check_quantize(&d, &c, shapes[s][0], cols, kinds[k], (k + s) % 4 != 0,
                               (k + s) % 3 == 0 ? 0 : 2 * k, (k + t) % 2, ++stream);
            }
        }
    }
    test_close(&d);
}

// The scale of matrices that say nothing, and of the largest and smallest that say something.
BackendTest(quantize, scale_of_special_values)
{
    const double inf = (double)INFINITY, nan = (double)NAN;
    const struct {
        double x[3], largest;
    } table[] = {{{0.0, -0.0, 0.0}, 0.0},       {{inf, -inf, nan}, 0.0},
                 {{nan, -2.5, inf}, 2.5},       {{0x1.fffffep127, 1.0, 0.0}, 0x1.fffffep127},
                 {{0x1p-149, 0.0, 0.0}, 1e-45}, {{-0x1p-118, 0.0, 0.0}, 0x1p-118}};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (int i = 0; i < 6; ++i) {
        for (int t = 0; t < NUM_QUANTIZED; ++t) {
            guarded x = guarded_create(d.backend, "x", 3, 1, 1, 0, SPOPS_DTYPE_F32);
            guarded scale = guarded_create(d.backend, "scale", 1, 1, 0, 0, SPOPS_DTYPE_F32);
            guarded_fill_from(&x, table[i].x);
            guarded_upload(&x), guarded_upload(&scale);
            test_expect_ok(
                d.ctx,
                spops_quantize_scale_execute(d.ctx, x.view, quantized[t], (float *)scale.view.data),
                "special values");
            test_wait(&d);
            guarded_download(&scale);
            const double expected =
                table[i].largest == 0.0
                    ? 1.0
                    : fmax((double)(float)(table[i].largest / largest_of(quantized[t])), 0x1p-126);
            cr_assert(guarded_get(&scale, 0, 0) == expected, "case %d, %s: scale is %g, not %g", i,
                      test_dtype_name(quantized[t]), guarded_get(&scale, 0, 0), expected);
            guarded_destroy(&x), guarded_destroy(&scale);
        }
    }
    test_close(&d);
}

// Only what quantising costs, from its definition. With t = |x| / scale:
// f8: half the spacing around t, at most t 2^-precision, or half the smallest number. f4: with b = max t of the block / 6, the block scale s is off by at most b 2^-4 or 2^-10.
// Up to 6 s
//     codes are at most 2 s apart, so t is off by at most s; beyond, by t - 6 s <= 6 (b - s).
// A last 2^-20 covers the divisions and products, which round in f32.
BackendTest(quantize, error_is_bounded)
{
    enum { ROWS = 200, COLS = 80 };
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (int t = 0; t < NUM_QUANTIZED; ++t) {
        const spops_dtype dtype = quantized[t];
        const test_format *f = test_format_of(dtype);
        test_rng rng = test_rng_make(77 + (uint64_t)t);
        guarded x = guarded_create(d.backend, "x", ROWS, COLS, 0, 0, SPOPS_DTYPE_F32);
        guarded q = guarded_create(d.backend, "q", ROWS, COLS, 0, 0, dtype);
        guarded back = guarded_create(d.backend, "back", ROWS, COLS, 0, 0, SPOPS_DTYPE_F32);
        guarded scales = guarded_create(d.backend, "scale", 1, 1, 0, 0, SPOPS_DTYPE_F32);
        guarded block_scales =
            guarded_create(d.backend, "block_scales", ROWS, COLS / BLOCK, 0, 0, SPOPS_DTYPE_F8E4M3);
        // About a normal distribution, as features are: a sum of uniform ones.
        for (int64_t i = 0; i < (int64_t)ROWS * COLS; ++i) {
            double v = -6.0;
            for (int k = 0; k < 12; ++k)
                v += test_rng_unit(&rng);
            guarded_set(&x, i / COLS, i % COLS, v);
        }
        guarded_upload(&x);
        const spops_matrix *in[] = {&x.view};
        const spops_matrix *out[] = {&q.view, &back.view, &scales.view,
                                     dtype == SPOPS_DTYPE_F4E2M1 ? &block_scales.view : NULL};
        test_expect_ok(d.ctx, run(NULL, d.ctx, in, out), "quantise");
        test_wait(&d);
        guarded_download(&back), guarded_download(&scales), guarded_download(&block_scales);
        const double scale = guarded_get(&scales, 0, 0);
        double square_error = 0.0, square = 0.0;
        for (int64_t r = 0; r < ROWS; ++r) {
            for (int64_t i = 0; i < COLS; ++i) {
                const double value = guarded_get(&x, r, i), v = fabs(value) / scale;
                const double error = fabs(guarded_get(&back, r, i) - value);
                double bound =
                    fmax(scalbn(v, -f->precision), scalbn(1.0, f->min_exponent - f->precision));
                if (dtype == SPOPS_DTYPE_F4E2M1) {
                    double b = 0.0;
                    for (int64_t k = i / BLOCK * BLOCK; k < i / BLOCK * BLOCK + BLOCK; ++k)
                        b = fmax(b, fabs(guarded_get(&x, r, k)) / scale / 6.0);
                    bound = fmax(guarded_get(&block_scales, r, i / BLOCK),
                                 6.0 * fmax(b * 0x1p-4, 0x1p-10));
                }
                cr_assert(error <= (bound + v * 0x1p-20) * scale,
                          "%s: x[%lld, %lld] = %g is off by %g, at most %g expected",
                          test_dtype_name(dtype), (long long)r, (long long)i, value, error,
                          bound * scale);
                square_error += error * error;
                square += value * value;
            }
        }
        // Root mean square: a spacing of relative size e, met evenly, gives about e / sqrt(12).
        const double relative = sqrt(square_error / square);
        cr_log_info("%s: relative error of normal features %.4f (root mean square)",
                    test_dtype_name(dtype), relative);
        const double expected = scalbn(0.64, -f->precision);
        cr_assert(relative < expected && relative > expected / 4, "%s: relative error %g",
                  test_dtype_name(dtype), relative);
        guarded_destroy(&x), guarded_destroy(&q), guarded_destroy(&back);
        guarded_destroy(&scales), guarded_destroy(&block_scales);
    }
    test_close(&d);
}

// ---- What is refused ----

static const spops_matrix *with(spops_matrix *room, spops_matrix m, int64_t rows, int64_t cols,
                                spops_dtype dtype)
{
    *room = m;
    room->rows = rows, room->cols = cols, room->dtype = dtype;
    return room;
}

// What the rows cannot say; tests/test_operators.c has the faults of arguments.
BackendTest(quantize, refuses)
{
    enum { ROWS = 4, COLS = 34, BLOCKS = 3 };
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    const spops_dtype f4 = SPOPS_DTYPE_F4E2M1, f8 = SPOPS_DTYPE_F8E4M3, f32 = SPOPS_DTYPE_F32;
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    spops_context *ctx = d.ctx;
    guarded x = guarded_create(d.backend, "x", ROWS, COLS, 2, 0, f32);
    guarded q = guarded_create(d.backend, "q", ROWS, COLS, 2, 0, f8);
    guarded q4 = guarded_create(d.backend, "q4", ROWS, COLS, 2, 0, f4);
    guarded s4 = guarded_create(d.backend, "block_scales", ROWS, BLOCKS, 0, 0, f8);
    guarded scale = guarded_create(d.backend, "scale", 2, 1, 0, 0, f32);
    guarded *all[] = {&x, &q, &q4, &s4, &scale};
    for (int i = 0; i < 5; ++i)
        guarded_upload(all[i]);
    float *s = (float *)scale.view.data;
    const spops_matrix X = x.view, Q = q.view, Q4 = q4.view, *B = &s4.view;
    spops_matrix m, m2;
    const spops_dtype none = (spops_dtype)42;

#define REFUSED(call, status, fragment) test_expect(ctx, call, status, fragment, #call)
#define SCALE                           spops_quantize_scale_execute
#define QUANT                           spops_quantize_execute
#define DEQUANT                         spops_dequantize_execute
    REFUSED(SCALE(ctx, X, none, s), invalid, "dtype is 42, which is no dtype");
    REFUSED(QUANT(ctx, *with(&m, X, ROWS, 33, f32), s, *with(&m2, Q4, ROWS, 33, f4), B), invalid,
            "even numbers for f4e2m1");
    REFUSED(QUANT(ctx, X, s, Q, B), invalid, "block_scales is given, and out.dtype is f8e4m3");
    REFUSED(QUANT(ctx, X, s, Q4, NULL), invalid, "block_scales is NULL, and out.dtype is f4e2m1");
    m = Q4;
    m.row_stride = COLS + 1;
    REFUSED(QUANT(ctx, X, s, m, B), invalid, "row_stride 35, expected even numbers");
    REFUSED(DEQUANT(ctx, Q, s, B, X), invalid, "block_scales is given, and q.dtype is f8e4m3");
    REFUSED(DEQUANT(ctx, Q4, s, NULL, X), invalid, "block_scales is NULL, and q.dtype is f4e2m1");

    test_wait(&d);
    for (int i = 0; i < 5; ++i) {
        guarded_check_untouched(all[i], "after refusals");
        guarded_destroy(all[i]);
    }
    test_close(&d);
}
