// SPDX-License-Identifier: Apache-2.0
// Blocks of rows times blocks of matrices, in registers.
#include "core/simd_rows.h"

#include "mvmr/mvmr_isa.h"

#define PANEL SPOPS_MVMR_PANEL
#define DEPTH SPOPS_MVMR_DEPTH
#define LANES SPOPS_SIMD_LANES

#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

// Rows that share a pass over a block of a matrix: with two vectors of sums each, two of the matrix
// and one of a row they fill the registers.
#if defined(__AVX512F__)
#define MAX_ROWS 12
#elif defined(__AVX2__)
#define MAX_ROWS 6
#else
#define MAX_ROWS 4
#endif

typedef float vec __attribute__((vector_size(4 * LANES)));

SPOPS_INLINE vec load_vec(const float *p)
{
    vec v;
    memcpy(&v, p, sizeof v);
    return v;
}

SPOPS_INLINE void store_vec(float *p, vec v)
{
    memcpy(p, &v, sizeof v);
}

// sum + a * b, rounded once where the processor can: said, as compilers that may fuse the two do so in
// some of the unrolled forms below and not in others, so that the bits of a row would depend on how
// many rows share its block.
SPOPS_INLINE vec add_product(vec sum, vec a, vec b)
{
#if defined(__AVX512F__)
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#elif defined(__AVX2__) && defined(__FMA__)
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#elif defined(__aarch64__)
    return (vec)vfmaq_f32((float32x4_t)sum, (float32x4_t)a, (float32x4_t)b);
#else
    return sum + a * b;
#endif
}

// x in every lane.
SPOPS_INLINE vec all_lanes(float x)
{
#if defined(__AVX512F__)
    return (vec)_mm512_set1_ps(x);
#elif defined(__AVX2__)
    return (vec)_mm256_set1_ps(x);
#else
    return (vec){x, x, x, x};
#endif
}

// ---- Products -----------------------------------------------------------------------------------

// num_rows rows and num_vecs vectors of columns; both are constants where this is inlined.
SPOPS_INLINE void multiply_block(int num_rows, int num_vecs, const float *a, int64_t row_step,
                                 int64_t depth_step, int64_t depth, const float *w,
                                 const int32_t *to, float *sums)
{
    vec sum[MAX_ROWS][2];

    UNROLL for (int r = 0; r < num_rows; ++r) UNROLL for (int v = 0; v < num_vecs; ++v) sum[r][v] =
        (vec){0.0f};
    for (int64_t d = 0; d < depth; ++d) {
        vec b[2];
        UNROLL for (int v = 0; v < num_vecs; ++v) b[v] = load_vec(w + d * PANEL + v * LANES);
        UNROLL for (int r = 0; r < num_rows; ++r) UNROLL for (int v = 0; v < num_vecs; ++v)
            sum[r][v] = add_product(sum[r][v], all_lanes(a[r * row_step + d * depth_step]), b[v]);
    }
    UNROLL for (int r = 0; r < num_rows; ++r) // in order: rows may share their sums
        UNROLL for (int v = 0; v < num_vecs; ++v)
    {
        float *place = sums + (int64_t)to[r] * PANEL + v * LANES;
        store_vec(place, load_vec(place) + sum[r][v]);
    }
}

SPOPS_INLINE void multiply_rows(int num_vecs, const float *a, int64_t row_step, int64_t depth_step,
                                int64_t num_rows, int64_t depth, const float *w, const int32_t *to,
                                float *sums)
{
    int64_t r = 0;
    for (; r + MAX_ROWS <= num_rows; r += MAX_ROWS)
        multiply_block(MAX_ROWS, num_vecs, a + r * row_step, row_step, depth_step, depth, w, to + r,
                       sums);
#define REST(n)                                                                                    \
    if (n < MAX_ROWS && r + n <= num_rows) {                                                       \
        multiply_block(n, num_vecs, a + r * row_step, row_step, depth_step, depth, w, to + r,      \
                       sums);                                                                      \
        r += n;                                                                                    \
    }
    REST(8)
    REST(4)
    REST(2)
    REST(1)
#undef REST
}

SPOPS_INLINE void multiply_any(const float *a, int64_t row_step, int64_t depth_step,
                               int64_t num_rows, int64_t depth, const float *w, int64_t cols,
                               const int32_t *to, float *sums)
{
    int64_t c = 0;
    for (; c + LANES < cols; c += 2 * LANES)
        multiply_rows(2, a, row_step, depth_step, num_rows, depth, w + c, to, sums + c);
    if (c < cols) multiply_rows(1, a, row_step, depth_step, num_rows, depth, w + c, to, sums + c);
}

static void multiply(const float *a, int64_t num_rows, int64_t depth, const float *w, int64_t cols,
                     const int32_t *to, float *sums)
{
    multiply_any(a, DEPTH, 1, num_rows, depth, w, cols, to, sums);
}

static void multiply_columns(const float *a, int64_t num_rows, int64_t depth, const float *w,
                             int64_t cols, const int32_t *to, float *sums)
{
    multiply_any(a, 1, SPOPS_VVOR_ROWS, num_rows, depth, w, cols, to, sums);
}

static void multiply_diagonal(const float *a, int64_t num_rows, const float *w, int64_t cols,
                              const int32_t *to, float *sums)
{
    for (int64_t r = 0; r < num_rows; ++r) {
        float *place = sums + (int64_t)to[r] * PANEL;
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
        parts[c % PARTS] += a[c] * b[c];
    for (int i = 0; i < PARTS; ++i)
        sum += parts[i];
    return sum;
}

// ---- Loads and stores ---------------------------------------------------------------------------

// n elements, in blocks of a width that the compiler knows.
SPOPS_INLINE void load_row(int dtype, const char *src, int64_t n, float *dst)
{
    const size_t bytes = spops_element_bytes(dtype);
    int64_t c = 0;
    for (; c + LANES <= n; c += LANES)
        spops_load_lanes(dtype, LANES, src + (size_t)c * bytes, dst + c);
    for (; c < n; ++c)
        dst[c] = spops_load_1(dtype, src + (size_t)c * bytes);
}

SPOPS_INLINE void load_rows_of(int dtype, spops_matrix x, const int32_t *rows, int64_t n,
                               int64_t col, int64_t cols, const float *scale, float *dst,
                               int64_t stride)
{
    for (int64_t r = 0; r < n; ++r) {
        load_row(dtype, spops_element(dtype, x, rows[r], col), cols, dst + r * stride);
        if (scale == NULL) continue;
#pragma omp simd
        for (int64_t c = 0; c < cols; ++c)
            dst[r * stride + c] *= scale[r];
    }
}

static void load_rows(spops_matrix x, const int32_t *rows, int64_t n, int64_t col, int64_t cols,
                      const float *scale, float *dst, int64_t stride)
{
    switch (x.dtype) {
#define LOAD_ROWS(NAME, name, bits, c_type, device_type)                                           \
    case SPOPS_DTYPE_##NAME:                                                                       \
        load_rows_of(SPOPS_DTYPE_##NAME, x, rows, n, col, cols, scale, dst, stride);               \
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
    for (int64_t d = 0; d < depth; ++d) {
        load_row(dtype, spops_element(dtype, w, row + d, col), cols, dst + d * PANEL);
        for (int64_t c = cols; c < PANEL; ++c)
            dst[d * PANEL + c] = 0.0f;
    }
}

typedef float vec4 __attribute__((vector_size(16)));

// dst[d][c] = rows[c][d] for 4 x 4 elements.
SPOPS_INLINE void transpose_4(const float *rows, float *dst)
{
    vec4 r[4], t[4];
    for (int i = 0; i < 4; ++i)
        memcpy(&r[i], rows + i * DEPTH, sizeof r[i]);
    for (int i = 0; i < 2; ++i) {
        t[i] = __builtin_shufflevector(r[2 * i], r[2 * i + 1], 0, 4, 1, 5);
        t[i + 2] = __builtin_shufflevector(r[2 * i], r[2 * i + 1], 2, 6, 3, 7);
    }
    for (int i = 0; i < 2; ++i) {
        r[2 * i] = __builtin_shufflevector(t[2 * i], t[2 * i + 1], 0, 1, 4, 5);
        r[2 * i + 1] = __builtin_shufflevector(t[2 * i], t[2 * i + 1], 2, 3, 6, 7);
    }
    for (int i = 0; i < 4; ++i)
        memcpy(dst + i * PANEL, &r[i], sizeof r[i]);
}

SPOPS_INLINE void load_transposed(int dtype, spops_matrix w, int64_t row, int64_t col,
                                  int64_t depth, int64_t cols, float *dst)
{
    _Alignas(64) float rows[4 * DEPTH];
    for (int64_t c = 0; c < PANEL; c += 4) {
        for (int64_t i = 0; i < 4; ++i) {
            if (c + i < cols)
                load_row(dtype, spops_element(dtype, w, col + c + i, row), depth, rows + i * DEPTH);
            else
                memset(rows + i * DEPTH, 0, (size_t)depth * sizeof *rows);
        }
        int64_t d = 0;
        for (; d + 4 <= depth; d += 4)
            transpose_4(rows + d, dst + d * PANEL + c);
        for (; d < depth; ++d)
            for (int64_t i = 0; i < 4; ++i)
                dst[d * PANEL + c + i] = rows[i * DEPTH + d];
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
