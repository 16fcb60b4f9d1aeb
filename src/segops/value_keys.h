// SPDX-License-Identifier: Apache-2.0
// Values as unsigned keys in the order of sorts (segops_args.h), on the CPU.
#ifndef SPOPS_SEGOPS_VALUE_KEYS_H
#define SPOPS_SEGOPS_VALUE_KEYS_H

#include "core/row_convert.h"
#include "core/rows_f64.h"
#include "segops/segops_args.h"

// Bits of a key; it is less than 2 to their power.
static inline int spops_value_key_bits(spops_dtype dtype)
{
    return dtype == SPOPS_DTYPE_F64 ? 64 : 32;
}

static inline uint64_t spops_value_key_f64(double v, bool descending)
{
    uint64_t bits, key;
    if (isnan(v)) return descending ? 0 : UINT64_MAX;
    v += 0.0; // of -0
    memcpy(&bits, &v, sizeof bits);
    key = bits >> 63 != 0 ? ~bits : bits | (uint64_t)1 << 63;
    return descending ? ~key : key;
}

static inline uint64_t spops_value_key_f32(float v, bool descending)
{
    uint32_t bits, key;
    if (isnan(v)) return descending ? 0 : UINT32_MAX;
    v += 0.0f; // of -0
    memcpy(&bits, &v, sizeof bits);
    key = bits >> 31 != 0 ? ~bits : bits | (uint32_t)1 << 31;
    return descending ? (uint32_t)~key : key;
}

static inline uint64_t spops_value_key(spops_matrix x, int64_t row, int64_t col, bool descending)
{
    const int64_t at = row * spops_row_step(x) + col;
    switch (x.dtype) {
    case SPOPS_DTYPE_F64: return spops_value_key_f64(((const double *)x.data)[at], descending);
#define SPOPS_DTYPE_FLOAT(NAME, name, bits, c_type, device_type)                                   \
    case SPOPS_DTYPE_##NAME:                                                                       \
        return spops_value_key_f32(spops_float_of_##name(((const c_type *)x.data)[at]), descending);
#include "core/dtypes.def"
    default: return 0;
    }
}

// to[to_row, col] = from[from_row, col], bit by bit.
static inline void spops_copy_value(spops_matrix from, int64_t from_row, spops_matrix to,
                                    int64_t to_row, int64_t col)
{
    const size_t bytes = (size_t)spops_dtype_bits(from.dtype) / 8;
    memcpy((char *)to.data + (size_t)(to_row * spops_row_step(to) + col) * bytes,
           (const char *)from.data + (size_t)(from_row * spops_row_step(from) + col) * bytes,
           bytes);
}

static inline void spops_put_place(spops_matrix places, int64_t row, int64_t col, int32_t place)
{
    ((int32_t *)places.data)[row * spops_row_step(places) + col] = place;
}

#endif
