// SPDX-License-Identifier: Apache-2.0
// Elements of real dtypes as f64 and back, for the CPU's code of rows of f64: plain loops.
#ifndef SPOPS_CORE_ROWS_F64_H
#define SPOPS_CORE_ROWS_F64_H

#include <math.h>

#include "core/half.h"
#include "core/matrix.h"

// The f32 that a dtype of 16 bits is rounded from as v would be: the last bit is odd where v has more.
static inline float spops_odd_float(double v)
{
    const float f = (float)v;
    if ((double)f == v || isnan(v) || isinf(f)) return f;
    const uint32_t bits = spops_bits_of_float(f), before = fabs((double)f) > fabs(v);
    return spops_float_of_bits((bits - before) | 1u);
}

static inline double spops_double_of(spops_dtype dtype, const void *src, int64_t i)
{
    switch (dtype) {
#define SPOPS_DTYPE_FLOAT(NAME, name, bits, c_type, device_type)                                   \
    case SPOPS_DTYPE_##NAME:                                                                       \
        return (double)spops_float_of_##name(((const c_type *)src)[i]);
#define SPOPS_DTYPE_DOUBLE(NAME, name, bits, c_type, device_type)                                  \
    case SPOPS_DTYPE_##NAME:                                                                       \
        return ((const c_type *)src)[i];
#define SPOPS_DTYPE(NAME, name, bits, c_type, device_type)
#include "core/dtypes.def"
    default: return 0.0;
    }
}

// Rounded once.
static inline void spops_store_double(spops_dtype dtype, void *dst, int64_t i, double v)
{
    switch (dtype) {
    case SPOPS_DTYPE_F64: ((double *)dst)[i] = v; break;
    case SPOPS_DTYPE_F32: ((float *)dst)[i] = (float)v; break;
    case SPOPS_DTYPE_F16: ((uint16_t *)dst)[i] = spops_f16_of_float(spops_odd_float(v)); break;
    case SPOPS_DTYPE_BF16: ((uint16_t *)dst)[i] = spops_bf16_of_float(spops_odd_float(v)); break;
    default: break;
    }
}

// Row `row` of a matrix of f64.
static inline double *spops_row_f64(spops_matrix m, int64_t row)
{
    return (double *)m.data + row * m.row_stride;
}

// Element i of a vector that may be absent, whose elements are then `otherwise`.
static inline double spops_double_or(spops_matrix m, int64_t i, double otherwise)
{
    return m.data == NULL ? otherwise : spops_double_of(m.dtype, m.data, i);
}

#endif
