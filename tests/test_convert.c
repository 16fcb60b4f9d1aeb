// SPDX-License-Identifier: Apache-2.0
// Conversions: every pair of floats, bit for bit against the definition of rounding; indices of 64 and
// 32 bits; strides and bases of every kind; what is refused.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "spops/convert.h"
#include "tests/support/operator.h"
#include "tests/support/params.h"

static spops_status run_convert(void *user, spops_context *ctx, const spops_matrix *const *in,
                                const spops_matrix *const *out)
{
    (void)user;
    return spops_convert_execute(ctx, *in[0], *out[0]);
}

static void reference_convert(void *user, const double *const *in, ref_tensor *const *out)
{
    (void)user;
    for (int64_t i = 0; i < out[0]->rows * out[0]->cols; ++i)
        out[0]->value[i] = in[0][i];
}

static const int pairs[] = {0, 1, 2, 3, 4, 5, 6, 7, 8}; // from + 3 * to

// Every shape and kind of values. check: of dtypes that differ.
static void check_floats(const struct case_param *p, spops_dtype from, spops_dtype to,
                         test_check check)
{
    static const int64_t shapes[][2] = {{0, 5},   {5, 0},    {1, 1},  {3, 7},   {2, 8},    {17, 33},
                                        {64, 64}, {5, 2049}, {1, 40}, {300, 3}, {1000, 80}};
    uint64_t stream = case_number(p) << 32;
    test_rng rng = test_rng_make(stream + 5);
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; ++s)
        for (int values = 0; values <= VALUES_LARGE; ++values) {
            const int64_t rows = shapes[s][0], cols = shapes[s][1];
            test_operator op = {.what = "convert",
                                .stream = ++stream,
                                .run = run_convert,
                                .reference = reference_convert};
            op.in[0] = test_view(test_input("x", rows, cols, from, (test_values)values),
                                 test_rng_below(&rng, 3) * 4, test_rng_below(&rng, 2));
            op.out[0] =
                test_view(test_output("out", rows, cols, to, from == to ? CHECK_SAME : check),
                          test_rng_below(&rng, 3) * 8, test_rng_below(&rng, 2));
            test_operator_run(&d, &op);
        }
    test_close(&d);
}

CaseTest(convert, rounds_floats, every_case(NULL, 0, pairs, 9), .timeout = 600)
{
    check_floats(p, test_row_dtypes[p->op % 3], test_row_dtypes[p->op / 3], CHECK_EXACT);
}

// From f64 and to it; to 16 bits it is rounded once, and not by way of f32.
ParameterizedTestParameters(convert, rounds_f64)
{
    static const spops_dtype f64[] = {SPOPS_DTYPE_F64};
    return every_case(f64, 1, pairs, 2 * NUM_REAL_DTYPES);
}
ParameterizedTest(struct case_param *p, convert, rounds_f64, .timeout = 600)
{
    const spops_dtype other = test_row_dtypes[p->op % NUM_REAL_DTYPES];
    const bool is_from = p->op >= NUM_REAL_DTYPES;
    check_floats(p, is_from ? SPOPS_DTYPE_F64 : other, is_from ? other : SPOPS_DTYPE_F64,
                 CHECK_BOUND);
}

Test(convert, rounds_f64_once)
{
    // Just above a tie of f16 and one of bf16, by less than f32 can hold.
    const double x[] = {1.0 + 0x1p-11 + 0x1p-40, 1.0 + 0x1p-8 + 0x1p-40};
    uint16_t f16[2], bf16[2];
    test_device d;
    if (!test_open(&d, SPOPS_BACKEND_CPU, LAUNCH_DEFAULT)) return;
    const spops_matrix from = spops_matrix_dense_const(x, 1, 2, SPOPS_DTYPE_F64);
    test_expect_ok(
        d.ctx, spops_convert_execute(d.ctx, from, spops_matrix_dense(f16, 1, 2, SPOPS_DTYPE_F16)),
        "f16");
    test_expect_ok(
        d.ctx, spops_convert_execute(d.ctx, from, spops_matrix_dense(bf16, 1, 2, SPOPS_DTYPE_BF16)),
        "bf16");
    cr_expect_eq(f16[0], 0x3c01);
    cr_expect_eq(bf16[1], 0x3f81);
    test_close(&d);
}

// ---- Every tie and border -----------------------------------------------------------------------

// The nearest number of a format with `digits` bits after the point and smallest exponent `least`;
// ties to even: by the definition, in f64.
static double nearest(double v, int digits, int least, double largest)
{
    int exponent;
    double unit, n;
    if (v == 0 || isinf(v)) return v;
    (void)frexp(v, &exponent);
    exponent = exponent - 1 < least ? least : exponent - 1;
    unit = ldexp(1, exponent - digits);
    n = nearbyint(v / unit) * unit; // ties to even is the mode in force
    return fabs(n) > largest ? copysign(INFINITY, v) : copysign(n, v);
}

BackendTest(convert, takes_every_16_bit_pattern)
{
    enum { N = 1 << 16 };
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    for (int kind = 0; kind < 2; ++kind) { // f16, bf16: to f32, between neighbours, and back
        const spops_dtype half = kind == 0 ? SPOPS_DTYPE_F16 : SPOPS_DTYPE_BF16;
        const double largest = kind == 0 ? 65504.0 : 0x1.fep127;
        guarded x = guarded_create(d.backend, "x", 3, N, 0, 0, SPOPS_DTYPE_F32);
        guarded out = guarded_create(d.backend, "out", 3, N, 0, 0, half);
        guarded codes = guarded_create(d.backend, "codes", 1, N, 0, 0, half);
        for (int32_t i = 0; i < N; ++i) {
            const uint16_t code = (uint16_t)i;
            memcpy(codes.host + codes.first + 2 * (size_t)i, &code, 2);
        }
        guarded_upload(&codes);
        for (int32_t i = 0; i < N; ++i) {
            const double v = guarded_get(&codes, 0, i);
            const double next = i + 1 < N ? guarded_get(&codes, 0, i + 1) : v;
            const float middle = (float)((v + next) / 2); // of neighbours: a tie
            guarded_set(&x, 0, i, v);
            guarded_set(&x, 1, i, (double)middle);
            guarded_set(&x, 2, i, (double)nextafterf(middle, kind == 0 ? 0.0f : INFINITY));
        }
        guarded_upload(&x);
        test_expect_ok(d.ctx, spops_convert_execute(d.ctx, x.view, out.view), "to 16 bits");
        test_wait(&d);
        guarded_download(&out);
        for (int r = 0; r < 3; ++r)
            for (int32_t i = 0; i < N; ++i) {
                const double v = guarded_get(&x, r, i), got = guarded_get(&out, r, i);
                const double right =
                    nearest(v, kind == 0 ? 10 : 7, kind == 0 ? -14 : -126, largest);
                if (isnan(v))
                    cr_assert(isnan(got), "row %d code %x", r, (unsigned)i);
                else
                    cr_assert(got == right && !signbit(got) == !signbit(right),
                              "row %d code %x: %a became %a, expected %a", r, (unsigned)i, v, got,
                              right);
            }
        guarded_destroy(&x), guarded_destroy(&out), guarded_destroy(&codes);
    }
    test_close(&d);
}

// ---- Indices ------------------------------------------------------------------------------------

enum { INDEX_ROWS = 3, MOST_COLS = 41, MOST = INDEX_ROWS * (MOST_COLS + 3) };

static int64_t *upload_i64(test_device *d, const int64_t *values, int64_t n)
{
    return (int64_t *)(void *)test_upload_i32(d, (const int32_t *)(const void *)values, 2 * n);
}

static spops_matrix indices(void *data, int64_t cols, int64_t padding, spops_dtype dtype)
{
    spops_matrix m = spops_matrix_dense(data, INDEX_ROWS, cols, dtype);
    m.row_stride = cols + padding;
    return m;
}

// To i32, from there to i64, and a copy; what lies between rows stays.
static void check_indices(test_device *d, const int64_t *given, int64_t num, int64_t cols,
                          int64_t padding)
{
    const int64_t stride = cols + padding, n = INDEX_ROWS * stride;
    int64_t from[MOST], marks[MOST], wide[MOST], copied[MOST];
    int32_t narrow[MOST], narrow_marks[MOST];

    for (int64_t i = 0; i < n; ++i) {
        from[i] = given[i * 5 % num];
        marks[i] = 77, narrow_marks[i] = 77;
    }
    int64_t *x = upload_i64(d, from, n), *back = upload_i64(d, marks, n);
    int64_t *same = upload_i64(d, marks, n);
    int32_t *out = test_upload_i32(d, narrow_marks, n);
    const spops_matrix x_rows = indices(x, cols, padding, SPOPS_DTYPE_I64);
    const spops_matrix out_rows = indices(out, cols, padding, SPOPS_DTYPE_I32);
    test_expect_ok(d->ctx, spops_convert_execute(d->ctx, x_rows, out_rows), "to i32");
    test_expect_ok(
        d->ctx,
        spops_convert_execute(d->ctx, out_rows, indices(back, cols, padding, SPOPS_DTYPE_I64)),
        "to i64");
    test_expect_ok(
        d->ctx,
        spops_convert_execute(d->ctx, x_rows, indices(same, cols, padding, SPOPS_DTYPE_I64)),
        "a copy");
    test_wait(d);
    test_download_i32(d, narrow, out, n);
    test_download_i32(d, (int32_t *)(void *)wide, (int32_t *)(void *)back, 2 * n);
    test_download_i32(d, (int32_t *)(void *)copied, (int32_t *)(void *)same, 2 * n);
    for (int64_t i = 0; i < n; ++i) {
        const bool element = i % stride < cols;
        const bool fits = from[i] >= INT32_MIN && from[i] <= INT32_MAX;
        const int64_t expected = !element ? 77 : fits ? from[i] : -1;
        cr_assert_eq(narrow[i], expected, "%d columns: element %d", (int)cols, (int)i);
        cr_assert_eq(wide[i], expected, "%d columns: element %d", (int)cols, (int)i);
        cr_assert_eq(copied[i], element ? from[i] : 77, "%d columns: element %d", (int)cols,
                     (int)i);
    }
    test_free(d, x), test_free(d, back), test_free(d, same), test_free(d, out);
}

BackendTest(convert, converts_indices)
{
    static const int64_t given[] = {0,
                                    1,
                                    -1,
                                    7,
                                    INT32_MAX,
                                    INT32_MIN,
                                    (int64_t)INT32_MAX + 1,
                                    (int64_t)INT32_MIN - 1,
                                    INT64_MAX,
                                    INT64_MIN,
                                    (int64_t)1 << 32,
                                    -((int64_t)1 << 40)};
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (int64_t cols = 1; cols <= MOST_COLS; cols += 4)
        for (int64_t padding = 0; padding < 4; ++padding)
            check_indices(&d, given, (int64_t)(sizeof given / sizeof *given), cols, padding);
    test_close(&d);
}
