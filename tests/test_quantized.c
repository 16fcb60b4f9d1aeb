// SPDX-License-Identifier: Apache-2.0
// Layers in 8 bits: weights as codes, i8 beside the narrow floats, and convolutions and linear layers of
// codes. Those of i8 have one right answer, bit by bit; those of f8e4m3 a bound.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "spops/linear.h"
#include "spops/quantize.h"
#include "spops/sparseconv.h"
#include "support/device.h"
#include "tests/ref/ref_sparseconv.h"
#include "tests/support/coord_cases.h"
#include "tests/support/operator.h"
#include "tests/support/params.h"

// What a sum of f8e4m3 is off by, relative to the sum of magnitudes (docs/quantized.md).
#define F8_BOUND (132 * 0x1p-13)

static const int both_dtypes[] = {SPOPS_DTYPE_F8E4M3, SPOPS_DTYPE_I8};

// ---- Codes --------------------------------------------------------------------------------------

static double value_of(int code, spops_dtype dtype)
{
    const unsigned char byte = (unsigned char)code;
    return dtype == SPOPS_DTYPE_I8 ? (double)(int8_t)byte : test_load(&byte, dtype);
}

// v in f32 as a code: rounded to nearest even, saturated; a NaN as the library has it.
static int code_of(float v, spops_dtype dtype)
{
    unsigned char byte = 0;
    if (dtype != SPOPS_DTYPE_I8) {
        test_store(&byte, dtype, (double)v);
        return byte;
    }
    const double rounded = isnan(v) ? 0.0 : nearbyint((double)v);
    return (int)(rounded < -128.0 ? -128.0 : rounded > 127.0 ? 127.0 : rounded) & 255;
}

// A matrix of codes; the guards know it as one of f8e4m3.
static guarded codes_create(test_device *d, const char *name, int64_t rows, int64_t cols,
                            int64_t padding, int64_t shift, spops_dtype dtype)
{
    guarded g = guarded_create(d->backend, name, rows, cols, padding, shift, SPOPS_DTYPE_F8E4M3);
    g.view.dtype = dtype;
    return g;
}

static unsigned char *code_at(const guarded *g, int64_t r, int64_t c)
{
    return g->host + g->first + r * g->view.row_stride + c;
}

typedef enum kinds { ALL_CODES, SMALL_CODES, LARGEST_CODES, WITH_NAN, NUM_KINDS } kinds;

static int draw_code(test_rng *rng, spops_dtype dtype, kinds kind)
{
    int code = (int)test_rng_below(rng, 256);
    if (dtype == SPOPS_DTYPE_I8) {
        if (kind == SMALL_CODES) return (int)(test_rng_below(rng, 7) - 3) & 255;
        return kind == LARGEST_CODES ? (test_rng_below(rng, 8) > 0 ? 128 : 127) : code;
    }
    if (kind == SMALL_CODES) return 0x28 + (int)test_rng_below(rng, 24) + 128 * (code & 1);
    if (kind == LARGEST_CODES) return 0x7e - (int)test_rng_below(rng, 3) + 128 * (code & 1);
    if ((code & 0x7f) == 0x7f && (kind != WITH_NAN || test_rng_below(rng, 50) > 0)) code ^= 1;
    return code;
}

static void draw_codes(guarded *g, test_rng *rng, kinds kind)
{
    for (int64_t r = 0; r < g->view.rows; ++r)
        for (int64_t c = 0; c < g->view.cols; ++c)
            *code_at(g, r, c) = (unsigned char)draw_code(rng, g->view.dtype, kind);
    guarded_upload(g);
}

// ---- Weights ------------------------------------------------------------------------------------

static float channel_scale(const guarded *w, int64_t taps, int64_t depth, int64_t cols,
                           bool transposed, int64_t o, spops_dtype dtype)
{
    float most = 0.0f;
    for (int64_t k = 0; k < taps; ++k)
        for (int64_t c = 0; c < depth; ++c) {
            const float v = (float)fabs(transposed ? guarded_get(w, k * cols + o, c)
                                                   : guarded_get(w, k * depth + c, o));
            if (isfinite(v) && v > most) most = v;
        }
    const float scale = most / (dtype == SPOPS_DTYPE_I8 ? 127.0f : 448.0f);
    return most == 0.0f ? 1.0f : scale < 0x1p-126f ? 0x1p-126f : scale;
}

static void check_weights(test_device *d, spops_dtype from, spops_dtype to, test_values values,
                          test_rng *rng)
{
    static const int64_t shapes[][3] = {
        {1, 1, 1}, {1, 16, 33}, {27, 5, 8}, {8, 32, 3}, {2, 600, 2}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; ++i) {
        const int64_t taps = shapes[i][0], depth = shapes[i][1], cols = shapes[i][2];
        const bool transposed = test_rng_below(rng, 2) != 0;
        const int64_t padded = (depth + 15) / 16 * 16;
        guarded w = guarded_create(d->backend, "w", taps * (transposed ? cols : depth),
                                   transposed ? depth : cols, test_rng_below(rng, 3), 0, from);
        guarded q = codes_create(d, "q", taps * cols, padded, 0, 0, to);
        guarded scales = guarded_create(d->backend, "scales", 1, cols, 0, 0, SPOPS_DTYPE_F32);
        char text[256];
        const char *what =
            test_describe(text, "%s to %s, %s, %d taps of %d x %d, transposed %d",
                          test_dtype_name(from), spops_dtype_name(to), test_values_name(values),
                          (int)taps, (int)depth, (int)cols, transposed);
        free(guarded_fill(&w, rng, values, false, 1));
        guarded_upload(&w), guarded_upload(&q), guarded_upload(&scales);
        test_expect_ok(d->ctx,
                       spops_quantize_weights_execute(d->ctx, w.view, (int32_t)taps, transposed,
                                                      q.view, (float *)scales.view.data),
                       what);
        test_wait(d);
        guarded_download(&q), guarded_download(&scales);
        for (int64_t o = 0; o < cols; ++o) {
            const float scale = channel_scale(&w, taps, depth, cols, transposed, o, to);
            cr_assert((float)guarded_get(&scales, 0, o) == scale, "%s: scale %d", what, (int)o);
            for (int64_t k = 0; k < taps; ++k)
                for (int64_t c = 0; c < padded; ++c) {
                    int code = 0;
                    if (c < depth)
                        code = code_of((float)(transposed ? guarded_get(&w, k * cols + o, c)
                                                          : guarded_get(&w, k * depth + c, o)) /
                                           scale,
                                       to);
                    cr_assert(*code_at(&q, k * cols + o, c) == code, "%s: tap %d, %d to %d", what,
                              (int)k, (int)c, (int)o);
                }
        }
        guarded_check_padding(&q, what), guarded_check_padding(&scales, what);
        guarded_destroy(&w), guarded_destroy(&q), guarded_destroy(&scales);
    }
}

CaseTest(quantized, weights, every_case(test_row_dtypes, NUM_ROW_DTYPES, both_dtypes, 2))
{
    static const test_values values[] = {VALUES_RANDOM,    VALUES_CANCEL,   VALUES_ZEROS,
                                         VALUES_SUBNORMAL, VALUES_INFINITE, VALUES_NAN};
    test_rng rng = test_rng_make(case_number(p) + 5);
    test_device d;
    if (p->launch == LAUNCH_CAPTURED ||
        !test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch))
        return;
    for (size_t i = 0; i < sizeof values / sizeof *values; ++i)
        check_weights(&d, (spops_dtype)p->dtype, (spops_dtype)p->op, values[i], &rng);
    test_close(&d);
}

// ---- Matrices of i8 -----------------------------------------------------------------------------

// Every tie, what saturates, NaN and infinities; and every code back.
CaseTest(quantized, i8, every_case(test_row_dtypes, NUM_ROW_DTYPES, NULL, 0))
{
    enum { ROWS = 9, COLS = 67 };
    const spops_dtype dtype = (spops_dtype)p->dtype;
    const float scale_value = 0.25f;
    test_rng rng = test_rng_make(11);
    test_device d;
    if (p->launch == LAUNCH_CAPTURED ||
        !test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch))
        return;
    guarded x = guarded_create(d.backend, "x", ROWS, COLS, 5, 1, dtype);
    guarded back = guarded_create(d.backend, "back", ROWS, COLS, 2, 0, dtype);
    guarded q = codes_create(&d, "q", ROWS, COLS, 3, 1, SPOPS_DTYPE_I8);
    guarded scale = guarded_create(d.backend, "scale", 1, 1, 0, 0, SPOPS_DTYPE_F32);
    float most = 0.0f;
    for (int64_t i = 0; i < ROWS * COLS; ++i) {
        double v = (double)(i - 300) * 0.125; // halves of 0.25
        if (i % 37 == 0) v *= 1000.0;
        if (i == 3) v = (double)INFINITY;
        if (i == 4) v = -(double)INFINITY;
        if (i == 5) v = (double)NAN;
        guarded_set(&x, i / COLS, i % COLS, v);
        const float kept = (float)guarded_get(&x, i / COLS, i % COLS);
        if (isfinite(kept) && fabsf(kept) > most) most = fabsf(kept);
    }
    guarded_set(&scale, 0, 0, (double)scale_value);
    guarded_upload(&x), guarded_upload(&q), guarded_upload(&scale), guarded_upload(&back);
    test_expect_ok(
        d.ctx, spops_quantize_execute(d.ctx, x.view, (const float *)scale.view.data, q.view, NULL),
        "quantize");
    test_wait(&d);
    guarded_download(&q);
    for (int64_t i = 0; i < ROWS * COLS; ++i) {
        const float v = (float)guarded_get(&x, i / COLS, i % COLS) / scale_value;
        cr_assert(*code_at(&q, i / COLS, i % COLS) == code_of(v, SPOPS_DTYPE_I8), "%g is %d",
                  (double)v, *code_at(&q, i / COLS, i % COLS));
    }
    guarded_check_padding(&q, "quantize");
    draw_codes(&q, &rng, ALL_CODES);
    test_expect_ok(
        d.ctx,
        spops_dequantize_execute(d.ctx, q.view, (const float *)scale.view.data, NULL, back.view),
        "dequantize");
    test_expect_ok(
        d.ctx,
        spops_quantize_scale_execute(d.ctx, x.view, SPOPS_DTYPE_I8, (float *)scale.view.data),
        "scale");
    test_wait(&d);
    guarded_download(&back), guarded_download(&scale);
    for (int64_t i = 0; i < ROWS * COLS; ++i) {
        const double v = value_of(*code_at(&q, i / COLS, i % COLS), SPOPS_DTYPE_I8);
        cr_assert(guarded_get(&back, i / COLS, i % COLS) ==
                      test_round(v * (double)scale_value, dtype),
                  "%g is %g", v, guarded_get(&back, i / COLS, i % COLS));
    }
    cr_assert((float)guarded_get(&scale, 0, 0) == most / 127.0f);
    guarded_destroy(&x), guarded_destroy(&back), guarded_destroy(&q), guarded_destroy(&scale);
    test_close(&d);
}

// ---- Layers -------------------------------------------------------------------------------------

enum { NO_TILE = 0, MAX_VECTORS = 4 };

// A layer of codes: matrices, vectors, and which row of x each output row has at each tap.
typedef struct layer8 {
    test_device *d;
    const spops_sparseconv *conv; // NULL: linear
    const int32_t *table;         // [rows of out][taps]; NULL: row to row
    int64_t taps, rows, counted, in, out;
    spops_dtype dtype, out_dtype;
    guarded x, w, y, residual, vectors[MAX_VECTORS], scalars; // w_scales, bias, scale, shift
    bool has[MAX_VECTORS], has_residual, has_scalars;
    spops_activation activation;
    int32_t fast_sums;
    int32_t *num_rows;
} layer8;

static const float *vector(const guarded *g, bool has)
{
    return has ? (const float *)g->view.data : NULL;
}

static float scalar(const layer8 *l, int i) // of x, the residual, the output
{
    return l->has_scalars ? (float)guarded_get(&l->scalars, 0, i) : 1.0f;
}

static void run_layer(layer8 *l, const char *what)
{
    spops_context *ctx = l->d->ctx;
    spops_quantized_layer layer = spops_quantized_layer_default();
    const float *scalars = vector(&l->scalars, l->has_scalars);
    layer.w_scales = vector(&l->vectors[0], l->has[0]);
    layer.bias = vector(&l->vectors[1], l->has[1]);
    layer.scale = vector(&l->vectors[2], l->has[2]);
    layer.shift = vector(&l->vectors[3], l->has[3]);
    if (scalars != NULL) {
        layer.x_scale = scalars;
        layer.residual_scale = scalars + 1;
        layer.out_scale = scalars + 2;
    }
    layer.residual = l->has_residual ? &l->residual.view : NULL;
    layer.activation = l->activation;
    layer.fast_sums = l->fast_sums;
    layer.num_rows = l->num_rows;
    test_expect_ok(ctx,
                   l->conv != NULL ? spops_sparseconv_execute_quantized(
                                         ctx, l->conv, l->x.view, l->w.view, &layer, l->y.view)
                                   : spops_linear_execute_quantized(ctx, l->x.view, l->w.view,
                                                                    &layer, l->y.view),
                   what);
}

static double residual_at(const layer8 *l, int64_t r, int64_t o)
{
    return spops_dtype_bytes(l->out_dtype) > 1
               ? guarded_get(&l->residual, r, o)
               : value_of(*code_at(&l->residual, r, o), l->out_dtype);
}

// Each step in f32, as the contract has them; `slack` becomes what the error of the sum may have become.
static float finish(const layer8 *l, double sum, int64_t r, int64_t o, double *slack)
{
    float v = (float)sum;
    const float by = scalar(l, 0) * (l->has[0] ? (float)guarded_get(&l->vectors[0], 0, o) : 1.0f);
    v = v * by;
    *slack *= fabs((double)by);
    if (l->has[1]) v = v + (float)guarded_get(&l->vectors[1], 0, o);
    if (l->has[2]) v = v * (float)guarded_get(&l->vectors[2], 0, o);
    if (l->has[2]) *slack *= fabs(guarded_get(&l->vectors[2], 0, o));
    if (l->has[3]) v = v + (float)guarded_get(&l->vectors[3], 0, o);
    if (l->has_residual) {
        float other = (float)residual_at(l, r, o);
        if (spops_dtype_bytes(l->out_dtype) == 1) other = other * scalar(l, 1);
        v = v + other;
    }
    if (l->activation == SPOPS_ACTIVATION_RELU) v = v < 0.0f ? 0.0f : v;
    if (l->activation == SPOPS_ACTIVATION_LEAKY_RELU) v = v < 0.0f ? v * 0.01f : v;
    *slack += fabs((double)v) * 0x1p-20;
    return v;
}

static void check_number(const layer8 *l, int64_t r, int64_t o, float v, double slack,
                         const char *what)
{
    if (spops_dtype_bytes(l->out_dtype) == 1) {
        const float inverse = 1.0f / scalar(l, 2);
        const int got = *code_at(&l->y, r, o);
        if (l->dtype == SPOPS_DTYPE_I8) {
            cr_assert(got == code_of(v * inverse, SPOPS_DTYPE_I8),
                      "%s: (%d, %d) is %d, expected %g", what, (int)r, (int)o, (int)(int8_t)got,
                      (double)(v * inverse));
            return;
        }
        const double value = value_of(got, SPOPS_DTYPE_F8E4M3);
        const double low =
            value_of(code_of((float)((double)v - slack) * inverse, l->dtype), l->dtype);
        const double high =
            value_of(code_of((float)((double)v + slack) * inverse, l->dtype), l->dtype);
        cr_assert(isnan(v) ? isnan(value) : value >= low && value <= high,
                  "%s: (%d, %d) is %g, expected %g to %g", what, (int)r, (int)o, value, low, high);
        return;
    }
    const double got = guarded_get(&l->y, r, o), expected = test_round((double)v, l->out_dtype);
    const double unit = l->out_dtype == SPOPS_DTYPE_F16 ? 0x1p-10 : 0;
    if (isinf(got) && l->out_dtype == SPOPS_DTYPE_F16 && fabs((double)v) + slack > 65504.0) {
        cr_assert(isinf(expected) || slack > 0.0, "%s: (%d, %d) is infinite", what, (int)r, (int)o);
        return;
    }
    if (l->dtype == SPOPS_DTYPE_I8 || isnan(v))
        cr_assert(got == expected || (isnan(got) && isnan(expected)),
                  "%s: (%d, %d) is %.9g, expected %.9g", what, (int)r, (int)o, got, expected);
    else
        cr_assert(got == expected ||
                      fabs(got - (double)v) <= slack + fabs((double)v) * unit + 0x1p-24,
                  "%s: (%d, %d) is %g, expected %g within %g", what, (int)r, (int)o, got, (double)v,
                  slack);
}

// All rows that count against sums in FP64, which holds those of i8 and of f8e4m3 exactly here.
static double check_layer(layer8 *l, const char *what)
{
    double worst = 0.0, value[256];
    test_wait(l->d);
    guarded_download(&l->y);
    for (int code = 0; code < 256; ++code)
        value[code] = value_of(code, l->dtype);
    for (int64_t r = 0; r < l->counted; ++r)
        for (int64_t o = 0; o < l->out; ++o) {
            double sum = 0.0, magnitudes = 0.0;
            for (int64_t k = 0; k < l->taps; ++k) {
                const int64_t from = l->table == NULL ? r : l->table[r * l->taps + k];
                for (int64_t c = 0; from >= 0 && c < l->in; ++c) {
                    const double product =
                        value[*code_at(&l->x, from, c)] * value[*code_at(&l->w, k * l->out + o, c)];
                    sum += product;
                    magnitudes += fabs(product);
                }
            }
            double slack = l->dtype == SPOPS_DTYPE_I8 ? 0.0 : magnitudes * F8_BOUND;
            // Each 32 products may lose as much again, of what is left of the whole sum.
            if (l->fast_sums) slack *= (double)(l->taps * ((l->in + 127) / 128));
            const float v = finish(l, sum, r, o, &slack);
            check_number(l, r, o, v, slack, what);
            if (l->out_dtype == SPOPS_DTYPE_F32 && l->dtype != SPOPS_DTYPE_I8 && slack > 0.0) {
                const double part = fabs(guarded_get(&l->y, r, o) - (double)v) / slack;
                if (part > worst) worst = part;
            }
        }
    guarded_check_padding(&l->y, what);
    return worst;
}

static void make_layer(layer8 *l, test_rng *rng, kinds kind, int64_t rows_of_x, bool aligned)
{
    static const char *const names[] = {"w_scales", "bias", "scale", "shift"};
    test_device *d = l->d;
    const bool narrow = spops_dtype_bytes(l->out_dtype) == 1;
    const int64_t padded = (l->in + 15) / 16 * 16;
    l->x = codes_create(d, "x", rows_of_x, l->in, aligned ? (16 - l->in % 16) % 16 + 16 : 3,
                        aligned ? 0 : 1, l->dtype);
    l->w = codes_create(d, "w", l->taps * l->out, padded, 0, 0, l->dtype);
    const int64_t padding = test_rng_below(rng, 2) * 8 + test_rng_below(rng, 2);
    l->y = narrow ? codes_create(d, "out", l->rows, l->out, padding, 0, l->out_dtype)
                  : guarded_create(d->backend, "out", l->rows, l->out, padding, 0, l->out_dtype);
    l->residual = narrow
                      ? codes_create(d, "residual", l->rows, l->out, 1, 0, l->out_dtype)
                      : guarded_create(d->backend, "residual", l->rows, l->out, 0, 0, l->out_dtype);
    draw_codes(&l->x, rng, kind);
    draw_codes(&l->w, rng, kind == WITH_NAN ? ALL_CODES : kind);
    for (int64_t r = 0; r < l->w.view.rows; ++r)
        for (int64_t c = l->in; c < padded; ++c)
            *code_at(&l->w, r, c) = 0;
    guarded_upload(&l->w);
    for (int i = 0; i < MAX_VECTORS; ++i) {
        l->vectors[i] = guarded_create(d->backend, names[i], 1, l->out, 0, 0, SPOPS_DTYPE_F32);
        for (int64_t o = 0; o < l->out; ++o)
            guarded_set(&l->vectors[i], 0, o,
                        (i == 0 ? 0.01 : 1.0) * (2.0 * test_rng_unit(rng) - 0.8));
        guarded_upload(&l->vectors[i]);
        l->has[i] = test_rng_below(rng, 2) != 0;
    }
    l->scalars = guarded_create(d->backend, "scales", 1, 3, 0, 0, SPOPS_DTYPE_F32);
    guarded_set(&l->scalars, 0, 0, 0.013), guarded_set(&l->scalars, 0, 1, 0.7);
    guarded_set(&l->scalars, 0, 2, kind == LARGEST_CODES ? 0.001 : 0.37);
    guarded_upload(&l->scalars);
    l->has_scalars = test_rng_below(rng, 4) > 0;
    l->has_residual = test_rng_below(rng, 2) != 0;
    if (narrow)
        draw_codes(&l->residual, rng, ALL_CODES);
    else
        free(guarded_fill(&l->residual, rng, VALUES_RANDOM, false, 1));
    guarded_upload(&l->residual), guarded_upload(&l->y);
    l->activation = (spops_activation)test_rng_below(rng, 3); // none, relu, leaky_relu
    l->fast_sums = test_rng_below(rng, 3) == 0;
}

static void free_layer(layer8 *l)
{
    guarded_destroy(&l->x), guarded_destroy(&l->w), guarded_destroy(&l->y);
    guarded_destroy(&l->residual), guarded_destroy(&l->scalars);
    for (int i = 0; i < MAX_VECTORS; ++i)
        guarded_destroy(&l->vectors[i]);
}

static spops_dtype any_out(test_rng *rng, spops_dtype dtype)
{
    const int64_t any = test_rng_below(rng, 3);
    return any == 0 ? SPOPS_DTYPE_F32 : any == 1 ? SPOPS_DTYPE_F16 : dtype;
}

// ---- Linear layers ------------------------------------------------------------------------------

CaseTest(quantized, linear, every_case(NULL, 0, both_dtypes, 2), .timeout = 600)
{
    static const int64_t sizes[][3] = {{1, 1, 1},      {2, 5, 3},      {63, 16, 16},
                                       {64, 64, 64},   {65, 72, 40},   {130, 48, 7},
                                       {129, 256, 24}, {200, 96, 300}, {300, 264, 136},
                                       {40, 130, 260}, {1000, 32, 32}};
    test_rng rng = test_rng_make(case_number(p) + 1000);
    double worst = 0.0;
    test_device d;
    if (p->launch == LAUNCH_CAPTURED ||
        !test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch))
        return;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i)
        for (int kind = 0; kind < NUM_KINDS; ++kind)
            for (int aligned = 0; aligned < 2; ++aligned) {
                layer8 l = {.d = &d,
                            .taps = 1,
                            .rows = sizes[i][0],
                            .counted = sizes[i][0],
                            .in = sizes[i][1],
                            .out = sizes[i][2],
                            .dtype = (spops_dtype)p->op};
                char text[256];
                int32_t count = (int32_t)(l.rows * 2 / 3);
                l.out_dtype = any_out(&rng, l.dtype);
                make_layer(&l, &rng, (kinds)kind, l.rows, aligned != 0);
                if (test_rng_below(&rng, 4) == 0) {
                    l.num_rows = test_upload_i32(&d, &count, 1);
                    l.counted = count;
                }
                const char *what =
                    test_describe(text, "linear of %s to %s, %d x %d x %d, codes %d, aligned %d",
                                  spops_dtype_name(l.dtype), spops_dtype_name(l.out_dtype),
                                  (int)l.rows, (int)l.in, (int)l.out, kind, aligned);
                run_layer(&l, what);
                const double part = check_layer(&l, what);
                if (part > worst) worst = part;
                test_free(&d, l.num_rows);
                free_layer(&l);
            }
    if (p->op != SPOPS_DTYPE_I8) printf("linear: %.4f of the bound\n", worst);
    test_close(&d);
}

// As many products as a sum of i8 may have, all the largest.
CaseTest(quantized, longest_sums, every_case(NULL, 0, NULL, 0))
{
    static const int64_t depths[] = {131071, 131056};
    test_rng rng = test_rng_make(3);
    test_device d;
    if (p->launch == LAUNCH_CAPTURED ||
        !test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch))
        return;
    for (int i = 0; i < 2; ++i) {
        layer8 l = {.d = &d,
                    .taps = 1,
                    .rows = 2,
                    .counted = 2,
                    .in = depths[i],
                    .out = 3,
                    .dtype = SPOPS_DTYPE_I8,
                    .out_dtype = SPOPS_DTYPE_F32};
        make_layer(&l, &rng, ALL_CODES, l.rows, depths[i] % 16 == 0);
        for (int64_t c = 0; c < l.in; ++c) {
            for (int64_t r = 0; r < 2; ++r)
                *code_at(&l.x, r, c) = 128;
            for (int64_t o = 0; o < 3; ++o)
                *code_at(&l.w, o, c) = o == 2 ? 127 : 128;
        }
        guarded_upload(&l.x), guarded_upload(&l.w);
        run_layer(&l, "longest");
        check_layer(&l, "longest");
        free_layer(&l);
    }
    test_close(&d);
}

// ---- Convolutions -------------------------------------------------------------------------------

typedef struct map8 {
    ref_set set;
    spops_coords *coords;
    spops_kernel_map *map;
    int32_t *table;
    int64_t taps;
} map8;

static map8 make_map(test_device *d, test_cloud which, int64_t most, int32_t size, test_rng *rng)
{
    cloud_rows cloud = cloud_make(which, 3, false, rng);
    const spops_kernel_shape kernel = spops_kernel_shape_cube(3, size, 1, 1);
    spops_kernel_map_options o = spops_kernel_map_options_default();
    map8 m = {.taps = ref_num_taps(&kernel)};
    if (cloud.n > most) cloud.n = most;
    m.set = ref_unique(cloud.dims, cloud.n, cloud.rows, NULL);
    m.coords = test_create_set(d, 3, m.set.n, m.set.rows, NULL);
    o.contents = SPOPS_MAP_PAIRS | SPOPS_MAP_ORDER;
    test_expect_ok(
        d->ctx,
        spops_kernel_map_create(d->ctx, SPOPS_MAP_SUBMANIFOLD, &kernel, m.coords, NULL, &o, &m.map),
        "map");
    m.table = ref_map(SPOPS_MAP_SUBMANIFOLD, &kernel, &m.set, &m.set);
    cloud_free(&cloud);
    return m;
}

static void free_map(map8 *m)
{
    spops_kernel_map_destroy(m->map);
    spops_coords_destroy(m->coords);
    ref_set_free(&m->set);
    free(m->table);
}

// Twice, and once more where the tile is another: of i8 the same bits each time.
static double check_conv(test_device *d, const map8 *m, spops_dtype dtype, int64_t in, int64_t out,
                         int32_t tile, bool whole, test_rng *rng)
{
    spops_sparseconv_options options = spops_sparseconv_options_default();
    spops_sparseconv *conv = NULL;
    double worst = 0.0;
    options.tile = tile;
    options.quantized = (int32_t)test_rng_below(rng, 2);
    options.crop_independent = whole;
    options.max_in_channels = in;
    options.max_out_channels = out;
    test_expect_ok(d->ctx, spops_sparseconv_create(d->ctx, m->map, &options, &conv), "plan");
    for (int kind = 0; kind < NUM_KINDS; ++kind) {
        layer8 l = {.d = d,
                    .conv = conv,
                    .table = m->table,
                    .taps = m->taps,
                    .rows = m->set.n,
                    .counted = m->set.n,
                    .in = in,
                    .out = out,
                    .dtype = dtype};
        char text[256];
        l.out_dtype = any_out(rng, dtype);
        make_layer(&l, rng, (kinds)kind, m->set.n, in % 16 == 0);
        const char *what = test_describe(
            text,
            "convolution of %s to %s, %d rows, %d taps, %d to %d, tile %d, whole %d, codes %d",
            spops_dtype_name(dtype), spops_dtype_name(l.out_dtype), (int)m->set.n, (int)m->taps,
            (int)in, (int)out, (int)tile, whole, kind);
        run_layer(&l, what);
        const double part = check_layer(&l, what);
        if (part > worst) worst = part;
        unsigned char *first = guarded_elements(&l.y);
        guarded_poison(&l.y, 0x3c);
        guarded_upload(&l.y);
        run_layer(&l, what);
        test_wait(d);
        guarded_download(&l.y);
        guarded_check_bits(&l.y, first, what);
        free(first);
        free_layer(&l);
    }
    spops_sparseconv_destroy(conv);
    return worst;
}

CaseTest(quantized, convolution, every_case(NULL, 0, both_dtypes, 2), .timeout = 600)
{
    static const int64_t channels[][2] = {{16, 16}, {32, 64},  {64, 40},   {80, 128},
                                          {5, 9},   {96, 200}, {128, 256}, {256, 272}};
    static const int32_t tiles[] = {NO_TILE, 2, 4, 5, 10, 11};
    test_rng rng = test_rng_make(case_number(p) + 2000);
    double worst = 0.0;
    test_device d;
    if (p->launch == LAUNCH_CAPTURED ||
        !test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch))
        return;
    for (int c = 0; c < 3; ++c) {
        static const test_cloud clouds[] = {CLOUD_CLUMPS, CLOUD_DENSE, CLOUD_ONE};
        static const int64_t most[] = {150, 300, 1};
        map8 m = make_map(&d, clouds[c], most[c], 3, &rng);
        for (size_t i = 0; i < sizeof channels / sizeof *channels; ++i) {
            const bool on_cuda = d.backend == SPOPS_BACKEND_CUDA;
            const int32_t tile = on_cuda ? tiles[test_rng_below(&rng, 6)] : 0;
            const double part =
                check_conv(&d, &m, (spops_dtype)p->op, channels[i][0], channels[i][1], tile,
                           test_rng_below(&rng, 2) != 0, &rng);
            if (part > worst) worst = part;
        }
        free_map(&m);
    }
    if (p->op != SPOPS_DTYPE_I8) printf("convolution: %.4f of the bound\n", worst);
    test_close(&d);
}

// ---- Refused ------------------------------------------------------------------------------------

CaseTest(quantized, refused, every_case(NULL, 0, NULL, 0))
{
    const spops_status bad = SPOPS_STATUS_INVALID_ARGUMENT;
    test_rng rng = test_rng_make(9);
    test_device d;
    if (p->launch == LAUNCH_CAPTURED ||
        !test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch))
        return;
    map8 m = make_map(&d, CLOUD_CLUMPS, 50, 3, &rng);
    spops_sparseconv_options options = spops_sparseconv_options_default();
    spops_quantized_layer layer = spops_quantized_layer_default();
    spops_sparseconv *conv = NULL;
    options.max_out_channels = 16;
    test_expect_ok(d.ctx, spops_sparseconv_create(d.ctx, m.map, &options, &conv), "plan");
    layer8 l = {.d = &d,
                .conv = conv,
                .table = m.table,
                .taps = 27,
                .rows = m.set.n,
                .in = 16,
                .out = 32,
                .dtype = SPOPS_DTYPE_I8,
                .out_dtype = SPOPS_DTYPE_F32};
    make_layer(&l, &rng, ALL_CODES, m.set.n, true);
    const spops_matrix x = l.x.view, w = l.w.view, y = l.y.view;
    test_expect(d.ctx, spops_sparseconv_execute_quantized(d.ctx, conv, x, w, NULL, y), bad,
                "out has 32 columns, expected 1 to the 16 that conv was made for", "channels");
    spops_matrix half = w, some = y;
    half.rows = w.rows / 2, some.cols = 16;
    layer.num_rows = (const int32_t *)x.data;
    test_expect(d.ctx, spops_sparseconv_execute_quantized(d.ctx, conv, x, half, &layer, some), bad,
                "layer->num_rows is not NULL", "num_rows");
    layer.num_rows = NULL;
    half.data = (char *)half.data + 8;
    test_expect(d.ctx, spops_sparseconv_execute_quantized(d.ctx, conv, x, half, &layer, some), bad,
                "w.data is not aligned to 16 bytes", "alignment");
    half.data = w.data;
    layer.activation = (spops_activation)99;
    test_expect(d.ctx, spops_sparseconv_execute_quantized(d.ctx, conv, x, half, &layer, some), bad,
                "activation is 99", "activation");
    layer = spops_quantized_layer_default();
    half.dtype = SPOPS_DTYPE_F8E4M3;
    test_expect(d.ctx, spops_sparseconv_execute_quantized(d.ctx, conv, x, half, &layer, some), bad,
                "w.dtype is f8e4m3", "dtypes");
    const spops_matrix deep = spops_matrix_dense(x.data, 0, 131072, SPOPS_DTYPE_I8);
    const spops_matrix none = spops_matrix_dense(y.data, 0, 1, SPOPS_DTYPE_F32);
    test_expect(d.ctx,
                spops_linear_execute_quantized(
                    d.ctx, deep, spops_matrix_dense(w.data, 1, 131072, SPOPS_DTYPE_I8), NULL, none),
                bad, "expected at most 131071 products of i8", "products");
    test_expect(
        d.ctx,
        spops_quantize_weights_execute(d.ctx, spops_matrix_dense(y.data, 7, 16, SPOPS_DTYPE_F32), 2,
                                       0, spops_matrix_dense(w.data, 32, 16, SPOPS_DTYPE_I8),
                                       (float *)l.scalars.view.data),
        bad, "w has 7 rows, expected a multiple of taps = 2", "taps");
    test_wait(&d);
    guarded_check_untouched(&l.y, "refused");
    free_layer(&l);
    spops_sparseconv_destroy(conv);
    free_map(&m);
    test_close(&d);
}
