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

// Bytes from the first to the end of the last element of a matrix that is not empty; INT64_MAX or more
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

// An argument in bytes: `rows` rows, `stride` apart, of `blocks` blocks of block_bytes, `step` apart.
typedef struct strided_bytes {
    uintptr_t begin, end; // of all together
    int64_t rows, stride;
    int64_t blocks, step, block_bytes;
    int64_t row_bytes; // from a row's first block to after its last
} strided_bytes;

static strided_bytes bytes_of(const spops_argument *a)
{
    const int64_t blocks = a->num_blocks > 1 ? a->num_blocks : 1;
    const int64_t cols = a->m.cols / blocks;
    strided_bytes s = {0};

    if (a->m.data == NULL || a->m.rows <= 0 || cols <= 0) return s; // of any stride
    s.rows = a->m.rows;
    s.stride = spops_elements_bytes(a->m.dtype, spops_row_step(a->m));
    s.blocks = 1;
    s.block_bytes = spops_elements_bytes(a->m.dtype, a->m.cols);
    if (blocks > 1 && a->block_stride > cols) {
        s.blocks = blocks;
        s.step = spops_elements_bytes(a->m.dtype, a->block_stride);
        s.block_bytes = spops_elements_bytes(a->m.dtype, cols);
    }
    s.row_bytes = (s.blocks - 1) * s.step + s.block_bytes;
    s.begin = (uintptr_t)a->m.data;
    s.end = s.begin + (uintptr_t)((s.rows - 1) * s.stride + s.row_bytes);
    return s;
}

static int64_t divide_down(int64_t a, int64_t b)
{
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

// The k of low to high for which what begins at d + k * step and has b bytes meets the a bytes from
// 0 on: from *first to *last, where first > last says that there is none.
static void meeting_steps(int64_t d, int64_t step, int64_t a, int64_t b, int64_t low, int64_t high,
                          int64_t *first, int64_t *last)
{
    *first = 0, *last = -1;
    if (step == 0) {
        if (d < a && d + b > 0) *last = 0;
        return;
    }
    *first = divide_down(-b - d, step) + 1; // d + k * step > -b
    *last = divide_down(a - 1 - d, step);   // d + k * step < a
    if (*first < low) *first = low;
    if (*last > high) *last = high;
}

// Whether a row of a and one of b that begins d bytes after it share a byte.
static bool rows_meet(const strided_bytes *a, const strided_bytes *b, int64_t d)
{
    int64_t first, last;

    if (a->blocks > 1 && b->blocks > 1 && a->step != b->step) {
        strided_bytes one = *a;
        one.blocks = 1;
        for (int64_t i = 0; i < a->blocks; ++i)
            if (rows_meet(&one, b, d - i * a->step)) return true;
        return false;
    }
    meeting_steps(d, a->blocks > 1 ? a->step : b->step, a->block_bytes, b->block_bytes,
                  1 - a->blocks, b->blocks - 1, &first, &last);
    return first <= last;
}

static bool share_bytes(const strided_bytes *a, const strided_bytes *b)
{
    const int64_t stride = a->rows > 1 ? a->stride : b->stride;
    int64_t d, first, last;

    if (a->begin == a->end || b->begin == b->end) return false;
    if (a->end <= b->begin || b->end <= a->begin) return false;
    if (a->rows > 1 && b->rows > 1 && a->stride != b->stride) return true;
    // Rows r of a and s of b meet where those of the same number do with b moved by s - r rows: rows
    // end before the next begin, so that few such moves bring them near each other, but where one
    // side is a single row, longer than the other's are apart.
    d = (int64_t)(b->begin - a->begin); // negative in two's complement
    meeting_steps(d, stride, a->row_bytes, b->row_bytes, 1 - a->rows, b->rows - 1, &first, &last);
    if (first > last || (a->blocks == 1 && b->blocks == 1)) return first <= last;
    if (last - first > 3) {
        const strided_bytes *single = a->rows == 1 ? a : b;
        if (single->block_bytes >= stride) return true; // as long as any gap
    }
    for (int64_t k = first; k <= last; ++k)
        if (rows_meet(a, b, d + k * stride)) return true;
    return false;
}

bool spops_arguments_overlap(const spops_argument *a, const spops_argument *b)
{
    const strided_bytes sa = bytes_of(a), sb = bytes_of(b);
    return share_bytes(&sa, &sb);
}

static spops_status check_pair(spops_context *ctx, const char *call, const spops_argument *out,
                               const spops_argument *other)
{
    SPOPS_REQUIRE(ctx, !spops_arguments_overlap(out, other),
                  "%s: %s overlaps %s, expected separate memory", call, out->name, other->name);
    return SPOPS_STATUS_OK;
}

spops_status spops_check_apart(spops_context *ctx, const char *call, const spops_argument *outs,
                               int num_outs, const spops_argument *ins, int num_ins)
{
    for (int i = 0; i < num_outs; ++i) {
        for (int j = 0; j < i; ++j)
            SPOPS_TRY(check_pair(ctx, call, &outs[i], &outs[j]));
        for (int j = 0; j < num_ins; ++j)
            SPOPS_TRY(check_pair(ctx, call, &outs[i], &ins[j]));
    }
    return SPOPS_STATUS_OK;
}

spops_status spops_check_no_overlap(spops_context *ctx, const char *call, const char *out_name,
                                    spops_matrix out, const char *in_name, spops_matrix in)
{
    const spops_argument o = spops_plain_argument(out_name, out);
    const spops_argument i = spops_plain_argument(in_name, in);
    return check_pair(ctx, call, &o, &i);
}
