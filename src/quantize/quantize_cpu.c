// Quantising on the CPU: strips of a row at a time, by way of a buffer of f32.
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
    int num_threads;
} strips;

// Rows without gaps between them count as one, unless they begin with a block of their own.
static strips strips_of(const spops_context *ctx, bool one_row, int64_t rows, int64_t cols)
{
    strips s;
    s.rows = one_row ? 1 : rows;
    s.cols = one_row ? rows * cols : cols;
    s.per_row = (s.cols + STRIP - 1) / STRIP;
    s.num_threads = spops_threads_for(ctx->num_threads, rows * cols);
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

spops_status spops_cpu_quantize_scale(spops_context *ctx, const spops_quantize_scale_args *args)
{
    const spops_matrix x = args->x;
    const strips s = strips_of(ctx, is_dense(x), x.rows, x.cols);
    uint32_t largest = 0; // bits of magnitudes are in the order of the magnitudes
    float scale = 1.0f;

    if (x.rows > 0 && x.cols > 0) {
#pragma omp parallel for num_threads(s.num_threads) if (s.num_threads > 1) schedule(static)        \
    reduction(max                                                                                  \
              : largest)
        for (int64_t i = 0; i < s.rows * s.per_row; ++i) {
            int64_t row, col;
            float v[STRIP];
            uint32_t most = 0;
            const int n = strip_at(&s, i, &row, &col);
            spops_row_load(x, row, col, n, v);
            for (int c = 0; c < n; ++c) {
                const uint32_t magnitude = spops_bits_of_float(v[c]) & 0x7fffffffu;
                const uint32_t counted = magnitude > LARGEST_BITS ? 0 : magnitude;
                most = counted > most ? counted : most;
            }
            largest = most > largest ? most : largest;
        }
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

spops_status spops_cpu_quantize(spops_context *ctx, const spops_quantize_args *args)
{
    const spops_matrix x = args->x, q = args->q;
    const bool blocks = spops_dtype_is_packed(q.dtype);
    const strips s = strips_of(ctx, !blocks && is_dense(x) && is_dense(q), x.rows, x.cols);
    const float scale = args->scale != NULL ? *args->scale : 1.0f;

#pragma omp parallel for num_threads(s.num_threads) if (s.num_threads > 1) schedule(static)
    for (int64_t i = 0; i < s.rows * s.per_row; ++i) {
        int64_t row, col;
        float v[STRIP];
        const int n = strip_at(&s, i, &row, &col);
        uint8_t *codes = (uint8_t *)spops_row_element(q, row, col);
        spops_row_load(x, row, col, n, v);
        if (blocks) {
            uint8_t *scales = (uint8_t *)spops_row_element(args->block_scales, row, col / BLOCK);
            for (int c = 0; c < n; c += BLOCK)
                quantize_block(v + c, n - c < BLOCK ? n - c : BLOCK, scale, codes + c / 2,
                               scales + c / BLOCK);
        } else {
            quantize_strip(q.dtype, v, n, scale, codes);
        }
    }
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
    default: break;
    }
}

spops_status spops_cpu_dequantize(spops_context *ctx, const spops_quantize_args *args)
{
    const spops_matrix x = args->x, q = args->q;
    const bool blocks = spops_dtype_is_packed(q.dtype);
    const strips s = strips_of(ctx, !blocks && is_dense(x) && is_dense(q), x.rows, x.cols);
    const float scale = args->scale != NULL ? *args->scale : 1.0f;

#pragma omp parallel for num_threads(s.num_threads) if (s.num_threads > 1) schedule(static)
    for (int64_t i = 0; i < s.rows * s.per_row; ++i) {
        int64_t row, col;
        float v[STRIP];
        const int n = strip_at(&s, i, &row, &col);
        const uint8_t *codes = (const uint8_t *)spops_row_element(q, row, col);
        if (blocks) {
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
            v[c] *= scale;
        spops_row_store(x, row, col, n, v);
    }
    return SPOPS_STATUS_OK;
}
