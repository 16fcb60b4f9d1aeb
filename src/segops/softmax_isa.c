// SPDX-License-Identifier: Apache-2.0
// Softmax within segments, compiled once per instruction set. Terms go through in tiles of f32 lanes:
// the columns of a term side by side or, where there is one column, neighbouring terms.
#include "core/simd_rows.h"

#include <math.h>

#include "segops/softmax_isa.h"

enum { LANES = SPOPS_SOFTMAX_COLS, TILE_ROWS = 32 };

// Of x <= 0; what is below the smallest normal number is 0. NaN stays.
SPOPS_INLINE float exp_lane(float x)
{
    // x = n ln 2 + r with |r| <= ln 2 / 2; the magic number leaves n in the last bits of the sum
    const float magic = 0x1.8p23f, log2_e = 0x1.715476p0f;
    const float ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f;
    const float bounded = x < -87.3f ? -87.3f : x;
    const float shifted = bounded * log2_e + magic, n = shifted - magic;
    const float r = (bounded - n * ln2_high) - n * ln2_low;
    float p = r * (1.0f / 5040.0f) + 1.0f / 720.0f, power;
    uint32_t bits;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r * r + r + 1.0f;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 127u) << 23;
    memcpy(&power, &bits, sizeof power);
    return x < -87.3f ? 0.0f : p * power;
}

// The terms of a tile: `rows` rows of LANES; where n is 1, LANES terms a row.
typedef struct tile {
    int64_t begin, terms;
    int rows;
} tile;

SPOPS_INLINE tile tile_at(int64_t begin, int64_t end, int n)
{
    const int64_t most = n == 1 ? TILE_ROWS * LANES : TILE_ROWS;
    tile t = {begin, end - begin < most ? end - begin : most, 0};
    t.rows = (int)(n == 1 ? (t.terms + LANES - 1) / LANES : t.terms);
    return t;
}

// n elements of a row, in steps whose width is a constant.
SPOPS_INLINE void store_row(int dtype, const float *v, int n, char *to)
{
    const size_t bytes = spops_element_bytes(dtype);
    int c = 0;
    if (n == LANES) {
        spops_store_lanes(dtype, LANES, v, to);
        return;
    }
    if (c + 8 <= n) {
        spops_store_lanes(dtype, 8, v, to);
        c = 8;
    }
    if (c + 4 <= n) {
        spops_store_lanes(dtype, 4, v + c, to + (size_t)c * bytes);
        c += 4;
    }
    for (; c < n; ++c)
        spops_store_1(dtype, v[c], to + (size_t)c * bytes);
}

SPOPS_INLINE void load_tile(int dtype, const spops_segment_softmax_args *args, spops_matrix m,
                            tile t, int64_t col, int n, float pad, float *v)
{
    for (int64_t i = 0; i < t.terms; ++i) {
        const char *from = spops_element(dtype, m, spops_term_of(args->lists, t.begin + i), col);
        if (n == 1)
            v[i] = spops_load_1(dtype, from);
        else
            spops_load_part(dtype, LANES, from, n, pad, v + i * LANES);
    }
    if (n == 1)
        for (int64_t i = t.terms; i < (int64_t)t.rows * LANES; ++i)
            v[i] = pad;
}

SPOPS_INLINE void store_tile(int dtype, const spops_segment_softmax_args *args, tile t, int64_t col,
                             int n, const float *v)
{
    for (int64_t i = 0; i < t.terms; ++i) {
        char *to = (char *)(uintptr_t)spops_element(dtype, args->out,
                                                    spops_term_of(args->lists, t.begin + i), col);
        if (n == 1)
            spops_store_1(dtype, v[i], to);
        else
            store_row(dtype, v + i * LANES, n, to);
    }
}

// What exponents are counted from: 0 where no value is above -infinity, so that they are numbers.
SPOPS_INLINE float base_of(double max)
{
    return max == -INFINITY ? 0.0f : (float)max;
}

// The largest of each lane; NaN where one is.
SPOPS_INLINE void largest(int dtype, const spops_segment_softmax_args *args, int64_t begin,
                          int64_t end, int64_t col, int n, float *v, float *max)
{
    for (int c = 0; c < LANES; ++c)
        max[c] = -INFINITY;
    while (begin < end) {
        const tile t = tile_at(begin, end, n);
        load_tile(dtype, args, args->x, t, col, n, -INFINITY, v);
        for (int r = 0; r < t.rows; ++r) {
#pragma omp simd
            for (int c = 0; c < LANES; ++c) {
                const float x = v[r * LANES + c];
                max[c] = x > max[c] || x != x ? x : max[c];
            }
        }
        begin += t.terms;
    }
    if (n > 1) return;
    for (int c = 1; c < LANES; ++c) // of the one column
        max[0] = max[c] > max[0] || max[c] != max[c] ? max[c] : max[0];
    for (int c = 1; c < LANES; ++c)
        max[c] = max[0];
}

SPOPS_INLINE void add_lanes(const float *part, double *total)
{
#pragma omp simd
    for (int c = 0; c < LANES; ++c)
        total[c] += (double)part[c];
}

SPOPS_INLINE void finish_sums(int n, double *total)
{
    if (n > 1) return;
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int c = 0; c < half; ++c)
            total[c] += total[c + half];
}

SPOPS_INLINE void measure(int dtype, const spops_segment_softmax_args *args, int64_t begin,
                          int64_t end, int64_t col, int n, spops_softmax_state *states)
{
    const bool backward = args->grad_out.data != NULL;
    float v[TILE_ROWS * LANES], g[TILE_ROWS * LANES], max[LANES] = {0}, base[LANES], part[LANES];
    double total[LANES] = {0};

    if (!backward) largest(dtype, args, begin, end, col, n, v, max);
    for (int c = 0; c < LANES; ++c)
        base[c] = base_of((double)max[c]);
    while (begin < end) {
        const tile t = tile_at(begin, end, n);
        load_tile(dtype, args, args->x, t, col, n, backward ? 0.0f : -INFINITY, v);
        if (backward) load_tile(dtype, args, args->grad_out, t, col, n, 0.0f, g);
        for (int c = 0; c < LANES; ++c)
            part[c] = 0.0f;
        for (int r = 0; r < t.rows; ++r) {
            const float *row = v + r * LANES, *grad = g + r * LANES;
            if (backward) {
#pragma omp simd
                for (int c = 0; c < LANES; ++c)
                    part[c] += row[c] * grad[c];
            } else {
#pragma omp simd
                for (int c = 0; c < LANES; ++c)
                    part[c] += exp_lane(row[c] - base[c]);
            }
        }
        add_lanes(part, total);
        begin += t.terms;
    }
    finish_sums(n, total);
    for (int c = 0; c < n; ++c)
        states[c] = (spops_softmax_state){(double)max[c], total[c]};
}

SPOPS_INLINE void emit(int dtype, const spops_segment_softmax_args *args, int64_t begin,
                       int64_t end, int64_t col, int n, const spops_softmax_state *states)
{
    const bool backward = args->grad_out.data != NULL;
    float v[TILE_ROWS * LANES], g[TILE_ROWS * LANES], base[LANES], factor[LANES];

    for (int c = 0; c < LANES; ++c) {
        const spops_softmax_state s = states[n == 1 ? 0 : c < n ? c : 0];
        base[c] = backward ? (float)s.sum : base_of(s.max);
        factor[c] = s.sum == 0.0 ? 0.0f : (float)(1.0 / s.sum);
    }
    while (begin < end) {
        const tile t = tile_at(begin, end, n);
        load_tile(dtype, args, args->x, t, col, n, 0.0f, v);
        if (backward) load_tile(dtype, args, args->grad_out, t, col, n, 0.0f, g);
        for (int r = 0; r < t.rows; ++r) {
            float *row = v + r * LANES;
            const float *grad = g + r * LANES;
            if (backward) {
#pragma omp simd
                for (int c = 0; c < LANES; ++c)
                    row[c] = row[c] * (grad[c] - base[c]);
            } else {
#pragma omp simd
                for (int c = 0; c < LANES; ++c)
                    row[c] = exp_lane(row[c] - base[c]) * factor[c];
            }
        }
        store_tile(dtype, args, t, col, n, v);
        begin += t.terms;
    }
}

// ---- Instances: one column, a whole strip, or something between ---------------------------------

#define SPOPS_DTYPE_FLOAT(NAME, name, bits, c_type, device_type)                                   \
    static void measure_##NAME(const spops_segment_softmax_args *args, int64_t begin, int64_t end, \
                               int64_t col, int n, spops_softmax_state *states)                    \
    {                                                                                              \
        if (n == 1)                                                                                \
            measure(SPOPS_DTYPE_##NAME, args, begin, end, col, 1, states);                         \
        else if (n == LANES)                                                                       \
            measure(SPOPS_DTYPE_##NAME, args, begin, end, col, LANES, states);                     \
        else                                                                                       \
            measure(SPOPS_DTYPE_##NAME, args, begin, end, col, n, states);                         \
    }                                                                                              \
    static void emit_##NAME(const spops_segment_softmax_args *args, int64_t begin, int64_t end,    \
                            int64_t col, int n, const spops_softmax_state *states)                 \
    {                                                                                              \
        if (n == 1)                                                                                \
            emit(SPOPS_DTYPE_##NAME, args, begin, end, col, 1, states);                            \
        else if (n == LANES)                                                                       \
            emit(SPOPS_DTYPE_##NAME, args, begin, end, col, LANES, states);                        \
        else                                                                                       \
            emit(SPOPS_DTYPE_##NAME, args, begin, end, col, n, states);                            \
    }
#include "core/dtypes.def"

#define MEASURE(NAME, name, bits, c_type, device_type) [SPOPS_DTYPE_##NAME] = measure_##NAME,
#define EMIT(NAME, name, bits, c_type, device_type)    [SPOPS_DTYPE_##NAME] = emit_##NAME,
const spops_softmax_table SPOPS_ISA_TABLE(spops_softmax_table) = {
    .measure =
        {
#define SPOPS_DTYPE_FLOAT MEASURE
#include "core/dtypes.def"
        },
    .emit =
        {
#define SPOPS_DTYPE_FLOAT EMIT
#include "core/dtypes.def"
        },
};
