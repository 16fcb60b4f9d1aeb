// SPDX-License-Identifier: Apache-2.0
// Vectors of f32 for sources that are compiled once per instruction set (core/simd_rows.h), which multiply
// matrices in registers.
#ifndef SPOPS_CORE_SIMD_VEC_H
#define SPOPS_CORE_SIMD_VEC_H

#include "core/simd_rows.h"

#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

typedef float vec __attribute__((vector_size(4 * SPOPS_SIMD_LANES)));

SPOPS_INLINE vec load_vec(const float *p)
{
    vec v;
    memcpy(&v, p, sizeof v);
    return v;
}

SPOPS_INLINE void store_vec(float *p, vec v)
{
    memcpy(p, &v, sizeof v);
}

// x in every lane.
SPOPS_INLINE vec all_lanes(float x)
{
#if defined(__AVX512F__)
    return (vec)_mm512_set1_ps(x);
#elif defined(__AVX2__)
    return (vec)_mm256_set1_ps(x);
#else
    return (vec){x, x, x, x};
#endif
}

// sum + a * b, rounded once where the processor can. Said, and not left to the compiler: one that may fuse
// the two does so in some unrolled forms and not in others, and on AVX-512 but not on AVX2 (GCC 13).
SPOPS_INLINE vec add_product(vec sum, vec a, vec b)
{
#if defined(__AVX512F__)
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#elif defined(__AVX2__) && defined(__FMA__)
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#elif defined(__aarch64__)
    return (vec)vfmaq_f32((float32x4_t)sum, (float32x4_t)a, (float32x4_t)b);
#else
    return sum + a * b;
#endif
}

#endif
