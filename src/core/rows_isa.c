// SPDX-License-Identifier: Apache-2.0
// Rows of any length to f32 and back, compiled once per instruction set.
#include "core/simd_rows.h"

#include "core/rows_isa.h"

static void load(spops_dtype dtype, const void *src, int64_t n, float *dst)
{
    const char *from = (const char *)src;
    int64_t i = 0;
    switch (dtype) {
#define SPOPS_DTYPE_FLOAT(NAME, name, bits, c_type, device_type)                                   \
    case SPOPS_DTYPE_##NAME:                                                                       \
        for (; i + 16 <= n; i += 16)                                                               \
            spops_load_lanes(SPOPS_DTYPE_##NAME, 16, from + (size_t)i * sizeof(c_type), dst + i);  \
        for (; i < n; ++i)                                                                         \
            dst[i] = spops_load_1(SPOPS_DTYPE_##NAME, from + (size_t)i * sizeof(c_type));          \
        break;
#include "core/dtypes.def"
    default: break;
    }
}

static void store(spops_dtype dtype, const float *src, int64_t n, void *dst)
{
    char *to = (char *)dst;
    int64_t i = 0;
    switch (dtype) {
#define SPOPS_DTYPE_FLOAT(NAME, name, bits, c_type, device_type)                                   \
    case SPOPS_DTYPE_##NAME:                                                                       \
        for (; i + 16 <= n; i += 16)                                                               \
            spops_store_lanes(SPOPS_DTYPE_##NAME, 16, src + i, to + (size_t)i * sizeof(c_type));   \
        for (; i + 4 <= n; i += 4)                                                                 \
            spops_store_lanes(SPOPS_DTYPE_##NAME, 4, src + i, to + (size_t)i * sizeof(c_type));    \
        for (; i < n; ++i)                                                                         \
            spops_store_1(SPOPS_DTYPE_##NAME, src[i], to + (size_t)i * sizeof(c_type));            \
        break;
#include "core/dtypes.def"
    default: break;
    }
}

// A row of 8- or 4-bit codes as f16, which has all their values, and all products of an f4e2m1 with
// its block scale.
static void decode(spops_dtype dtype, const void *src, const uint8_t *scales, int64_t n,
                   uint16_t *dst)
{
    const char *from = (const char *)src;
    int64_t c = 0;

    if (spops_dtype_is_packed(dtype)) {
        float v[SPOPS_BLOCK_COLS];
        for (; c + SPOPS_BLOCK_COLS <= n; c += SPOPS_BLOCK_COLS) {
            spops_load_16_f4(from + c / 2, spops_f8e4m3_values[scales[c / SPOPS_BLOCK_COLS]], v);
            spops_store_lanes(SPOPS_DTYPE_F16, SPOPS_BLOCK_COLS, v, (char *)(dst + c));
        }
        if (c < n) {
            char codes[SPOPS_BLOCK_COLS / 2] = {0};
            memcpy(codes, from + c / 2, (size_t)(n - c) / 2);
            spops_load_16_f4(codes, spops_f8e4m3_values[scales[c / SPOPS_BLOCK_COLS]], v);
            for (int64_t i = 0; c < n; ++i, ++c)
                spops_store_1(SPOPS_DTYPE_F16, v[i], (char *)(dst + c));
        }
        return;
    }
    switch (dtype) {
#define SPOPS_DTYPE_FLOAT8(NAME, name, bits, c_type, device_type)                                  \
    case SPOPS_DTYPE_##NAME:                                                                       \
        for (; c + 16 <= n; c += 16) {                                                             \
            float v[16];                                                                           \
            spops_load_lanes(SPOPS_DTYPE_##NAME, 16, from + c, v);                                 \
            spops_store_lanes(SPOPS_DTYPE_F16, 16, v, (char *)(dst + c));                          \
        }                                                                                          \
        for (; c < n; ++c)                                                                         \
            spops_store_1(SPOPS_DTYPE_F16, spops_load_1(SPOPS_DTYPE_##NAME, from + c),             \
                          (char *)(dst + c));                                                      \
        break;
#include "core/dtypes.def"
    default: break;
    }
}

const spops_rows_table SPOPS_ISA_TABLE(spops_rows_table) = {load, store, decode};
