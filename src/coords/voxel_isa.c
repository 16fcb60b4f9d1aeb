// SPDX-License-Identifier: Apache-2.0
#include "coords/voxel_isa.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "core/half.h"

// The f64 of column a of points, whose row stride is a constant where it pays. After n: 0.
static inline void load_column(bool wide, int64_t stride, const char *column, int n, double *p)
{
    for (int i = 0; i < n; ++i)
        p[i] = (double)(wide ? ((const float *)(const void *)column)[i * stride]
                             : spops_float_of_f16(
                                   ((const uint16_t *)(const void *)column)[i * stride]));
    for (int i = n; i < SPOPS_VOXEL_BLOCK; ++i)
        p[i] = 0.0;
}

// Eight at a time, whatever the registers hold. Conversions from f64 are not vectorised, as they may
// raise exceptions; the sum with 2^52 and a half of it has an integer in its lowest bits.
#define LANES 8
#define MAGIC 6755399441055744.0
typedef double f64s __attribute__((vector_size(8 * LANES)));
typedef int64_t i64s __attribute__((vector_size(8 * LANES)));
typedef int32_t i32s __attribute__((vector_size(4 * LANES)));

// spops_voxel_floor of the spops_voxel_position of a block; false if there is none of some.
static inline bool floor_block(const double *p, double origin, double size, int32_t *to)
{
    i64s outside = {0};
    for (int i = 0; i < SPOPS_VOXEL_BLOCK; i += LANES) {
        f64s at, rounded;
        i64s whole;
        i32s narrow;
        memcpy(&at, p + i, sizeof at);
        at = (at - origin) / size;
        outside |= ~((at >= -2147483648.0) & (at < 2147483648.0));
        rounded = at + MAGIC; // up or down, by the rounding mode
        whole = (i64s)rounded + (rounded - MAGIC > at);
        narrow = __builtin_convertvector(whole, i32s);
        memcpy(to + i, &narrow, sizeof narrow);
    }
    for (int lane = 1; lane < LANES; ++lane)
        outside[0] |= outside[lane];
    return outside[0] == 0;
}

static uint64_t find(const spops_coords_source *source, int64_t i, int n, spops_voxel_block block)
{
    const int64_t stride = source->points.row_stride;
    const bool wide = source->points.dtype == SPOPS_DTYPE_F32;
    const int bytes = wide ? 4 : 2;
    const char *points = (const char *)source->points.data + i * stride * bytes;
    int32_t outside[SPOPS_VOXEL_BLOCK] = {0}, any = 0;
    uint64_t none = 0;

    for (int p = 0; p < n; ++p)
        block[0][p] = source->batch != NULL ? source->batch[i + p] : 0;
    for (int a = 0; a < source->dims; ++a) {
        const double origin = source->origin[a], size = source->size[a];
        double column[SPOPS_VOXEL_BLOCK];
        if (wide && stride == 4)
            load_column(true, 4, points + a * bytes, n, column);
        else if (wide && stride == 3)
            load_column(true, 3, points + a * bytes, n, column);
        else
            load_column(wide, stride, points + a * bytes, n, column);
        if (floor_block(column, origin, size, block[a + 1])) continue;
        for (int p = 0; p < n; ++p)
            outside[p] |= !spops_voxel_floor((column[p] - origin) / size, &block[a + 1][p]);
    }
    for (int p = 0; p < n; ++p) {
        outside[p] |= block[0][p] < 0;
        any |= outside[p];
    }
    for (int p = 0; any && p < n; ++p)
        none |= (uint64_t)(outside[p] != 0) << p;
    return none;
}

static inline void extend(float v, float *lower, float *upper)
{
    *lower = v != v || v < *lower ? v : *lower; // a NaN stays
    *upper = v > *upper ? v : *upper;
}

// Of n rows of `stride` elements, a constant. But for the last rows, elements are taken as they lie in
// memory, whatever column they belong to.
#define ROWS 16
static inline void extent_of_rows(int stride, int dims, int64_t n, const float *x, float *lower,
                                  float *upper)
{
    float least[4 * ROWS], most[4 * ROWS];
    int32_t none[4 * ROWS] = {0};
    const int elements = stride * ROWS;
    int64_t i = 0;

    for (int e = 0; e < elements; ++e) {
        least[e] = INFINITY;
        most[e] = -INFINITY;
    }
    for (; i + ROWS < n; i += ROWS) {
        const float *from = x + i * stride;
#pragma omp simd
        for (int e = 0; e < elements; ++e) {
            const float v = from[e];
            least[e] = v < least[e] ? v : least[e];
            most[e] = v > most[e] ? v : most[e];
            none[e] |= v != v;
        }
    }
    for (int e = 0; e < elements; ++e) {
        const int a = e % stride;
        if (a >= dims) continue;
        extend(none[e] != 0 ? NAN : least[e], &lower[a], &upper[a]);
        extend(most[e], &lower[a], &upper[a]);
    }
    for (; i < n; ++i)
        for (int a = 0; a < dims; ++a)
            extend(x[i * stride + a], &lower[a], &upper[a]);
}

static void extent(const spops_coords_source *source, int64_t i, int64_t n, float *lower,
                   float *upper)
{
    const int64_t stride = source->points.row_stride;
    const bool wide = source->points.dtype == SPOPS_DTYPE_F32;
    const float *x = (const float *)source->points.data;
    const int dims = source->dims;
    for (int a = 0; a < dims; ++a) {
        lower[a] = INFINITY;
        upper[a] = -INFINITY;
    }
    if (wide && stride == 3 && dims == 3) {
        extent_of_rows(3, 3, n, x + i * 3, lower, upper);
    } else if (wide && stride == 4) {
        extent_of_rows(4, dims, n, x + i * 4, lower, upper);
    } else {
        for (int64_t p = i; p < i + n; ++p)
            for (int a = 0; a < dims; ++a)
                extend(wide ? x[p * stride + a]
                            : spops_float_of_f16(
                                  ((const uint16_t *)source->points.data)[p * stride + a]),
                       &lower[a], &upper[a]);
    }
}

static int pack(const spops_key_layout *layout, int n, const spops_voxel_block block,
                uint64_t *keys)
{
    int32_t outside[SPOPS_VOXEL_BLOCK] = {0}, any = 0;
    int num_outside = 0;
    for (int p = 0; p < n; ++p)
        keys[p] = 0;
    for (int c = 0; c <= layout->dims; ++c) {
        const int32_t lower = layout->lower[c], upper = layout->upper[c];
        const int shift = layout->shift[c];
#pragma omp simd reduction(| : any)
        for (int p = 0; p < n; ++p) {
            const int32_t v = block[c][p];
            outside[p] |= v < lower || v > upper;
            any |= outside[p];
            keys[p] |= (uint64_t)((uint32_t)v - (uint32_t)lower) << shift;
        }
    }
    for (int p = 0; any && p < n; ++p) {
        if (!outside[p]) continue;
        keys[p] = SPOPS_KEY_NONE;
        ++num_outside;
    }
    return num_outside;
}

// ---- Rows of keys -------------------------------------------------------------------------------

typedef uint64_t u64x4 __attribute__((vector_size(32)));
typedef uint32_t u32x4 __attribute__((vector_size(16)));

// Modulo 2^32, since a box wider than 2^31 has offsets that int32_t does not hold.
static void unpack(const spops_key_layout *layout, int64_t n, const uint64_t *keys, int32_t *rows)
{
    const int columns = layout->dims + 1, first = columns < 4 ? columns : 4;
    u64x4 shift, mask;
    u32x4 lower;
    for (int c = 0; c < 4; ++c) {
        shift[c] = (uint64_t)layout->shift[c];
        mask[c] = ((uint64_t)1 << layout->bits[c]) - 1;
        lower[c] = (uint32_t)layout->lower[c];
    }
    for (int64_t i = 0; i < n; ++i, rows += columns) {
        const u64x4 key = {keys[i], keys[i], keys[i], keys[i]};
        const u32x4 row = __builtin_convertvector(key >> shift & mask, u32x4) + lower;
        if (first == 4)
            memcpy(rows, &row, sizeof row);
        else
            memcpy(rows, &row, (size_t)first * sizeof *rows);
        if (columns > 4) rows[4] = spops_key_unpack(layout, keys[i], 4);
    }
}

// ---- Codes of keys ------------------------------------------------------------------------------

#define CODE_LANES 32
typedef uint32_t u32s __attribute__((vector_size(4 * CODE_LANES)));
typedef uint16_t u16s __attribute__((vector_size(2 * CODE_LANES)));

// spops_key_hilbert's turns, of all lanes at once, whose elements have at least as many bits as there
// are levels.
#define DEFINE_TURN(name, lanes, element)                                                          \
    static inline void name(int dims, int levels, lanes *x)                                        \
    {                                                                                              \
        lanes parity;                                                                              \
        for (int level = levels - 1; level > 0; --level) {                                         \
            const element shift = (element)level, below = (element)(((uint32_t)1 << level) - 1);   \
            x[0] ^= -(x[0] >> shift & (element)1) & below;                                         \
            for (int a = 1; a < dims; ++a) { /* mirrored where the bit is set, else exchanged */   \
                const lanes set = -(x[a] >> shift & (element)1);                                   \
                const lanes t = (x[0] ^ x[a]) & ~set & below;                                      \
                x[0] ^= t | (set & below);                                                         \
                x[a] ^= t;                                                                         \
            }                                                                                      \
        }                                                                                          \
        for (int a = 1; a < dims; ++a)                                                             \
            x[a] ^= x[a - 1];                                                                      \
        parity = x[dims - 1] >> (element)1; /* of all bits above each */                           \
        for (int step = 1; step < 8 * (int)sizeof(element); step *= 2)                             \
            parity ^= parity >> (element)step;                                                     \
        for (int a = 0; a < dims; ++a)                                                             \
            x[a] ^= parity;                                                                        \
    }
DEFINE_TURN(turn_32, u32s, uint32_t)
DEFINE_TURN(turn_16, u16s, uint16_t)

static inline void turn(int dims, int levels, u32s *x)
{
    u16s narrow[SPOPS_MAX_DIMS];
    if (levels > 16) {
        turn_32(dims, levels, x);
        return;
    }
    for (int a = 0; a < dims; ++a)
        narrow[a] = __builtin_convertvector(x[a], u16s);
    turn_16(dims, levels, narrow);
    for (int a = 0; a < dims; ++a)
        x[a] = __builtin_convertvector(narrow[a], u32s);
}

static inline void codes_of_lanes(const spops_curve *curve, int dims, const uint64_t *keys,
                                  uint64_t *codes)
{
    const spops_key_layout *layout = curve->layout;
    u32s x[SPOPS_MAX_DIMS];
    for (int a = 0; a < dims; ++a) {
        const int shift = layout->shift[a + 1];
        const uint64_t mask = ((uint64_t)1 << layout->bits[a + 1]) - 1;
        uint32_t values[CODE_LANES];
#pragma omp simd
        for (int p = 0; p < CODE_LANES; ++p)
            values[p] = (uint32_t)(keys[p] >> shift & mask);
        memcpy(&x[a], values, sizeof values);
    }
    if (curve->hilbert && layout->max_axis_bits > 0) turn(dims, layout->max_axis_bits, x);
    for (int p = 0; p < CODE_LANES; ++p)
        codes[p] = layout->bits[0] > 0 ? keys[p] >> layout->shift[0] << curve->batch_shift : 0;
    for (int a = 0; a < dims; ++a) {
        uint32_t values[CODE_LANES];
        memcpy(values, &x[a], sizeof values);
#pragma omp simd
        for (int p = 0; p < CODE_LANES; ++p) {
            uint64_t v = values[p] & curve->common;
            for (int step = 0; step < SPOPS_SPREAD_STEPS; ++step)
                v = (v | v << (16 >> step) * (dims - 1)) & curve->spread[step];
            codes[p] |= v << (dims - 1 - a);
        }
    }
    for (int i = 0; i < curve->num_bits; ++i) {
        const spops_curve_bit bit = curve->bits[i];
        uint32_t values[CODE_LANES];
        memcpy(values, &x[bit.axis], sizeof values);
#pragma omp simd
        for (int p = 0; p < CODE_LANES; ++p)
            codes[p] |= (uint64_t)(values[p] >> bit.level & 1u) << bit.place;
    }
}

static void codes(const spops_curve *curve, int n, const uint64_t *keys, uint64_t *codes)
{
    for (int p = 0; p < n; p += CODE_LANES) {
        uint64_t from[CODE_LANES] = {0}, to[CODE_LANES];
        const int own = n - p < CODE_LANES ? n - p : CODE_LANES;
        memcpy(from, keys + p, (size_t)own * sizeof *from);
        if (curve->layout->dims == 3)
            codes_of_lanes(curve, 3, from, to);
        else
            codes_of_lanes(curve, curve->layout->dims, from, to);
        memcpy(codes + p, to, (size_t)own * sizeof *to);
    }
}

const spops_voxel_table SPOPS_ISA_TABLE(spops_voxel_table) = {find, extent, pack, unpack, codes};
