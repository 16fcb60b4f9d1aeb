// SPDX-License-Identifier: Apache-2.0
// SDDMM and SpMM, compiled once per instruction set: products of rows head by head, and sums of rows in
// strips of columns.
#include "core/simd_rows.h"

#include "sddmm/sddmm_isa.h"

enum { LANES = 16, SUM_TERMS = 256 }; // terms that are added in f32 before f64 takes them

// ---- SDDMM --------------------------------------------------------------------------------------

// acc[0 .. width - 1] += a * b, of a width that is a constant where this is inlined.
SPOPS_INLINE void multiply(int dtype, int width, const char *a, const char *b, float *acc)
{
    float x[LANES], y[LANES];
    spops_load_lanes(dtype, width, a, x);
    spops_load_lanes(dtype, width, b, y);
#pragma omp simd
    for (int c = 0; c < width; ++c)
        acc[c] = spops_multiply_add(x[c], y[c], acc[c]);
}

SPOPS_INLINE float dot(int dtype, const char *a, const char *b, int64_t n)
{
    const int64_t bytes = (int64_t)spops_element_bytes(dtype);
    float acc[LANES] = {0};
    int64_t i = 0;

    for (; i + LANES <= n; i += LANES)
        multiply(dtype, LANES, a + i * bytes, b + i * bytes, acc);
    if (i + 8 <= n) {
        multiply(dtype, 8, a + i * bytes, b + i * bytes, acc);
        i += 8;
    }
    if (i + 4 <= n) {
        multiply(dtype, 4, a + i * bytes, b + i * bytes, acc);
        i += 4;
    }
    for (; i < n; ++i)
        acc[0] = spops_multiply_add(spops_load_1(dtype, a + i * bytes),
                                    spops_load_1(dtype, b + i * bytes), acc[0]);
    for (int half = n >= LANES ? 8 : n >= 8 ? 4 : 2; half > 0; half /= 2)
        for (int c = 0; c < half; ++c)
            acc[c] += acc[c + half];
    return acc[0];
}

// Heads of one column: a product each.
SPOPS_INLINE void multiply_columns(int dtype, const char *q, const char *k, int64_t n, float scale,
                                   char *out)
{
    const int64_t bytes = (int64_t)spops_element_bytes(dtype);
    int64_t c = 0;
    for (; c + LANES <= n; c += LANES) {
        float x[LANES], y[LANES];
        spops_load_lanes(dtype, LANES, q + c * bytes, x);
        spops_load_lanes(dtype, LANES, k + c * bytes, y);
#pragma omp simd
        for (int i = 0; i < LANES; ++i)
            x[i] = scale * (x[i] * y[i]);
        spops_store_lanes(dtype, LANES, x, out + c * bytes);
    }
    for (; c < n; ++c)
        spops_store_1(dtype,
                      scale *
                          (spops_load_1(dtype, q + c * bytes) * spops_load_1(dtype, k + c * bytes)),
                      out + c * bytes);
}

SPOPS_INLINE void dots(int dtype, const spops_sddmm_args *args, int64_t segment, int64_t begin,
                       int64_t end)
{
    const int64_t heads = args->out.cols, d = args->q.cols / heads;
    const size_t bytes = spops_element_bytes(dtype);
    const char *q = spops_element(dtype, args->q, segment, 0);

    for (int64_t p = begin; p < end; ++p) {
        const char *k = spops_element(dtype, args->k, spops_pair_of(args->lists, p, 0), 0);
        char *out =
            (char *)(uintptr_t)spops_element(dtype, args->out, spops_term_of(args->lists, p), 0);
        if (d == 1) multiply_columns(dtype, q, k, heads, args->scale, out);
        for (int64_t h = 0; h < heads && d > 1; ++h) {
            const size_t at = (size_t)(h * d) * bytes;
            spops_store_1(dtype, args->scale * dot(dtype, q + at, k + at, d),
                          out + (size_t)h * bytes);
        }
    }
}

// ---- SpMM ---------------------------------------------------------------------------------------

// Of each of n columns from col on the head, of d columns, where they are not all one's own.
typedef struct strip_heads {
    int64_t first;
    bool is_one, is_own;
    int32_t after_first[LANES];
} strip_heads;

SPOPS_INLINE strip_heads heads_of(int64_t col, int64_t d, int n)
{
    strip_heads heads = {col / d, (col + n - 1) / d == col / d, d == 1, {0}};
    for (int c = 0; c < n; ++c)
        heads.after_first[c] = (int32_t)((col + c) / d - heads.first);
    return heads;
}

SPOPS_INLINE void load_weights(int dtype, const char *w, const strip_heads *heads, int n, float *v)
{
    const size_t bytes = spops_element_bytes(dtype);
    const char *from = w + (size_t)heads->first * bytes;
    if (heads->is_one) {
        const float weight = spops_load_1(dtype, from);
#pragma omp simd
        for (int c = 0; c < LANES; ++c)
            v[c] = weight;
    } else if (heads->is_own) {
        spops_load_part(dtype, LANES, from, n, 0.0f, v);
    } else { // those after the n-th meet zeros
        for (int c = 0; c < LANES; ++c)
            v[c] = spops_load_1(dtype, from + (size_t)heads->after_first[c] * bytes);
    }
}

SPOPS_INLINE void add_terms(int dtype, const spops_spmm_args *args, int64_t begin, int64_t end,
                            int64_t col, int n, float *acc)
{
    const strip_heads heads = heads_of(col, args->x.cols / args->w.cols, n);
    float sum[LANES] = {0};
    for (int64_t p = begin; p < end; ++p) {
        float x[LANES], w[LANES];
        spops_load_part(dtype, LANES,
                        spops_element(dtype, args->x, spops_pair_of(args->lists, p, 0), col), n,
                        0.0f, x);
        load_weights(dtype, spops_element(dtype, args->w, spops_term_of(args->lists, p), 0), &heads,
                     n, w);
#pragma omp simd
        for (int c = 0; c < LANES; ++c)
            sum[c] = spops_multiply_add(w[c], x[c], sum[c]);
    }
    memcpy(acc, sum, sizeof sum);
}

SPOPS_INLINE void sum_strip(int dtype, const spops_spmm_args *args, int64_t segment, int64_t begin,
                            int64_t end, int64_t col, int n, double *partial)
{
    const size_t bytes = spops_element_bytes(dtype);
    double total[LANES] = {0};
    float acc[LANES];

    for (int64_t p = begin; p < end; p += SUM_TERMS) {
        add_terms(dtype, args, p, end - p < SUM_TERMS ? end : p + SUM_TERMS, col, n, acc);
#pragma omp simd
        for (int c = 0; c < LANES; ++c)
            total[c] += (double)acc[c];
    }
    if (partial != NULL) {
        memcpy(partial + col, total, (size_t)n * sizeof *total);
        return;
    }
    for (int c = 0; c < n; ++c)
        spops_store_1(dtype, (float)(total[c] * (double)args->scale),
                      (char *)(uintptr_t)spops_element(dtype, args->out, segment, col) +
                          (size_t)c * bytes);
}

SPOPS_INLINE void sums(int dtype, const spops_spmm_args *args, int64_t segment, int64_t begin,
                       int64_t end, double *partial)
{
    int64_t col = 0;
    for (; col + LANES <= args->x.cols; col += LANES)
        sum_strip(dtype, args, segment, begin, end, col, LANES, partial);
    if (col < args->x.cols)
        sum_strip(dtype, args, segment, begin, end, col, (int)(args->x.cols - col), partial);
}

// ---- Instances ----------------------------------------------------------------------------------

#define SPOPS_DTYPE_FLOAT(NAME, name, bits, c_type, device_type)                                   \
    static void dots_##NAME(const spops_sddmm_args *args, int64_t segment, int64_t begin,          \
                            int64_t end)                                                           \
    {                                                                                              \
        dots(SPOPS_DTYPE_##NAME, args, segment, begin, end);                                       \
    }                                                                                              \
    static void sums_##NAME(const spops_spmm_args *args, int64_t segment, int64_t begin,           \
                            int64_t end, double *partial)                                          \
    {                                                                                              \
        sums(SPOPS_DTYPE_##NAME, args, segment, begin, end, partial);                              \
    }
#include "core/dtypes.def"

#define DOTS(NAME, name, bits, c_type, device_type) [SPOPS_DTYPE_##NAME] = dots_##NAME,
#define SUMS(NAME, name, bits, c_type, device_type) [SPOPS_DTYPE_##NAME] = sums_##NAME,
const spops_sddmm_table SPOPS_ISA_TABLE(spops_sddmm_table) = {
    .dots =
        {
#define SPOPS_DTYPE_FLOAT DOTS
#include "core/dtypes.def"
        },
    .sums =
        {
#define SPOPS_DTYPE_FLOAT SUMS
#include "core/dtypes.def"
        },
};
