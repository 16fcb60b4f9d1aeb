// SPDX-License-Identifier: Apache-2.0
// Dtypes by name, and f16 and bf16 as bits, for benchmarks and tools. The conversions are apart from
// the library's (src/core/half.h) on purpose: results of the library are checked with them. Tests
// have a third form, in f64 and for every dtype (tests/support/values.c).
#ifndef SPOPS_SUPPORT_ELEMENTS_H
#define SPOPS_SUPPORT_ELEMENTS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "spops/types.h"

// Codes of 8 or 4 bits; weights and output of such rows are f16.
static inline bool elements_narrow(spops_dtype dtype)
{
    switch (dtype) {
#define SPOPS_DTYPE_FLOAT8(NAME, name, bits, c_type, device_type) case SPOPS_DTYPE_##NAME:
#define SPOPS_DTYPE_FLOAT4(NAME, name, bits, c_type, device_type) case SPOPS_DTYPE_##NAME:
#include "src/core/dtypes.def"
        return true;
    default: return false;
    }
}

// A dtype's name in commands: f4e2m1 with its block scales is nvfp4.
static inline const char *elements_name(spops_dtype dtype)
{
    return dtype == SPOPS_DTYPE_F4E2M1 ? "nvfp4" : spops_dtype_name(dtype);
}

// The float dtype of that name; false if it is none.
static inline bool elements_find(const char *text, spops_dtype *dtype)
{
    static const spops_dtype floats[] = {
#define SPOPS_DTYPE(NAME, name, bits, c_type, device_type) SPOPS_DTYPE_##NAME,
#define SPOPS_DTYPE_INT(NAME, name, bits, c_type, device_type)
#include "src/core/dtypes.def"
    };
    for (size_t i = 0; i < sizeof floats / sizeof *floats; ++i) {
        if (strcmp(text, elements_name(floats[i])) != 0) continue;
        *dtype = floats[i];
        return true;
    }
    return false;
}

static inline float elements_float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t elements_bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float elements_float_of_bf16(uint16_t b)
{
    return elements_float_of_bits((uint32_t)b << 16);
}

static inline float elements_float_of_f16(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t exponent = (h >> 10) & 31u, mantissa = h & 0x3ffu;
    if (exponent == 0) { // zero and subnormal numbers
        const float magnitude = (float)mantissa * 0x1p-24f;
        return sign != 0 ? -magnitude : magnitude;
    }
    if (exponent == 31) return elements_float_of_bits(sign | 0x7f800000u | mantissa << 13);
    return elements_float_of_bits(sign | (exponent + 112u) << 23 | mantissa << 13);
}

// To nearest, ties to even.
static inline uint16_t elements_f16_of_float(float value)
{
    const uint32_t bits = elements_bits_of_float(value);
    const uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);  // NaN
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); // rounds past the largest
    if (magnitude < 0x38800000u) { // subnormal: the addition rounds to multiples of 2^-24
        const float scaled = elements_float_of_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (elements_bits_of_float(scaled) - 0x3f000000u));
    }
    const uint32_t odd = (magnitude >> 13) & 1u;
    return (uint16_t)(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

static inline uint16_t elements_bf16_of_float(float value)
{
    const uint32_t bits = elements_bits_of_float(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u); // NaN
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

#endif
