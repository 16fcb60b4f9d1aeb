// SPDX-License-Identifier: Apache-2.0
// Checks of matrix arguments.
#include "core/matrix.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

// "f32 f16 bf16" for the dtypes of a mask.
static void list_dtypes(unsigned dtypes, char *text, size_t text_bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < SPOPS_NUM_DTYPES; ++i) {
        if ((dtypes & 1u << i) == 0) continue;
        const int n = snprintf(text + used, text_bytes - used, "%s%s", used > 0 ? " " : "",
                               spops_dtype_name((spops_dtype)i));
        if (n < 0 || (size_t)n >= text_bytes - used) return;
        used += (size_t)n;
    }
}

// Which dtypes exist in name only, so far.
static bool is_later_dtype(spops_dtype dtype)
{
    return dtype == SPOPS_DTYPE_I8 || dtype == SPOPS_DTYPE_I64;
}

// Bytes from the first to behind the last element of a matrix that is not empty; INT64_MAX or more
// (as true) when that overflows.
static bool span_overflows(spops_matrix m, int64_t *bytes)
{
    int64_t elements = 0;
    if (m.rows > 1 && __builtin_mul_overflow(m.rows - 1, m.row_stride, &elements)) return true;
    if (__builtin_add_overflow(elements, m.cols, &elements)) return true;
    if (spops_dtype_is_packed(m.dtype)) {
        *bytes = elements / 2;
        return false;
    }
    return __builtin_mul_overflow(elements, (int64_t)spops_dtype_bytes(m.dtype), bytes);
}

spops_status spops_check_dtype(spops_context *ctx, const char *call, const char *what,
                               spops_dtype found, unsigned dtypes)
{
    char expected[80];

    if (spops_dtype_in(found, dtypes)) return SPOPS_STATUS_OK;
    list_dtypes(dtypes, expected, sizeof expected);
    if ((unsigned)found >= SPOPS_NUM_DTYPES)
        return spops_fail(ctx, SPOPS_STATUS_INVALID_ARGUMENT,
                          "%s: %s is %u, which is no dtype, expected %s", call, what,
                          (unsigned)found, expected);
    return spops_fail(
        ctx, is_later_dtype(found) ? SPOPS_STATUS_NOT_SUPPORTED : SPOPS_STATUS_INVALID_ARGUMENT,
        "%s: %s is %s, expected %s", call, what, spops_dtype_name(found), expected);
}

spops_status spops_check_matrix(spops_context *ctx, const char *call, const char *name,
                                spops_matrix m, int64_t rows, int64_t cols, unsigned dtypes)
{
    size_t alignment;
    int64_t bytes = 0;

    if (!spops_dtype_in(m.dtype, dtypes)) {
        char what[80];
        snprintf(what, sizeof what, "%s.dtype", name);
        return spops_check_dtype(ctx, call, what, m.dtype, dtypes);
    }
    SPOPS_REQUIRE(ctx, m.rows >= 0 && m.cols >= 0,
                  "%s: %s is [%" PRId64 ", %" PRId64 "], expected sizes of at least 0", call, name,
                  m.rows, m.cols);
    SPOPS_REQUIRE(ctx, m.rows == rows && m.cols == cols,
                  "%s: %s is [%" PRId64 ", %" PRId64 "], expected [%" PRId64 ", %" PRId64 "]", call,
                  name, m.rows, m.cols, rows, cols);
    SPOPS_REQUIRE(ctx, m.rows <= 1 || m.row_stride >= m.cols,
                  "%s: %s.row_stride is %" PRId64 ", less than its %" PRId64 " columns", call, name,
                  m.row_stride, m.cols);
    SPOPS_REQUIRE(ctx,
                  !spops_dtype_is_packed(m.dtype) ||
                      (m.cols % 2 == 0 && (m.rows <= 1 || m.row_stride % 2 == 0)),
                  "%s: %s has %" PRId64 " columns and row_stride %" PRId64
                  ", expected even numbers for %s",
                  call, name, m.cols, m.row_stride, spops_dtype_name(m.dtype));
    if (m.rows == 0 || m.cols == 0) return SPOPS_STATUS_OK;
    SPOPS_REQUIRE(ctx, m.data != NULL,
                  "%s: %s.data is NULL, expected memory for [%" PRId64 ", %" PRId64 "]", call, name,
                  m.rows, m.cols);
    alignment = spops_dtype_is_packed(m.dtype) ? 1 : spops_dtype_bytes(m.dtype);
    SPOPS_REQUIRE(ctx, (uintptr_t)m.data % alignment == 0,
                  "%s: %s.data is %p, expected a multiple of %zu for %s", call, name, m.data,
                  alignment, spops_dtype_name(m.dtype));
    SPOPS_REQUIRE(ctx,
                  !span_overflows(m, &bytes) && (uint64_t)bytes <= UINTPTR_MAX - (uintptr_t)m.data,
                  "%s: %s is [%" PRId64 ", %" PRId64 "] with row_stride %" PRId64
                  ", more bytes than the address space holds",
                  call, name, m.rows, m.cols, m.row_stride);
    return SPOPS_STATUS_OK;
}

size_t spops_matrix_bytes(spops_matrix m)
{
    int64_t bytes;
    if (m.rows <= 0 || m.cols <= 0) return 0;
    return span_overflows(m, &bytes) || bytes < 0 ? SIZE_MAX : (size_t)bytes;
}

// The rows of a matrix as equally spaced byte ranges.
typedef struct row_ranges {
    uintptr_t begin, end; // of all rows together
    uintptr_t row_bytes;
    uintptr_t stride_bytes; // 0: a single row
} row_ranges;

static row_ranges ranges_of(spops_matrix m)
{
    row_ranges r = {0, 0, 0, 0};
    if (m.rows <= 0 || m.cols <= 0) return r; // of any stride
    r.begin = (uintptr_t)m.data;
    r.end = r.begin + spops_matrix_bytes(m);
    r.row_bytes = (uintptr_t)spops_elements_bytes(m.dtype, m.cols);
    r.stride_bytes = m.rows > 1 ? (uintptr_t)spops_elements_bytes(m.dtype, m.row_stride) : 0;
    return r;
}

// Exact when the strides agree or one side is a single row, so that neighbouring column blocks of
// one buffer may be passed; else ranges that meet count as sharing.
static bool share_bytes(spops_matrix a, spops_matrix b)
{
    const row_ranges ra = ranges_of(a), rb = ranges_of(b);
    uintptr_t stride, shift;

    if (ra.begin == ra.end || rb.begin == rb.end) return false;
    if (ra.end <= rb.begin || rb.end <= ra.begin) return false;
    if (ra.stride_bytes != 0 && rb.stride_bytes != 0 && ra.stride_bytes != rb.stride_bytes) {
        return true;
    }
    stride = ra.stride_bytes != 0 ? ra.stride_bytes : rb.stride_bytes;
    if (stride == 0) return true; // two single rows that meet
    // Where b's rows begin, counted from the start of a's row before: a covers [0, ra.row_bytes).
    shift = rb.begin >= ra.begin ? (rb.begin - ra.begin) % stride
                                 : (stride - (ra.begin - rb.begin) % stride) % stride;
    return shift < ra.row_bytes || shift + rb.row_bytes > stride;
}

spops_status spops_check_no_overlap(spops_context *ctx, const char *call, const char *out_name,
                                    spops_matrix out, const char *in_name, spops_matrix in)
{
    SPOPS_REQUIRE(ctx, !share_bytes(out, in), "%s: %s overlaps %s, expected separate memory", call,
                  out_name, in_name);
    return SPOPS_STATUS_OK;
}
