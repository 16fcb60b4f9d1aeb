// SPDX-License-Identifier: Apache-2.0
// Rows of every dtype as lanes of f32, for code that is compiled once per instruction set
// (core/cpu_isa.h). Include it first. Functions take dtypes and widths as arguments that are
// constants where they are inlined, so that the compiler sees plain loops over columns and keeps
// accumulators in vector registers:
//
//     float acc[16], x[16];
//     spops_load_lanes(SPOPS_DTYPE_F16, 16, row, x);
//     #pragma omp simd
//     for (int c = 0; c < 16; ++c)
//         acc[c] += w * x[c];
//     spops_store_lanes(SPOPS_DTYPE_F16, 16, acc, out);
//
// What is defined in such a source is static but for its table: several copies of it are linked.
#ifndef SPOPS_CORE_SIMD_ROWS_H
#define SPOPS_CORE_SIMD_ROWS_H

#if defined(__GNUC__) && !defined(__clang__)
// Loops over columns become straight vector code. Jamming two terms into one pass, or a copy of the
// loop for each invariant condition, would take the accumulators out of their registers.
// Comparisons need not keep the floating-point exception flags; no value depends on any of these.
#pragma GCC optimize("no-loop-unroll-and-jam", "no-unswitch-loops", "no-trapping-math")
#ifdef __AVX512F__
#pragma GCC target("prefer-vector-width=512")
#endif
#elif defined(__clang__)
// Without optimization a loop marked `omp simd` stays as it is; that is no fault.
#pragma clang diagnostic ignored "-Wpass-failed"
#endif

#include <string.h>
#ifdef __F16C__
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "core/float8.h"
#include "core/matrix.h"

// A sanitizer multiplies this code; instances then share functions, with the choices made at run
// time.
#if defined(__SANITIZE_ADDRESS__)
#define SPOPS_INLINE static inline
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SPOPS_INLINE static inline
#endif
#endif
#ifndef SPOPS_INLINE
#define SPOPS_INLINE static inline __attribute__((always_inline))
#endif

// f32 lanes of a vector register.
#if defined(__AVX512F__)
#define SPOPS_SIMD_LANES 16
#elif defined(__AVX2__)
#define SPOPS_SIMD_LANES 8
#else
#define SPOPS_SIMD_LANES 4
#endif

// a * b + c, rounded once where the processor can; else twice. Sources are compiled without contraction,
// so that this alone makes instruction sets differ: those with it from those without.
SPOPS_INLINE float spops_multiply_add(float a, float b, float c)
{
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

// ---- One element --------------------------------------------------------------------------------

SPOPS_INLINE size_t spops_element_bytes(int dtype)
{
    return (size_t)spops_dtype_bits((spops_dtype)dtype) / 8;
}

// NULL of a matrix without memory, which has no rows.
SPOPS_INLINE const char *spops_element(int dtype, spops_matrix m, int64_t row, int64_t col)
{
    if (m.data == NULL) return NULL;
    return (const char *)m.data + (size_t)(row * m.row_stride + col) * spops_element_bytes(dtype);
}

SPOPS_INLINE float spops_load_1(int dtype, const char *src)
{
#ifdef __F16C__
    if (dtype == SPOPS_DTYPE_F16) {
        uint16_t half;
        memcpy(&half, src, sizeof half);
        return _cvtsh_ss(half);
    }
#endif
#define LOAD(NAME, name, bits, c_type, device_type)                                                \
    if (dtype == SPOPS_DTYPE_##NAME) {                                                             \
        c_type element;                                                                            \
        memcpy(&element, src, sizeof element);                                                     \
        return spops_float_of_##name(element);                                                     \
    }
#define SPOPS_DTYPE_FLOAT  LOAD
#define SPOPS_DTYPE_FLOAT8 LOAD
#include "core/dtypes.def"
#undef LOAD
    return 0.0f;
}

// The code of f in a dtype of 16 or 8 bits.
SPOPS_INLINE uint32_t spops_encode_1(int dtype, float f)
{
#ifdef __F16C__
    if (dtype == SPOPS_DTYPE_F16)
        return _cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#endif
#define ENCODE(NAME, name, bits, c_type, device_type)                                              \
    if (dtype == SPOPS_DTYPE_##NAME && (bits) < 32) return (uint32_t)spops_##name##_of_float(f);
#define SPOPS_DTYPE_FLOAT  ENCODE
#define SPOPS_DTYPE_FLOAT8 ENCODE
#include "core/dtypes.def"
#undef ENCODE
    return 0;
}

SPOPS_INLINE void spops_store_1(int dtype, float f, char *dst)
{
    if (dtype == SPOPS_DTYPE_F32) {
        memcpy(dst, &f, sizeof f);
    } else if (spops_element_bytes(dtype) == 2) {
        const uint16_t half = (uint16_t)spops_encode_1(dtype, f);
        memcpy(dst, &half, sizeof half);
    } else {
        *dst = (char)spops_encode_1(dtype, f);
    }
}

// The values of 8-bit codes: faster than arithmetic for one element alone.
#define SPOPS_CODES_4(f, c) f(c), f((c) + 1), f((c) + 2), f((c) + 3)
#define SPOPS_CODES_16(f, c)                                                                       \
    SPOPS_CODES_4(f, c), SPOPS_CODES_4(f, (c) + 4), SPOPS_CODES_4(f, (c) + 8),                     \
        SPOPS_CODES_4(f, (c) + 12)
#define SPOPS_CODES_64(f, c)                                                                       \
    SPOPS_CODES_16(f, c), SPOPS_CODES_16(f, (c) + 16), SPOPS_CODES_16(f, (c) + 32),                \
        SPOPS_CODES_16(f, (c) + 48)
#define SPOPS_CODES_256(f)                                                                         \
    SPOPS_CODES_64(f, 0), SPOPS_CODES_64(f, 64), SPOPS_CODES_64(f, 128), SPOPS_CODES_64(f, 192)
#define SPOPS_DTYPE_FLOAT8(NAME, name, bits, c_type, device_type)                                  \
    static const float spops_##name##_values[256] = {SPOPS_CODES_256(SPOPS_##NAME##_VALUE)};
#include "core/dtypes.def"

// The table of an 8-bit dtype, or NULL.
SPOPS_INLINE const float *spops_code_values(spops_dtype dtype)
{
#define SPOPS_DTYPE_FLOAT8(NAME, name, bits, c_type, device_type)                                  \
    if (dtype == SPOPS_DTYPE_##NAME) return spops_##name##_values;
#include "core/dtypes.def"
    return NULL;
}

// ---- `width` neighbouring elements of a row -----------------------------------------------------

#ifdef __F16C__
// f8 by way of f16, whose exponent is as wide as that of e5m2 and wider than that of e4m3. Sixteen
// f16 of as many codes; for e4m3 they are 2^-8 of the values.
SPOPS_INLINE __m256i spops_f16_of_f8(int dtype, const char *src)
{
    const __m128i codes = _mm_loadu_si128((const __m128i *)(const void *)src);
    if (dtype == SPOPS_DTYPE_F8E5M2) return _mm256_slli_epi16(_mm256_cvtepu8_epi16(codes), 8);
    const __m256i moved = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
    const __m256i finite = _mm256_and_si256(moved, _mm256_set1_epi16((int16_t)0xbf80));
    const __m128i nan =
        _mm_cmpeq_epi8(_mm_or_si128(codes, _mm_set1_epi8((char)0x80)), _mm_set1_epi8((char)0xff));
    const __m256i exponent = _mm256_and_si256(_mm256_cvtepi8_epi16(nan), _mm256_set1_epi16(0x7e00));
    return _mm256_or_si256(finite, exponent);
}

SPOPS_INLINE void spops_load_16_f8(int dtype, const char *src, float *dst)
{
    const __m256i half = spops_f16_of_f8(dtype, src);
#ifdef __AVX512F__
    __m512 v = _mm512_cvtph_ps(half);
    if (dtype == SPOPS_DTYPE_F8E4M3) v = _mm512_mul_ps(v, _mm512_set1_ps(0x1p8f));
    _mm512_storeu_ps(dst, v);
#else
    __m256 low = _mm256_cvtph_ps(_mm256_castsi256_si128(half));
    __m256 high = _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1));
    if (dtype == SPOPS_DTYPE_F8E4M3) {
        low = _mm256_mul_ps(low, _mm256_set1_ps(0x1p8f));
        high = _mm256_mul_ps(high, _mm256_set1_ps(0x1p8f));
    }
    _mm256_storeu_ps(dst, low);
    _mm256_storeu_ps(dst + 8, high);
#endif
}
#endif

SPOPS_INLINE void spops_load_lanes(int dtype, int width, const char *src, float *dst)
{
    const size_t bytes = spops_element_bytes(dtype);
    int c = 0;
#ifdef __F16C__
    if (dtype == SPOPS_DTYPE_F16) {
#ifdef __AVX512F__
        for (; c + 16 <= width; c += 16) {
            const __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)(src + 2 * c));
            _mm512_storeu_ps(dst + c, _mm512_cvtph_ps(half));
        }
#endif
        for (; c + 8 <= width; c += 8) {
            const __m128i half = _mm_loadu_si128((const __m128i *)(const void *)(src + 2 * c));
            _mm256_storeu_ps(dst + c, _mm256_cvtph_ps(half));
        }
        for (; c + 4 <= width; c += 4) {
            const __m128i half = _mm_loadl_epi64((const __m128i *)(const void *)(src + 2 * c));
            _mm_storeu_ps(dst + c, _mm_cvtph_ps(half));
        }
    }
    if (dtype == SPOPS_DTYPE_BF16) { // the upper halves of f32
#ifdef __AVX512F__
        for (; c + 16 <= width; c += 16) {
            const __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)(src + 2 * c));
            _mm512_storeu_si512(dst + c, _mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
        }
#endif
        for (; c + 8 <= width; c += 8) {
            const __m128i half = _mm_loadu_si128((const __m128i *)(const void *)(src + 2 * c));
            _mm256_storeu_si256((__m256i *)(void *)(dst + c),
                                _mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
        }
    }
    if (dtype == SPOPS_DTYPE_F8E4M3 || dtype == SPOPS_DTYPE_F8E5M2) {
        for (; c + 16 <= width; c += 16)
            spops_load_16_f8(dtype, src + c, dst + c);
    }
#elif defined(__aarch64__)
    if (dtype == SPOPS_DTYPE_F16) {
        for (; c + 4 <= width; c += 4) {
            uint16x4_t half;
            memcpy(&half, src + 2 * c, sizeof half);
            vst1q_f32(dst + c, vcvt_f32_f16(vreinterpret_f16_u16(half)));
        }
    }
#endif
#pragma omp simd
    for (int i = c; i < width; ++i)
        dst[i] = spops_load_1(dtype, src + (size_t)i * bytes);
}

#ifdef __AVX512F__
// Sixteen codes of an f8 dtype, as float8.h has them. A power of two that is 2^23 of the codes'
// spacing at v, added, leaves v rounded in the last bits of the sum.
SPOPS_INLINE __m128i spops_f8_of_16(int dtype, __m512 v)
{
    const int fraction = dtype == SPOPS_DTYPE_F8E4M3 ? 3 : 2;
    const float largest = dtype == SPOPS_DTYPE_F8E4M3 ? SPOPS_F8E4M3_MAX : SPOPS_F8E5M2_MAX;
    const float least = dtype == SPOPS_DTYPE_F8E4M3 ? 0x1p-6f : 0x1p-14f; // normal number
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i least_bits = _mm512_castps_si512(_mm512_set1_ps(least));
    const __m512i m = _mm512_min_epu32(_mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)),
                                       _mm512_castps_si512(_mm512_set1_ps(largest)));
    const __m512i exponent =
        _mm512_max_epu32(_mm512_and_si512(m, _mm512_set1_epi32(0x7f800000)), least_bits);
    const __m512i magic = _mm512_add_epi32(exponent, _mm512_set1_epi32((23 - fraction) << 23));
    const __m512i sum =
        _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(m), _mm512_castsi512_ps(magic)));
    const __m512i binade =
        _mm512_srli_epi32(_mm512_sub_epi32(exponent, least_bits), 23 - (unsigned)fraction);
    const __m512i code = _mm512_add_epi32(binade, _mm512_sub_epi32(sum, magic));
    const __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi8(
        _mm512_mask_mov_epi32(_mm512_or_si512(code, sign), nan, _mm512_set1_epi32(0x7f)));
}
#endif

// Sixteen codes of 16 or 8 bits, first as words and then narrowed: loops over wider blocks of narrow
// elements would leave the rest of a block to scalar code.
SPOPS_INLINE void spops_store_16(int dtype, const float *src, char *dst)
{
    uint32_t codes[16];
    uint16_t halves[16];
    uint8_t bytes[16];
#ifdef __AVX512F__
    if (dtype == SPOPS_DTYPE_F8E4M3 || dtype == SPOPS_DTYPE_F8E5M2) {
        _mm_storeu_si128((__m128i *)(void *)dst, spops_f8_of_16(dtype, _mm512_loadu_ps(src)));
        return;
    }
#endif
#pragma omp simd
    for (int c = 0; c < 16; ++c)
        codes[c] = spops_encode_1(dtype, src[c]);
    if (spops_element_bytes(dtype) == 2) {
#pragma omp simd
        for (int c = 0; c < 16; ++c)
            halves[c] = (uint16_t)codes[c];
        memcpy(dst, halves, sizeof halves);
    } else {
#pragma omp simd
        for (int c = 0; c < 16; ++c)
            bytes[c] = (uint8_t)codes[c];
        memcpy(dst, bytes, sizeof bytes);
    }
}

SPOPS_INLINE void spops_store_lanes(int dtype, int width, const float *src, char *dst)
{
    const size_t bytes = spops_element_bytes(dtype);
    int c = 0;
#ifdef __F16C__
    if (dtype == SPOPS_DTYPE_F16) {
        enum { rounding = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };
#ifdef __AVX512F__
        for (; c + 16 <= width; c += 16) {
            const __m256i half = _mm512_cvtps_ph(_mm512_loadu_ps(src + c), rounding);
            _mm256_storeu_si256((__m256i *)(void *)(dst + 2 * c), half);
        }
#endif
        for (; c + 8 <= width; c += 8) {
            const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(src + c), rounding);
            _mm_storeu_si128((__m128i *)(void *)(dst + 2 * c), half);
        }
    }
#elif defined(__aarch64__)
    if (dtype == SPOPS_DTYPE_F16) {
        for (; c + 4 <= width; c += 4) {
            const uint16x4_t half = vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(src + c)));
            memcpy(dst + 2 * c, &half, sizeof half);
        }
    }
#endif
    if (dtype == SPOPS_DTYPE_BF16 || spops_element_bytes(dtype) == 1) {
        for (; c + 16 <= width; c += 16)
            spops_store_16(dtype, src + c, dst + (size_t)c * bytes);
    }
#pragma omp simd
    for (int i = c; i < width; ++i)
        spops_store_1(dtype, src[i], dst + (size_t)i * bytes);
}

// 16 columns of an f4e2m1 row, times their block scale.
SPOPS_INLINE void spops_load_16_f4(const char *src, float scale, float *dst)
{
#ifdef __AVX512F__
    // Lane i holds the word with its code, shifted by its place; of an index only the last four
    // bits count.
    static const float values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                     -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
    const __m512i word = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m512i place =
        _mm512_set_epi32(28, 24, 20, 16, 12, 8, 4, 0, 28, 24, 20, 16, 12, 8, 4, 0);
    const __m128i codes = _mm_loadl_epi64((const __m128i *)(const void *)src);
    const __m512i index =
        _mm512_srlv_epi32(_mm512_permutexvar_epi32(word, _mm512_castsi128_si512(codes)), place);
    const __m512 v = _mm512_permutexvar_ps(index, _mm512_loadu_ps(values));
    _mm512_storeu_ps(dst, _mm512_mul_ps(v, _mm512_set1_ps(scale)));
#elif defined(__F16C__)
    // The upper halves of f16: their lower ones are zero.
    const __m128i values =
        _mm_set_epi8((char)0xc6, (char)0xc4, (char)0xc2, (char)0xc0, (char)0xbe, (char)0xbc,
                     (char)0xb8, (char)0x80, 0x46, 0x44, 0x42, 0x40, 0x3e, 0x3c, 0x38, 0x00);
    const __m128i codes = _mm_loadl_epi64((const __m128i *)(const void *)src);
    const __m128i mask = _mm_set1_epi8(0x0f);
    const __m128i even = _mm_and_si128(codes, mask);
    const __m128i odd = _mm_and_si128(_mm_srli_epi16(codes, 4), mask);
    const __m128i upper = _mm_shuffle_epi8(values, _mm_unpacklo_epi8(even, odd));
    const __m128i zero = _mm_setzero_si128();
    const __m256 s = _mm256_set1_ps(scale);
    _mm256_storeu_ps(dst, _mm256_mul_ps(_mm256_cvtph_ps(_mm_unpacklo_epi8(zero, upper)), s));
    _mm256_storeu_ps(dst + 8, _mm256_mul_ps(_mm256_cvtph_ps(_mm_unpackhi_epi8(zero, upper)), s));
#else
    for (int c = 0; c < SPOPS_BLOCK_COLS; ++c)
        dst[c] = scale * spops_float_of_f4e2m1((uint8_t)((uint8_t)src[c / 2] >> c % 2 * 4));
#endif
}

// ---- As many elements as are known at run time, in steps whose width is a constant ---------------

SPOPS_INLINE void spops_load_row(int dtype, const char *src, int64_t n, float *dst)
{
    const size_t bytes = spops_element_bytes(dtype);
    int64_t c = 0;
    for (; c + SPOPS_SIMD_LANES <= n; c += SPOPS_SIMD_LANES)
        spops_load_lanes(dtype, SPOPS_SIMD_LANES, src + (size_t)c * bytes, dst + c);
    for (; c < n; ++c)
        dst[c] = spops_load_1(dtype, src + (size_t)c * bytes);
}

SPOPS_INLINE void spops_store_row(int dtype, const float *src, int64_t n, char *dst)
{
    const size_t bytes = spops_element_bytes(dtype);
    int64_t c = 0;
    for (; c + SPOPS_SIMD_LANES <= n; c += SPOPS_SIMD_LANES)
        spops_store_lanes(dtype, SPOPS_SIMD_LANES, src + c, dst + (size_t)c * bytes);
    for (; c < n; ++c)
        spops_store_1(dtype, src[c], dst + (size_t)c * bytes);
}

// n of `width` lanes, which are 16; those after them get pad.
SPOPS_INLINE void spops_load_part(int dtype, int width, const char *src, int n, float pad,
                                  float *dst)
{
    const size_t bytes = spops_element_bytes(dtype);
    int c = 0;
    if (n == width) {
        spops_load_lanes(dtype, width, src, dst);
        return;
    }
    if (c + 8 <= n) {
        spops_load_lanes(dtype, 8, src, dst);
        c = 8;
    }
    if (c + 4 <= n) {
        spops_load_lanes(dtype, 4, src + (size_t)c * bytes, dst + c);
        c += 4;
    }
    for (; c < n; ++c)
        dst[c] = spops_load_1(dtype, src + (size_t)c * bytes);
    for (; c < width; ++c)
        dst[c] = pad;
}

#endif
