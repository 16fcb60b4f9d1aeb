// SPDX-License-Identifier: Apache-2.0
#include "tests/support/guarded.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/device.h"

enum { GUARD_BYTES = 512 };

guarded guarded_create(spops_backend_kind backend, const char *name, int64_t rows, int64_t cols,
                       int64_t padding, int64_t shift, spops_dtype dtype)
{
    guarded g;
    memset(&g, 0, sizeof g);
    g.backend = backend;
    g.name = name;
    g.first = GUARD_BYTES + test_elements_bytes(dtype, shift);
    g.bytes = g.first + test_elements_bytes(dtype, rows * (cols + padding)) + GUARD_BYTES;
    void *base = NULL;
    cr_assert(device_alloc(backend, g.bytes, &base), "%s: no memory: %s", name, device_error());
    g.base = (unsigned char *)base;
    g.host = (unsigned char *)malloc(g.bytes);
    g.sent = (unsigned char *)malloc(g.bytes);
    cr_assert(g.host != NULL && g.sent != NULL, "no memory");
    g.view.data = g.base + g.first;
    g.view.rows = rows;
    g.view.cols = cols;
    g.view.row_stride = cols + padding;
    g.view.dtype = dtype;
    guarded_poison(&g, 0xff);
    return g;
}

void guarded_destroy(guarded *g)
{
    device_free(g->backend, g->base);
    free(g->host), free(g->sent);
    memset(g, 0, sizeof *g);
}

static size_t offset_of(const guarded *g, int64_t r, int64_t c)
{
    return g->first + test_elements_bytes(g->view.dtype, r * g->view.row_stride + c);
}

// The odd elements of F4E2M1, which are the upper half of a byte.
static bool is_upper(const guarded *g, int64_t c)
{
    return g->view.dtype == SPOPS_DTYPE_F4E2M1 && c % 2 != 0;
}

static unsigned char swap_halves(unsigned char byte)
{
    return (unsigned char)(byte << 4 | byte >> 4);
}

void guarded_set(guarded *g, int64_t r, int64_t c, double v)
{
    unsigned char *p = g->host + offset_of(g, r, c);
    if (is_upper(g, c)) *p = swap_halves(*p);
    test_store(p, g->view.dtype, v);
    if (is_upper(g, c)) *p = swap_halves(*p);
}

double guarded_get(const guarded *g, int64_t r, int64_t c)
{
    const unsigned char *p = g->host + offset_of(g, r, c);
    const unsigned char swapped = swap_halves(*p);
    return test_load(is_upper(g, c) ? &swapped : p, g->view.dtype);
}

void guarded_poison(guarded *g, int byte)
{
    memset(g->host, byte, g->bytes);
}

double *guarded_fill(guarded *g, test_rng *rng, test_values kind, bool for_product, int64_t longest)
{
    const int64_t n = g->view.rows * g->view.cols;
    double *values = (double *)malloc((size_t)(n > 0 ? n : 1) * sizeof(double));
    cr_assert(values != NULL, "no memory");
    for (int64_t i = 0; i < n; ++i) {
        values[i] = test_value(rng, kind, g->view.dtype, for_product, longest);
    }
    guarded_fill_from(g, values);
    return values;
}

void guarded_fill_from(guarded *g, const double *values)
{
    for (int64_t r = 0; r < g->view.rows; ++r) {
        for (int64_t c = 0; c < g->view.cols; ++c) {
            guarded_set(g, r, c, values[r * g->view.cols + c]);
        }
    }
}

void guarded_upload(guarded *g)
{
    memcpy(g->sent, g->host, g->bytes);
    cr_assert(device_upload(g->backend, g->base, g->host, g->bytes), "%s", device_error());
}

void guarded_download(guarded *g)
{
    cr_assert(device_download(g->backend, g->host, g->base, g->bytes), "%s", device_error());
}

static void check_same(const guarded *g, size_t begin, size_t end, const char *what)
{
    if (memcmp(g->host + begin, g->sent + begin, end - begin) == 0) return;
    for (size_t i = begin; i < end; ++i) {
        cr_assert(g->host[i] == g->sent[i],
                  "%s: byte %lld of %s (element 0 is at byte 0) was changed from 0x%02x to 0x%02x",
                  what, (long long)i - (long long)g->first, g->name, g->sent[i], g->host[i]);
    }
}

void guarded_check_untouched(guarded *g, const char *what)
{
    guarded_download(g);
    check_same(g, 0, g->bytes, what);
}

void guarded_check_padding(const guarded *g, const char *what)
{
    size_t after = 0; // of the last element seen so far
    for (int64_t r = 0; r < g->view.rows && g->view.cols > 0; ++r) {
        check_same(g, after, offset_of(g, r, 0), what);
        after = offset_of(g, r, g->view.cols);
    }
    check_same(g, after, g->bytes, what);
}

unsigned char *guarded_elements(const guarded *g)
{
    const size_t row_bytes = test_elements_bytes(g->view.dtype, g->view.cols);
    unsigned char *elements = (unsigned char *)malloc((size_t)g->view.rows * row_bytes + 1);
    cr_assert(elements != NULL, "no memory");
    for (int64_t r = 0; r < g->view.rows; ++r) {
        memcpy(elements + (size_t)r * row_bytes, g->host + offset_of(g, r, 0), row_bytes);
    }
    return elements;
}

void guarded_check_bits(const guarded *g, const unsigned char *elements, const char *what)
{
    const size_t row_bytes = test_elements_bytes(g->view.dtype, g->view.cols);
    const size_t element = (test_dtype_bits(g->view.dtype) + 7) / 8;
    for (int64_t r = 0; r < g->view.rows; ++r) {
        const unsigned char *was = elements + (size_t)r * row_bytes;
        const unsigned char *is = g->host + offset_of(g, r, 0);
        if (memcmp(was, is, row_bytes) == 0) continue;
        for (int64_t c = 0; c < g->view.cols; ++c) {
            const size_t i = test_elements_bytes(g->view.dtype, c);
            cr_assert(memcmp(was + i, is + i, element) == 0,
                      "%s: %s[%lld, %lld] is %g in one run and %g in the next", what, g->name,
                      (long long)r, (long long)c, test_load(was + i, g->view.dtype),
                      test_load(is + i, g->view.dtype));
        }
    }
}

void guarded_check(const guarded *g, const ref_tensor *expected, bool exact, const char *what)
{
    guarded_check_unit(g, expected, exact, test_unit(g->view.dtype), what);
}

static void check_within(const guarded *g, int64_t r, int64_t c, double value, double bound,
                         const char *what)
{
    const double got = guarded_get(g, r, c);
    if (isnan(value)) {
        cr_assert(isnan(got), "%s: %s[%lld, %lld] is %.9g, expected NaN", what, g->name,
                  (long long)r, (long long)c, got);
        return;
    }
    if (got == value) return; // roundings keep the order of numbers
    const double low = test_round(value - bound, g->view.dtype);
    const double high = test_round(value + bound, g->view.dtype);
    // The comparison is false for NaN, which must fail here.
    const bool inside = low <= got && got <= high;
    if (!inside)
        cr_assert_fail("%s: %s[%lld, %lld] is %.9g, expected %.9g to %.9g (value %.17g)", what,
                       g->name, (long long)r, (long long)c, got, low, high, value);
}

static void check_shape(const guarded *g, const ref_tensor *expected, const char *what)
{
    cr_assert(expected->rows == g->view.rows && expected->cols == g->view.cols,
              "%s: the reference of %s has another shape", what, g->name);
}

void guarded_check_unit(const guarded *g, const ref_tensor *expected, bool exact, double u,
                        const char *what)
{
    check_shape(g, expected, what);
    for (int64_t i = 0; i < expected->rows * expected->cols; ++i) {
        const double k = expected->roundings[i];
        const bool is_f64 = g->view.dtype == SPOPS_DTYPE_F64;
        const double value =
            exact && !is_f64 ? (double)(float)expected->value[i] : expected->value[i];
        const double least = is_f64 ? 0x1p-1074 : 0x1p-149;
        const double bound = !exact && isfinite(value)
                                 ? k * u / (1.0 - k * u) * expected->scale[i] + k * least
                                 : 0.0;
        check_within(g, i / expected->cols, i % expected->cols, value, bound, what);
    }
}

void guarded_check_bounds(const guarded *g, const ref_tensor *expected, const double *bounds,
                          const char *what)
{
    check_shape(g, expected, what);
    for (int64_t i = 0; i < expected->rows * expected->cols; ++i) {
        const double value = expected->value[i];
        check_within(g, i / expected->cols, i % expected->cols, value,
                     isfinite(value) ? bounds[i] : 0.0, what);
    }
}

void guarded_check_same(const guarded *g, const ref_tensor *expected, const char *what)
{
    check_shape(g, expected, what);
    for (int64_t i = 0; i < expected->rows * expected->cols; ++i) {
        const int64_t r = i / expected->cols, c = i % expected->cols;
        const double value = expected->value[i], got = guarded_get(g, r, c);
        const bool same =
            isnan(value) ? isnan(got) : got == value && !signbit(got) == !signbit(value);
        if (!same)
            cr_assert_fail("%s: %s[%lld, %lld] is %.9g, expected %.9g", what, g->name, (long long)r,
                           (long long)c, got, value);
    }
}

void guarded_check_i32(const guarded *g, const int32_t *expected, const char *what)
{
    for (int64_t r = 0; r < g->view.rows; ++r) {
        for (int64_t c = 0; c < g->view.cols; ++c) {
            int32_t got;
            memcpy(&got, g->host + offset_of(g, r, c), sizeof got);
            cr_assert(got == expected[r * g->view.cols + c],
                      "%s: %s[%lld, %lld] is %d, expected %d", what, g->name, (long long)r,
                      (long long)c, got, expected[r * g->view.cols + c]);
        }
    }
}
