// SPDX-License-Identifier: Apache-2.0
// Quantising on the CPU: strips of a row at a time, by way of a buffer of f32.
#include <string.h>

#include "backends/backend_cpu.h"
#include "core/float8.h"
#include "core/row_convert.h"
#include "core/threads.h"
#include "quantize/quantize_args.h"

#define STRIP        512 // columns; whole blocks of an f4e2m1 row
#define BLOCK        SPOPS_BLOCK_COLS
#define SMALLEST     0x1p-126f   // scale
#define LARGEST_BITS 0x7f7fffffu // of a finite f32

// ---- Strips -------------------------------------------------------------------------------------

typedef struct strips {
    int64_t rows, cols, per_row;
    spops_team team;
} strips;

// Rows without gaps between them count as one, unless they begin with a block of their own.
static strips strips_of(const spops_context *ctx, bool one_row, int64_t rows, int64_t cols)
{
    strips s;
    s.rows = one_row ? 1 : rows;
    s.cols = one_row ? rows * cols : cols;
    s.per_row = (s.cols + STRIP - 1) / STRIP;
    s.team = spops_team_for(ctx, rows * cols);
    return s;
}

static bool is_dense(spops_matrix m)
{
    return m.rows <= 1 || m.row_stride == m.cols;
}

// Where strip i begins, and how many columns it has.
static int strip_at(const strips *s, int64_t i, int64_t *row, int64_t *col)
{
    *row = i / s->per_row;
    *col = i % s->per_row * STRIP;
    return s->cols - *col < STRIP ? (int)(s->cols - *col) : STRIP;
}

// ---- Scale --------------------------------------------------------------------------------------

#define MAX_PARTS 64

typedef struct scale_work {
    spops_matrix x;
    strips s;
    uint32_t *largest; // [part], bits of magnitudes, which are in the order of the magnitudes
} scale_work;

static void largest_of_part(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const scale_work *w = (const scale_work *)work;
    uint32_t largest = 0;
    for (int64_t i = begin; i < end; ++i) {
        int64_t row, col;
        float v[STRIP];
        uint32_t most = 0;
        const int n = strip_at(&w->s, i, &row, &col);
        spops_row_load(w->x, row, col, n, v);
        for (int c = 0; c < n; ++c) {
            const uint32_t magnitude = spops_bits_of_float(v[c]) & 0x7fffffffu;
            const uint32_t counted = magnitude > LARGEST_BITS ? 0 : magnitude;
            most = counted > most ? counted : most;
        }
        largest = most > largest ? most : largest;
    }
    w->largest[part] = largest;
}

spops_status spops_cpu_quantize_scale(spops_context *ctx, const spops_quantize_scale_args *args)
{
    const spops_matrix x = args->x;
    uint32_t part_largest[MAX_PARTS], largest = 0;
    const scale_work work = {x, strips_of(ctx, is_dense(x), x.rows, x.cols), part_largest};
    const int num_parts = spops_team_parts(work.s.team, MAX_PARTS);
    float scale = 1.0f;

    if (x.rows > 0 && x.cols > 0) {
        spops_parallel_parts(work.s.team, num_parts, work.s.rows * work.s.per_row, largest_of_part,
                             &work);
        for (int part = 0; part < num_parts; ++part)
            largest = part_largest[part] > largest ? part_largest[part] : largest;
    }
    if (largest > 0) {
        scale = spops_float_of_bits(largest) / spops_largest_narrow(args->dtype);
        scale = scale < SMALLEST ? SMALLEST : scale;
    }
    *args->scale = scale;
    return SPOPS_STATUS_OK;
}

// ---- Quantise -----------------------------------------------------------------------------------

// The largest magnitude of a block, an infinity before all numbers and NaN before that.
static float block_magnitude(const float *v, int n)
{
    uint32_t most = 0;
    for (int c = 0; c < n; ++c) {
        const uint32_t magnitude = spops_bits_of_float(v[c]) & 0x7fffffffu;
        most = magnitude > most ? magnitude : most;
    }
    return spops_float_of_bits(most);
}

static void quantize_strip(spops_dtype dtype, const float *v, int n, float scale, uint8_t *codes)
{
    switch (dtype) {
#define SPOPS_DTYPE_FLOAT8(NAME, name, bits, c_type, device_type)                                  \
    case SPOPS_DTYPE_##NAME:                                                                       \
        for (int c = 0; c < n; ++c)                                                                \
            codes[c] = spops_##name##_of_float(v[c] / scale);                                      \
        break;
#include "core/dtypes.def"
    case SPOPS_DTYPE_I8:
        for (int c = 0; c < n; ++c)
            codes[c] = (uint8_t)spops_i8_of_float(v[c] / scale);
        break;
    default: break;
    }
}

// n columns, an even number, to codes and one scale.
static void quantize_block(const float *v, int n, float scale, uint8_t *codes, uint8_t *block_scale)
{
    const uint8_t s = spops_f8e4m3_of_float(block_magnitude(v, n) / scale / SPOPS_F4E2M1_MAX);
    const float decoded = spops_float_of_f8e4m3(s), divisor = decoded * scale;
    const uint8_t mask = decoded > 0.0f ? 0xff : 0; // neither 0 nor NaN
    for (int c = 0; c < n / 2; ++c) {
        const uint8_t even = spops_f4e2m1_of_float(v[2 * c] / divisor);
        const uint8_t odd = spops_f4e2m1_of_float(v[2 * c + 1] / divisor);
        codes[c] = (uint8_t)((even | odd << 4) & mask);
    }
    *block_scale = s;
}

typedef struct quantize_work {
    const spops_quantize_args *args;
    strips s;
    bool blocks;
    float scale;
} quantize_work;

static void quantize_strips(const void *work, int64_t begin, int64_t end)
{
    const quantize_work *w = (const quantize_work *)work;
    const spops_quantize_args *args = w->args;
    const spops_matrix x = args->x, q = args->q;
    const float scale = w->scale;
    for (int64_t i = begin; i < end; ++i) {
        int64_t row, col;
        float v[STRIP];
        const int n = strip_at(&w->s, i, &row, &col);
        uint8_t *codes = (uint8_t *)spops_row_element(q, row, col);
        spops_row_load(x, row, col, n, v);
        if (w->blocks) {
            uint8_t *scales = (uint8_t *)spops_row_element(args->block_scales, row, col / BLOCK);
            for (int c = 0; c < n; c += BLOCK)
                quantize_block(v + c, n - c < BLOCK ? n - c : BLOCK, scale, codes + c / 2,
                               scales + c / BLOCK);
        } else {
            quantize_strip(q.dtype, v, n, scale, codes);
        }
    }
}

// The same for both directions.
static void run_strips(const spops_context *ctx, const spops_quantize_args *args,
                       spops_parallel_body body)
{
    const spops_matrix x = args->x, q = args->q;
    const bool blocks = spops_dtype_is_packed(q.dtype);
    const quantize_work work = {
        args, strips_of(ctx, !blocks && is_dense(x) && is_dense(q), x.rows, x.cols), blocks,
        args->scale != NULL ? *args->scale : 1.0f};
    spops_parallel_for(work.s.team, work.s.rows * work.s.per_row, 0, body, &work);
}

spops_status spops_cpu_quantize(spops_context *ctx, const spops_quantize_args *args)
{
    run_strips(ctx, args, quantize_strips);
    return SPOPS_STATUS_OK;
}

// ---- Dequantise ---------------------------------------------------------------------------------

static void dequantize_strip(spops_dtype dtype, const uint8_t *codes, int n, float *v)
{
    switch (dtype) {
#define SPOPS_DTYPE_FLOAT8(NAME, name, bits, c_type, device_type)                                  \
    case SPOPS_DTYPE_##NAME:                                                                       \
        for (int c = 0; c < n; ++c)                                                                \
            v[c] = spops_float_of_##name(codes[c]);                                                \
        break;
#include "core/dtypes.def"
    case SPOPS_DTYPE_I8:
        for (int c = 0; c < n; ++c)
            v[c] = (float)(int8_t)codes[c];
        break;
    default: break;
    }
}

static void dequantize_strips(const void *work, int64_t begin, int64_t end)
{
    const quantize_work *w = (const quantize_work *)work;
    const spops_quantize_args *args = w->args;
    const spops_matrix x = args->x, q = args->q;
    for (int64_t i = begin; i < end; ++i) {
        int64_t row, col;
        float v[STRIP];
        const int n = strip_at(&w->s, i, &row, &col);
        const uint8_t *codes = (const uint8_t *)spops_row_element(q, row, col);
        if (w->blocks) {
            const uint8_t *scales =
                (const uint8_t *)spops_row_element(args->block_scales, row, col / BLOCK);
            for (int c = 0; c < n; ++c) {
                const uint8_t code = (uint8_t)(codes[c / 2] >> c % 2 * 4);
                v[c] = spops_float_of_f8e4m3(scales[c / BLOCK]) * spops_float_of_f4e2m1(code);
            }
        } else {
            dequantize_strip(q.dtype, codes, n, v);
        }
        for (int c = 0; c < n; ++c)
            v[c] *= w->scale;
        spops_row_store(x, row, col, n, v);
    }
}

spops_status spops_cpu_dequantize(spops_context *ctx, const spops_quantize_args *args)
{
    run_strips(ctx, args, dequantize_strips);
    return SPOPS_STATUS_OK;
}

// ---- Weights ------------------------------------------------------------------------------------

// n input channels, from c on, of an output channel at a tap.
static void load_weights(const spops_quantize_weights_args *args, int64_t tap, int64_t c, int n,
                         int64_t o, float *v)
{
    if (args->transposed) {
        spops_row_load(args->w, tap * args->cols + o, c, n, v);
        return;
    }
    for (int i = 0; i < n; ++i)
        spops_row_load(args->w, tap * args->depth + c + i, o, 1, v + i);
}

static void quantize_channels(const void *work, int64_t begin, int64_t end)
{
    const spops_quantize_weights_args *args = (const spops_quantize_weights_args *)work;
    const int64_t padded = args->q.cols;
    for (int64_t o = begin; o < end; ++o) {
        float v[STRIP], scale = 1.0f;
        uint32_t largest = 0;
        for (int64_t tap = 0; tap < args->taps; ++tap) {
            for (int64_t c = 0; c < args->depth; c += STRIP) {
                const int n = args->depth - c < STRIP ? (int)(args->depth - c) : STRIP;
                load_weights(args, tap, c, n, o, v);
                for (int i = 0; i < n; ++i) {
                    const uint32_t magnitude = spops_bits_of_float(v[i]) & 0x7fffffffu;
                    if (magnitude <= LARGEST_BITS && magnitude > largest) largest = magnitude;
                }
            }
        }
        if (largest > 0) {
            scale = spops_float_of_bits(largest) / spops_largest_narrow(args->q.dtype);
            scale = scale < SMALLEST ? SMALLEST : scale;
        }
        args->scales[o] = scale;
        for (int64_t tap = 0; tap < args->taps; ++tap) {
            uint8_t *codes = (uint8_t *)args->q.data + (tap * args->cols + o) * padded;
            for (int64_t c = 0; c < args->depth; c += STRIP) {
                const int n = args->depth - c < STRIP ? (int)(args->depth - c) : STRIP;
                load_weights(args, tap, c, n, o, v);
                quantize_strip(args->q.dtype, v, n, scale, codes + c);
            }
            memset(codes + args->depth, 0, (size_t)(padded - args->depth));
        }
    }
}

spops_status spops_cpu_quantize_weights(spops_context *ctx, const spops_quantize_weights_args *args)
{
    spops_parallel_for(spops_team_for(ctx, args->w.rows * args->w.cols), args->cols, 0,
                       quantize_channels, args);
    return SPOPS_STATUS_OK;
}
