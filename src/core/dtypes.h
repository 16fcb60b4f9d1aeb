// SPDX-License-Identifier: Apache-2.0
// Properties of dtypes, all from the list in dtypes.def. Code asks for a property; it names a dtype
// only where that one alone is meant. In the common subset of C and CUDA C++.
#ifndef SPOPS_CORE_DTYPES_H
#define SPOPS_CORE_DTYPES_H

#include <stdbool.h>

#include "spops/types.h"

// clang-format off
enum {
    SPOPS_NUM_DTYPES = 0
#define SPOPS_DTYPE(NAME, name, bits, c_type, device_type) + 1
#include "core/dtypes.def"
};
enum {
    SPOPS_NUM_FLOAT_DTYPES = 0 // which come first
#define SPOPS_DTYPE_FLOAT(NAME, name, bits, c_type, device_type) + 1
#include "core/dtypes.def"
};

// Sets: bits 1 << dtype.
enum {
    SPOPS_DTYPES_FLOAT = 0 // f32 f16 bf16
#define SPOPS_DTYPE_FLOAT(NAME, name, bits, c_type, device_type) | 1 << SPOPS_DTYPE_##NAME
#include "core/dtypes.def"
};
enum {
    SPOPS_DTYPES_FLOAT8 = 0 // f8e4m3 f8e5m2
#define SPOPS_DTYPE_FLOAT8(NAME, name, bits, c_type, device_type) | 1 << SPOPS_DTYPE_##NAME
#include "core/dtypes.def"
};
enum {
    SPOPS_DTYPES_FLOAT4 = 0 // f4e2m1
#define SPOPS_DTYPE_FLOAT4(NAME, name, bits, c_type, device_type) | 1 << SPOPS_DTYPE_##NAME
#include "core/dtypes.def"
};
enum { SPOPS_DTYPES_REAL = (int)SPOPS_DTYPES_FLOAT | 1 << SPOPS_DTYPE_F64 }; // rows on the CPU
enum { SPOPS_DTYPES_NARROW = (int)SPOPS_DTYPES_FLOAT8 | (int)SPOPS_DTYPES_FLOAT4 };
// clang-format on

// Whether dtype, which may be no dtype, is one of the set.
static inline bool spops_dtype_in(spops_dtype dtype, unsigned set)
{
    return (unsigned)dtype < SPOPS_NUM_DTYPES && (set >> (unsigned)dtype & 1u) != 0;
}

// f32, f16 or bf16: what every operator takes.
static inline bool spops_dtype_is_float(spops_dtype dtype)
{
    return spops_dtype_in(dtype, SPOPS_DTYPES_FLOAT);
}

// The dtype that sums of rows are carried in, and what is f32 beside most rows has.
static inline spops_dtype spops_sum_dtype(spops_dtype dtype)
{
    return dtype == SPOPS_DTYPE_F64 ? SPOPS_DTYPE_F64 : SPOPS_DTYPE_F32;
}

// Codes of 8 or 4 bits.
static inline bool spops_dtype_is_narrow(spops_dtype dtype)
{
    return spops_dtype_in(dtype, SPOPS_DTYPES_NARROW);
}

// Two codes to a byte, and a scale for each block of SPOPS_BLOCK_COLS columns of a row.
static inline bool spops_dtype_is_packed(spops_dtype dtype)
{
    return spops_dtype_in(dtype, SPOPS_DTYPES_FLOAT4);
}

// Bits of an element; 0 for no dtype. Folds to a constant where dtype is one.
static inline int spops_dtype_bits(spops_dtype dtype)
{
    static const signed char bits_of[] = {
#define SPOPS_DTYPE(NAME, name, bits, c_type, device_type) bits,
#include "core/dtypes.def"
    };
    return (unsigned)dtype < SPOPS_NUM_DTYPES ? bits_of[dtype] : 0;
}

#endif
