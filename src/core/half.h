// SPDX-License-Identifier: Apache-2.0
// f32, f16 and bf16 as their C types hold them (core/dtypes.def). f16 and bf16 as bits, without a
// branch, so that loops over rows vectorise on any processor. Both round to nearest even, keep
// subnormals, overflow to infinity and keep NaN a NaN. In the common subset of C and CUDA C++.
#ifndef SPOPS_CORE_HALF_H
#define SPOPS_CORE_HALF_H

#include <stdint.h>
#include <string.h>

#include "spops/device/common.h"

SPOPS_HD float spops_float_of_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

SPOPS_HD uint32_t spops_bits_of_float(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

SPOPS_HD float spops_float_of_f32(float f)
{
    return f;
}

SPOPS_HD float spops_f32_of_float(float f)
{
    return f;
}

#if defined(__aarch64__) && !defined(__CUDACC__)
// Every AArch64 converts in hardware.
SPOPS_HD float spops_float_of_f16(uint16_t h)
{
    __fp16 f;
    memcpy(&f, &h, sizeof f);
    return (float)f;
}

SPOPS_HD uint16_t spops_f16_of_float(float f)
{
    const __fp16 rounded = (__fp16)f;
    uint16_t h;
    memcpy(&h, &rounded, sizeof h);
    return h;
}
#else
SPOPS_HD float spops_float_of_f16(uint16_t h)
{
    const uint32_t magnitude = (uint32_t)(h & 0x7fffu) << 13;
    // The exponent is 112 too small; a product with 2^112 mends it, for subnormals as well.
    const uint32_t finite = spops_bits_of_float(spops_float_of_bits(magnitude) * 0x1p112f);
    const uint32_t special = magnitude | 0x7f800000u;
    const uint32_t bits = magnitude >= 0x0f800000u ? special : finite;
    return spops_float_of_bits(bits | (uint32_t)(h & 0x8000u) << 16);
}

SPOPS_HD uint16_t spops_f16_of_float(float f)
{
    const uint32_t bits = spops_bits_of_float(f);
    const uint32_t m = bits & 0x7fffffffu;
    // Adding 1/2 leaves a value below 2^-14 in the last bits of the sum, rounded as f16 would be.
    const uint32_t subnormal =
        spops_bits_of_float(spops_float_of_bits(m) + 0.5f) - spops_bits_of_float(0.5f);
    const uint32_t normal = (m - (112u << 23) + 0xfffu + (m >> 13 & 1u)) >> 13;
    const uint32_t nan = 0x7e00u | (m >> 13 & 0x3ffu);
    uint32_t h = m < 0x38800000u ? subnormal : normal; // 2^-14
    h = m >= 0x47800000u ? 0x7c00u : h;                // 2^16
    h = m > 0x7f800000u ? nan : h;
    return (uint16_t)(h | (bits >> 16 & 0x8000u));
}
#endif

SPOPS_HD float spops_float_of_bf16(uint16_t b)
{
    return spops_float_of_bits((uint32_t)b << 16);
}

SPOPS_HD uint16_t spops_bf16_of_float(float f)
{
    const uint32_t bits = spops_bits_of_float(f);
    const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    const uint32_t nan = bits >> 16 | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

#endif
