// SPDX-License-Identifier: Apache-2.0
// f8e4m3, f8e5m2 and f4e2m1 as bits, without a branch, so that loops over rows vectorise; in the
// common subset of C and CUDA C++, for devices without instructions of their own. Encoding rounds
// to nearest even, keeps subnormals and the sign of zero, and saturates, infinities included. A NaN
// becomes 0x7f, whatever its sign and payload; f4e2m1 has none and takes its largest value for it.
#ifndef SPOPS_CORE_FLOAT8_H
#define SPOPS_CORE_FLOAT8_H

#include "core/dtypes.h"
#include "core/half.h"
#include "core/int8.h"

#define SPOPS_F8E4M3_MAX 448.0f
#define SPOPS_F8E5M2_MAX 57344.0f
#define SPOPS_F4E2M1_MAX 6.0f

// The value of an 8-bit code as a constant expression: fraction, with its leading one, and exponent
// as a product of powers of two that no step overflows.
#define SPOPS_F8_SIGN(c) ((c) < 128 ? 1.0f : -1.0f)
#define SPOPS_F8E4M3_VALUE(c)                                                                      \
    (((c)&127) == 127 ? __builtin_nanf("")                                                         \
                      : SPOPS_F8_SIGN(c) * 0x1p-10f * (float)(((c)&7) + ((c)&120 ? 8 : 0)) *       \
                            (float)(1 << ((c)&120 ? (c) >> 3 & 15 : 1)))
#define SPOPS_F8E5M2_VALUE(c)                                                                      \
    (((c)&127) > 124    ? __builtin_nanf("")                                                       \
     : ((c)&127) == 124 ? SPOPS_F8_SIGN(c) * __builtin_inff()                                      \
                        : SPOPS_F8_SIGN(c) * 0x1p-17f * (float)(((c)&3) + ((c)&124 ? 4 : 0)) *     \
                              (float)(1u << ((c)&124 ? (c) >> 2 & 31 : 1)))

// Code of a magnitude m (the bits of an f32) in a format with `mantissa` bits of fraction, without
// saturation. least is the smallest normal number; magic is 2^23 times the smallest subnormal one:
// added, it leaves m rounded in the last bits of the sum.
SPOPS_HD uint32_t spops_f8_round(uint32_t m, int mantissa, float least, float magic)
{
    const int shift = 23 - mantissa;
    const uint32_t least_bits = spops_bits_of_float(least);
    const uint32_t rebias = (least_bits >> shift) - (1u << mantissa); // its code is 1 << mantissa
    const uint32_t subnormal =
        spops_bits_of_float(spops_float_of_bits(m) + magic) - spops_bits_of_float(magic);
    const uint32_t normal = ((m + (1u << (shift - 1)) - 1u + (m >> shift & 1u)) >> shift) - rebias;
    return m < least_bits ? subnormal : normal;
}

SPOPS_HD uint8_t spops_f8e4m3_of_float(float f)
{
    const uint32_t bits = spops_bits_of_float(f), m = bits & 0x7fffffffu;
    uint32_t code = spops_f8_round(m, 3, 0x1p-6f, 0x1p14f);
    code = m >= 0x43e00000u ? 0x7eu : code; // 448
    code |= bits >> 24 & 0x80u;
    return (uint8_t)(m > 0x7f800000u ? 0x7fu : code);
}

SPOPS_HD uint8_t spops_f8e5m2_of_float(float f)
{
    const uint32_t bits = spops_bits_of_float(f), m = bits & 0x7fffffffu;
    uint32_t code = spops_f8_round(m, 2, 0x1p-14f, 0x1p7f);
    code = m >= 0x47600000u ? 0x7bu : code; // 57344
    code |= bits >> 24 & 0x80u;
    return (uint8_t)(m > 0x7f800000u ? 0x7fu : code);
}

SPOPS_HD uint8_t spops_f4e2m1_of_float(float f) // in the low four bits
{
    const uint32_t bits = spops_bits_of_float(f), m = bits & 0x7fffffffu;
    uint32_t code = spops_f8_round(m, 1, 1.0f, 0x1p22f);
    code = m >= 0x40c00000u ? 0x7u : code; // 6
    code |= bits >> 28 & 0x8u;
    return (uint8_t)(m > 0x7f800000u ? 0x7u : code);
}

// Subnormal codes count units of their own; no step here makes an f32 that is subnormal, which some
// processors are slow with.
SPOPS_HD float spops_float_of_f8e4m3(uint8_t code)
{
    const uint32_t m = code & 0x7fu;
    const uint32_t subnormal = spops_bits_of_float((float)(int32_t)m * 0x1p-9f);
    uint32_t bits = m < 8u ? subnormal : (m << 20) + (120u << 23);
    bits = m == 0x7fu ? 0x7fc00000u : bits;
    return spops_float_of_bits(bits | (uint32_t)(code & 0x80u) << 24);
}

SPOPS_HD float spops_float_of_f8e5m2(uint8_t code)
{
    const uint32_t m = code & 0x7fu;
    const uint32_t subnormal = spops_bits_of_float((float)(int32_t)m * 0x1p-16f);
    uint32_t bits = m < 4u ? subnormal : (m << 21) + (112u << 23);
    bits = m >= 0x7cu ? m << 21 | 0x7f800000u : bits; // infinity and NaN
    return spops_float_of_bits(bits | (uint32_t)(code & 0x80u) << 24);
}

SPOPS_HD float spops_float_of_f4e2m1(uint8_t code) // of the low four bits
{
    // Twice the values of the eight magnitudes, four bits each.
    const uint32_t twice = 0xc8643210u >> 4 * (code & 0x7u) & 0xfu;
    const uint32_t bits = spops_bits_of_float((float)(int32_t)twice * 0.5f);
    return spops_float_of_bits(bits | (uint32_t)(code & 0x8u) << 28);
}

// The largest value of a narrow dtype, or of i8; of 4-bit codes, times that of their block scales.
static inline float spops_largest_narrow(spops_dtype dtype)
{
    switch (dtype) {
#define SPOPS_DTYPE_FLOAT8(NAME, name, bits, c_type, device_type)                                  \
    case SPOPS_DTYPE_##NAME:                                                                       \
        return SPOPS_##NAME##_MAX;
#define SPOPS_DTYPE_FLOAT4(NAME, name, bits, c_type, device_type)                                  \
    case SPOPS_DTYPE_##NAME:                                                                       \
        return SPOPS_##NAME##_MAX * SPOPS_F8E4M3_MAX;
#include "core/dtypes.def"
    case SPOPS_DTYPE_I8: return SPOPS_I8_MAX;
    default: return 0.0f;
    }
}

#endif
