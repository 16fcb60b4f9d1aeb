// SPDX-License-Identifier: Apache-2.0
// Blocks of rows times blocks of matrices, in registers.
#include "core/simd_vec.h"

#include "mvmr/mvmr_isa.h"

#define PANEL SPOPS_MVMR_PANEL
#define DEPTH SPOPS_MVMR_DEPTH
#define LANES SPOPS_SIMD_LANES

// Rows that share a pass over a block of a matrix: with two vectors of sums each, two of the matrix
// and one of a row they fill the registers.
#if defined(__AVX512F__)
#define MAX_ROWS 12
#elif defined(__AVX2__)
#define MAX_ROWS 6
#else
#define MAX_ROWS 4
#endif

// ---- Products -----------------------------------------------------------------------------------

// What a block fetches: line of rows[i], for each i.
typedef struct fetched {
    const char *const *rows;
    int64_t line; // in bytes
} fetched;

static const char no_line[64];
static const char *const no_rows[SPOPS_AHEAD_PART] = {[0 ... SPOPS_AHEAD_PART - 1] = no_line};

SPOPS_INLINE fetched next_lines(spops_ahead *ahead)
{
    if (ahead == NULL || ahead->part == ahead->num_parts) return (fetched){no_rows, 0};
    const fetched f = {ahead->rows[ahead->part], (int64_t)ahead->line * 64};
    if (++ahead->line == ahead->lines[ahead->part]) {
        ++ahead->part;
        ahead->line = 0;
    }
    return f;
}

// num_rows rows and num_vecs vectors of columns; both are constants where this is inlined. The sums of
// row r are row to[r] of sums; to NULL: row r.
SPOPS_INLINE void multiply_step(int num_rows, int num_vecs, const float *a, int64_t row_step,
                                const float *w, vec sum[][2])
{
    vec b[2];
    UNROLL for (int v = 0; v < num_vecs; ++v) b[v] = load_vec(w + v * LANES);
    UNROLL for (int r = 0; r < num_rows; ++r)
    {
        const vec x = all_lanes(a[r * row_step]);
        UNROLL for (int v = 0; v < num_vecs; ++v) sum[r][v] = add_product(sum[r][v], x, b[v]);
    }
}

SPOPS_INLINE void multiply_block(int num_rows, int num_vecs, const float *a, int64_t row_step,
                                 int64_t depth_step, int64_t depth, const float *w,
                                 const int32_t *to, float *sums, int64_t sums_step, fetched f)
{
    vec sum[MAX_ROWS][2];
    int64_t d = 0;

    UNROLL for (int r = 0; r < num_rows; ++r) UNROLL for (int v = 0; v < num_vecs; ++v) sum[r][v] =
        (vec){0.0f};
    (void)f;
#if MAX_ROWS > 4 // two steps at once take more registers than the baseline has
    for (; d + 2 <= depth; d += 2) {
        // Blocks of one vector wait for loads as it is.
        if (num_vecs == 2) __builtin_prefetch(f.rows[d / 2] + f.line, 0, 2);
        multiply_step(num_rows, num_vecs, a + d * depth_step, row_step, w + d * PANEL, sum);
        multiply_step(num_rows, num_vecs, a + (d + 1) * depth_step, row_step, w + (d + 1) * PANEL,
                      sum);
    }
#endif
    for (; d < depth; ++d)
        multiply_step(num_rows, num_vecs, a + d * depth_step, row_step, w + d * PANEL, sum);
    UNROLL for (int r = 0; r < num_rows; ++r) // in order: rows may share their sums
    {
        float *place = sums + (to != NULL ? to[r] : r) * sums_step;
        UNROLL for (int v = 0; v < num_vecs; ++v)
            store_vec(place + v * LANES, load_vec(place + v * LANES) + sum[r][v]);
    }
}

// Rows in blocks, the last two of nearly equal size: a row alone takes as long as four, which is what a
// fused step waits for the one before it.
SPOPS_INLINE void multiply_rows(int num_vecs, const float *a, int64_t row_step, int64_t depth_step,
                                int64_t num_rows, int64_t depth, const float *w, const int32_t *to,
                                float *sums, int64_t sums_step, spops_ahead *ahead)
{
    for (int64_t r = 0, n; r < num_rows; r += n) {
        const int64_t left = num_rows - r;
        n = left >= 2 * MAX_ROWS ? MAX_ROWS : left > MAX_ROWS ? (left + 1) / 2 : left;
        const float *const from = a + r * row_step;
        const int32_t *const rows = to != NULL ? to + r : NULL;
        float *const place = to != NULL ? sums : sums + r * sums_step;
        const fetched f = next_lines(ahead);
        switch (n) {
#define ROWS(n)                                                                                    \
    case n:                                                                                        \
        if ((n) <= MAX_ROWS)                                                                       \
            multiply_block((n) <= MAX_ROWS ? (n) : 1, num_vecs, from, row_step, depth_step, depth, \
                           w, rows, place, sums_step, f);                                          \
        break;
            ROWS(1)
            ROWS(2)
            ROWS(3)
            ROWS(4)
            ROWS(5)
            ROWS(6)
            ROWS(7)
            ROWS(8)
            ROWS(9)
            ROWS(10)
            ROWS(11)
            ROWS(12)
#undef ROWS
        default: break;
        }
    }
}

SPOPS_INLINE void multiply_any(const float *a, int64_t row_step, int64_t depth_step,
                               int64_t num_rows, int64_t depth, const float *w, int64_t cols,
                               const int32_t *to, float *sums, int64_t sums_step,
                               spops_ahead *ahead)
{
    int64_t c = 0;
    for (; c + LANES < cols; c += 2 * LANES)
        multiply_rows(2, a, row_step, depth_step, num_rows, depth, w + c, to, sums + c, sums_step,
                      ahead);
    if (c < cols)
        multiply_rows(1, a, row_step, depth_step, num_rows, depth, w + c, to, sums + c, sums_step,
                      ahead);
}

static void multiply(const float *a, int64_t num_rows, int64_t depth, const float *w, int64_t cols,
                     const int32_t *to, float *sums, int64_t sums_step, spops_ahead *ahead)
{
    multiply_any(a, DEPTH, 1, num_rows, depth, w, cols, to, sums, sums_step, ahead);
}

static void multiply_columns(const float *a, int64_t num_rows, int64_t depth, const float *w,
                             int64_t cols, float *sums, int64_t sums_step, spops_ahead *ahead)
{
    multiply_any(a, 1, SPOPS_VVOR_ROWS, num_rows, depth, w, cols, NULL, sums, sums_step, ahead);
}

static void multiply_diagonal(const float *a, int64_t num_rows, const float *w, int64_t cols,
                              const int32_t *to, float *sums, int64_t sums_step)
{
    for (int64_t r = 0; r < num_rows; ++r) {
        float *place = sums + to[r] * sums_step;
        for (int64_t c = 0; c < cols; c += LANES)
            store_vec(place + c, add_product(load_vec(place + c), load_vec(a + r * DEPTH + c),
                                             load_vec(w + c)));
    }
}

static void multiply_elements(const float *a, const float *b, int64_t depth, int64_t cols,
                              float *sums)
{
    for (int64_t d = 0; d < depth; ++d)
        for (int64_t c = 0; c < cols; c += LANES)
            store_vec(sums + c, add_product(load_vec(sums + c), load_vec(a + d * PANEL + c),
                                            load_vec(b + d * PANEL + c)));
}

static float dot(const float *a, const float *b, int64_t cols)
{
    // As many partial sums on every instruction set.
    enum { PARTS = 8 };
    float parts[PARTS] = {0.0f}, sum = 0.0f;
    for (int64_t c = 0; c < cols; ++c)
        parts[c % PARTS] = spops_multiply_add(a[c], b[c], parts[c % PARTS]);
    for (int i = 0; i < PARTS; ++i)
        sum += parts[i];
    return sum;
}

// ---- Loads and stores ---------------------------------------------------------------------------

SPOPS_INLINE void load_4_vecs(int dtype, const char *src, float *dst)
{
    vec v[4];
    if (dtype == SPOPS_DTYPE_F32) {
        UNROLL for (int i = 0; i < 4; ++i) v[i] =
            load_vec((const float *)(const void *)src + i * LANES);
        UNROLL for (int i = 0; i < 4; ++i) store_vec(dst + i * LANES, v[i]);
    } else {
        spops_load_lanes(dtype, 4 * LANES, src, dst);
    }
}

// As spops_load_row, of rows that are wide.
SPOPS_INLINE void load_wide_row(int dtype, const char *src, int64_t n, float *dst)
{
    const size_t bytes = spops_element_bytes(dtype);
    int64_t c = 0;
    for (; c + 4 * LANES <= n; c += 4 * LANES) // all loads before the stores, which may alias
        load_4_vecs(dtype, src + (size_t)c * bytes, dst + c);
    spops_load_row(dtype, src + (size_t)c * bytes, n - c, dst + c);
}

// Columns of a row to blocks of `width` columns, [DEPTH][width] each.
SPOPS_INLINE void load_blocks(int dtype, const char *src, int64_t cols, float *dst, int64_t width)
{
    const size_t bytes = spops_element_bytes(dtype);
    for (; cols > width; cols -= width) {
        if (width == PANEL) // the same with a width that the compiler knows
            spops_load_row(dtype, src, PANEL, dst);
        else
            load_wide_row(dtype, src, width, dst);
        src += (size_t)width * bytes;
        dst += width * DEPTH;
    }
    load_wide_row(dtype, src, cols, dst);
}

SPOPS_INLINE void scale_row(float *row, int64_t cols, int64_t width, float scale)
{
    for (; cols > 0; cols -= width, row += width * DEPTH) {
        const int64_t n = cols < width ? cols : width;
#pragma omp simd
        for (int64_t c = 0; c < n; ++c)
            row[c] *= scale;
    }
}

SPOPS_INLINE void load_rows_of(int dtype, spops_matrix x, const int32_t *rows, int64_t n,
                               int64_t col, int64_t cols, const float *scale, float *dst,
                               int64_t width)
{
    if (cols == PANEL) // in one block, and loops as short as they can be
        for (int64_t r = 0; r < n; ++r)
            spops_load_row(dtype, spops_element(dtype, x, rows[r], col), PANEL, dst + r * width);
    else if (cols < PANEL)
        for (int64_t r = 0; r < n; ++r)
            spops_load_row(dtype, spops_element(dtype, x, rows[r], col), cols, dst + r * width);
    else
        for (int64_t r = 0; r < n; ++r)
            load_blocks(dtype, spops_element(dtype, x, rows[r], col), cols, dst + r * width, width);
    for (int64_t r = 0; r < n && scale != NULL; ++r)
        scale_row(dst + r * width, cols, width, scale[r]);
}

static void load_rows(spops_matrix x, const int32_t *rows, int64_t n, int64_t col, int64_t cols,
                      const float *scale, float *dst, int64_t width)
{
    switch (x.dtype) {
#define LOAD_ROWS(NAME, name, bits, c_type, device_type)                                           \
    case SPOPS_DTYPE_##NAME:                                                                       \
        load_rows_of(SPOPS_DTYPE_##NAME, x, rows, n, col, cols, scale, dst, width);                \
        break;
#define SPOPS_DTYPE_FLOAT  LOAD_ROWS
#define SPOPS_DTYPE_FLOAT8 LOAD_ROWS
#include "core/dtypes.def"
#undef LOAD_ROWS
    default: break;
    }
}

SPOPS_INLINE void load_plain(int dtype, spops_matrix w, int64_t row, int64_t col, int64_t depth,
                             int64_t cols, float *dst)
{
    float *last = cols % PANEL > 0 ? dst + cols / PANEL * PANEL * DEPTH : NULL; // is not full
    for (int64_t d = 0; d < depth; ++d) {
        if (last != NULL)
            for (int v = 0; v < PANEL; v += LANES)
                store_vec(last + d * PANEL + v, (vec){0.0f});
        if (cols <= PANEL)
            spops_load_row(dtype, spops_element(dtype, w, row + d, col), cols, dst + d * PANEL);
        else
            load_blocks(dtype, spops_element(dtype, w, row + d, col), cols, dst + d * PANEL, PANEL);
    }
}

// 4 numbers from each of LANES / 4 addresses, DEPTH * 4 apart where they are lines of a block.
SPOPS_INLINE vec load_quarters(const float *const *lines, int64_t at)
{
#if defined(__AVX512F__)
    __m512 v = _mm512_castps128_ps512(_mm_loadu_ps(lines[0] + at));
    v = _mm512_insertf32x4(v, _mm_loadu_ps(lines[4] + at), 1);
    v = _mm512_insertf32x4(v, _mm_loadu_ps(lines[8] + at), 2);
    return (vec)_mm512_insertf32x4(v, _mm_loadu_ps(lines[12] + at), 3);
#elif defined(__AVX2__)
    const __m256 v = _mm256_castps128_ps256(_mm_loadu_ps(lines[0] + at));
    return (vec)_mm256_insertf128_ps(v, _mm_loadu_ps(lines[4] + at), 1);
#else
    return load_vec(lines[0] + at);
#endif
}

// The same shuffle of four numbers of a (0 to 3) and b (4 to 7) in every quarter q of a vector.
#define OF_QUARTER(i, q) ((i) < 4 ? (i) + 4 * (q) : (i) + LANES - 4 + 4 * (q))
#define QUARTER(i, j, k, l, q)                                                                     \
    OF_QUARTER(i, q), OF_QUARTER(j, q), OF_QUARTER(k, q), OF_QUARTER(l, q)
#if LANES == 16
#define IN_QUARTERS(a, b, i, j, k, l)                                                              \
    __builtin_shufflevector(a, b, QUARTER(i, j, k, l, 0), QUARTER(i, j, k, l, 1),                  \
                            QUARTER(i, j, k, l, 2), QUARTER(i, j, k, l, 3))
#elif LANES == 8
#define IN_QUARTERS(a, b, i, j, k, l)                                                              \
    __builtin_shufflevector(a, b, QUARTER(i, j, k, l, 0), QUARTER(i, j, k, l, 1))
#else
#define IN_QUARTERS(a, b, i, j, k, l) __builtin_shufflevector(a, b, QUARTER(i, j, k, l, 0))
#endif

// dst[i] = numbers at + i of LANES lines, for 4 numbers i.
SPOPS_INLINE void turn_4(const float *const *lines, int64_t at, float *dst)
{
    vec r[4], t[4];
    UNROLL for (int i = 0; i < 4; ++i) r[i] = load_quarters(lines + i, at);
    UNROLL for (int i = 0; i < 2; ++i)
    {
        t[i] = IN_QUARTERS(r[2 * i], r[2 * i + 1], 0, 4, 1, 5);
        t[i + 2] = IN_QUARTERS(r[2 * i], r[2 * i + 1], 2, 6, 3, 7);
    }
    UNROLL for (int i = 0; i < 2; ++i)
    {
        store_vec(dst + 2 * i * PANEL, IN_QUARTERS(t[2 * i], t[2 * i + 1], 0, 1, 4, 5));
        store_vec(dst + (2 * i + 1) * PANEL, IN_QUARTERS(t[2 * i], t[2 * i + 1], 2, 3, 6, 7));
    }
}

SPOPS_INLINE void load_transposed(int dtype, spops_matrix w, int64_t row, int64_t col,
                                  int64_t depth, int64_t cols, float *dst)
{
    static const float zeros[DEPTH];
    _Alignas(64) float loaded[LANES * DEPTH];
    const int64_t whole = (cols + PANEL - 1) / PANEL * PANEL;
    const float *lines[LANES];

    for (int64_t c = 0; c < whole; c += LANES) {
        float *to = dst + c / PANEL * PANEL * DEPTH + c % PANEL;
        for (int64_t i = 0; i < LANES; ++i) {
            const char *src;
            lines[i] = zeros;
            if (c + i >= cols) continue;
            src = spops_element(dtype, w, col + c + i, row);
            lines[i] = loaded + i * DEPTH;
            if (dtype == SPOPS_DTYPE_F32)
                lines[i] = (const float *)(const void *)src;
            else
                spops_load_row(dtype, src, depth, loaded + i * DEPTH);
        }
        int64_t d = 0;
        for (; d + 4 <= depth; d += 4)
            turn_4(lines, d, to + d * PANEL);
        for (; d < depth; ++d)
            for (int64_t i = 0; i < LANES; ++i)
                to[d * PANEL + i] = lines[i][d];
    }
}

static void load_matrix(spops_matrix w, int64_t row, int64_t col, int64_t depth, int64_t cols,
                        bool transposed, float *dst)
{
    switch (w.dtype) {
#define SPOPS_DTYPE_FLOAT(NAME, name, bits, c_type, device_type)                                   \
    case SPOPS_DTYPE_##NAME:                                                                       \
        if (transposed)                                                                            \
            load_transposed(SPOPS_DTYPE_##NAME, w, row, col, depth, cols, dst);                    \
        else                                                                                       \
            load_plain(SPOPS_DTYPE_##NAME, w, row, col, depth, cols, dst);                         \
        break;
#include "core/dtypes.def"
    default: break;
    }
}

SPOPS_INLINE void store_row_of(int dtype, spops_matrix m, int64_t row, int64_t col, int64_t cols,
                               bool accumulate, const float *src)
{
    char *dst = (char *)m.data + (spops_element(dtype, m, row, col) - (const char *)m.data);
    const size_t bytes = spops_element_bytes(dtype);
    float v[LANES];
    int64_t c = 0;
    for (; c + LANES <= cols; c += LANES) {
        char *place = dst + (size_t)c * bytes;
        if (dtype == SPOPS_DTYPE_F32) {
            float *const out = (float *)(void *)place;
            const vec sum = load_vec(src + c);
            store_vec(out, accumulate ? sum + load_vec(out) : sum);
            continue;
        }
        memcpy(v, src + c, sizeof v);
        if (accumulate) {
            float old[LANES];
            spops_load_lanes(dtype, LANES, place, old);
            for (int i = 0; i < LANES; ++i)
                v[i] += old[i];
        }
        spops_store_lanes(dtype, LANES, v, place);
    }
    for (; c < cols; ++c) {
        char *place = dst + (size_t)c * bytes;
        spops_store_1(dtype, accumulate ? spops_load_1(dtype, place) + src[c] : src[c], place);
    }
}

static void store_row(spops_matrix m, int64_t row, int64_t col, int64_t cols, bool accumulate,
                      const float *src)
{
    switch (m.dtype) {
#define SPOPS_DTYPE_FLOAT(NAME, name, bits, c_type, device_type)                                   \
    case SPOPS_DTYPE_##NAME:                                                                       \
        store_row_of(SPOPS_DTYPE_##NAME, m, row, col, cols, accumulate, src);                      \
        break;
#include "core/dtypes.def"
    default: break;
    }
}

const spops_mvmr_table SPOPS_ISA_TABLE(spops_mvmr_table) = {
    .load_rows = load_rows,
    .load_matrix = load_matrix,
    .store_row = store_row,
    .multiply = multiply,
    .multiply_columns = multiply_columns,
    .multiply_diagonal = multiply_diagonal,
    .multiply_elements = multiply_elements,
    .dot = dot,
};
