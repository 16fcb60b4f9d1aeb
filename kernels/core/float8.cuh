// SPDX-License-Identifier: Apache-2.0
// Rows of 16, 8 and 4 bits an element, widened to pairs of f16 (or kept as pairs of bf16) for
// tensor cores and for arithmetic, and rows of any float dtype stored from f32. Every code of an
// 8- or 4-bit dtype is an f16, so widening is exact.
#ifndef SPOPS_KERNELS_CORE_FLOAT8_CUH
#define SPOPS_KERNELS_CORE_FLOAT8_CUH

#include "core/float8.h"
#include "core/matrix.h"
#include "kernels/core/with_dtype.cuh"
#include "spops/device/dtypes.cuh"
#include "spops/types.h"

namespace spops
{

// Element types that have no arithmetic of their own.
struct f8e4m3 {
    uint8_t bits;
};
struct f8e5m2 {
    uint8_t bits;
};
struct f4e2m1 {
    uint8_t bits; // of two elements, the even one low
};

__device__ __forceinline__ uint32_t multiply2(uint32_t a, uint32_t b)
{
    uint32_t product;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
}

// Two neighbouring codes, the lower one in the low bits, as two f16.
__device__ __forceinline__ uint32_t widen2(f8e4m3, uint32_t codes)
{
#if __CUDA_ARCH__ >= 890
    uint32_t word;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(word) : "h"((uint16_t)codes));
    return word;
#else
    // As f16 the exponent is 8 too small; 0x7f is NaN.
    const uint32_t low = codes & 0x7fu, high = codes >> 8 & 0x7fu;
    uint32_t word = multiply2(low << 7 | high << 23, 0x5c005c00u);
    if (low == 0x7fu) word = (word & 0xffff0000u) | 0x7fffu;
    if (high == 0x7fu) word = (word & 0xffffu) | 0x7fff0000u;
    return word | (codes & 0x80u) << 8 | (codes & 0x8000u) << 16;
#endif
}
__device__ __forceinline__ uint32_t widen2(f8e5m2, uint32_t codes)
{
    return __byte_perm(codes, 0, 0x1404); // the upper half of an f16
}
__device__ __forceinline__ uint32_t widen2(f4e2m1, uint32_t codes)
{
    const uint32_t word =
        (codes & 0x7u) << 9 | (codes & 0x70u) << 21 | (codes & 0x8u) << 12 | (codes & 0x80u) << 24;
    return multiply2(word, 0x74007400u); // the exponent is 14 too small
}

// Four neighbouring codes as two words; halves of a register cost no shift this way.
template <class X>
__device__ __forceinline__ void widen4(X, uint32_t codes, uint32_t &low, uint32_t &high)
{
    low = widen2(X(), codes);
    high = widen2(X(), codes >> 16);
}
template <>
__device__ __forceinline__ void widen4(f8e5m2, uint32_t codes, uint32_t &low, uint32_t &high)
{
    low = __byte_perm(codes, 0, 0x1404);
    high = __byte_perm(codes, 0, 0x3424);
}
#if __CUDA_ARCH__ >= 890
template <>
__device__ __forceinline__ void widen4(f8e4m3, uint32_t codes, uint32_t &low, uint32_t &high)
{
    asm("{\n\t.reg .b16 a, b;\n\t"
        "mov.b32 {a, b}, %2;\n\t"
        "cvt.rn.f16x2.e4m3x2 %0, a;\n\t"
        "cvt.rn.f16x2.e4m3x2 %1, b;\n\t}"
        : "=r"(low), "=r"(high)
        : "r"(codes));
}
#endif

// How rows of X are read: eight neighbouring channels as loaded, and widened to words of two. `at`
// is the first one's place, which is even; n says how many exist where not FULL: the rest are 0.
// Loading and widening are apart so that a kernel can have many loads on their way before it
// touches what the first one brought.
template <class X> struct row_words {
    typedef X half_type; // of the words
    static constexpr int bits = 8 * sizeof(X);
    typedef uint4 codes8;

    template <bool FULL>
    static __device__ __forceinline__ codes8 load8(const uint8_t *row, int at, int n)
    {
        if (FULL) return __ldg(reinterpret_cast<const uint4 *>(row + at * 2));
        uint32_t words[4] = {};
        const uint16_t *from = reinterpret_cast<const uint16_t *>(row) + at;
        for (int j = 0; j < 8; ++j)
            if (j < n) words[j / 2] |= (uint32_t)from[j] << 16 * (j % 2);
        return make_uint4(words[0], words[1], words[2], words[3]);
    }
    // scale2: the block scale of these channels, twice, as f16; f4e2m1 alone has one.
    static __device__ __forceinline__ uint4 widen8(codes8 codes, uint32_t) { return codes; }
};

template <class X> struct narrow_row_words {
    typedef f16 half_type;
    static constexpr int bits = 8;
    typedef uint2 codes8;

    template <bool FULL>
    static __device__ __forceinline__ codes8 load8(const uint8_t *row, int at, int n)
    {
        if (FULL) return __ldg(reinterpret_cast<const uint2 *>(row + at));
        uint2 codes = make_uint2(0, 0);
        for (int j = 0; j < 8; ++j)
            if (j < n) (j < 4 ? codes.x : codes.y) |= (uint32_t)row[at + j] << 8 * (j % 4);
        return codes;
    }
    static __device__ __forceinline__ uint4 widen8(codes8 codes, uint32_t)
    {
        uint4 words;
        widen4(X(), codes.x, words.x, words.y);
        widen4(X(), codes.y, words.z, words.w);
        return words;
    }
};
template <> struct row_words<f8e4m3> : narrow_row_words<f8e4m3> {
};
template <> struct row_words<f8e5m2> : narrow_row_words<f8e5m2> {
};

template <> struct row_words<f4e2m1> {
    typedef f16 half_type;
    static constexpr int bits = 4;
    typedef uint32_t codes8;

    template <bool FULL>
    static __device__ __forceinline__ codes8 load8(const uint8_t *row, int at, int n)
    {
        if (FULL) return __ldg(reinterpret_cast<const uint32_t *>(row + at / 2));
        uint32_t codes = 0;
        for (int j = 0; j < 8; j += 2)
            if (j < n) codes |= (uint32_t)row[(at + j) / 2] << 4 * j;
        return codes;
    }
    static __device__ __forceinline__ uint4 widen8(codes8 codes, uint32_t scale2)
    {
        return make_uint4(multiply2(widen2(f4e2m1(), codes), scale2),
                          multiply2(widen2(f4e2m1(), codes >> 8), scale2),
                          multiply2(widen2(f4e2m1(), codes >> 16), scale2),
                          multiply2(widen2(f4e2m1(), codes >> 24), scale2));
    }
};

// The code of the block scale that counts for channel `at`, and that scale as two f16.
template <class X> __device__ __forceinline__ uint32_t load_scale(const uint8_t *scales, int at)
{
    return row_words<X>::bits == 4 ? __ldg(scales + at / 16) : 0;
}
__device__ __forceinline__ uint32_t widen_scale(uint32_t code)
{
    return widen2(f8e4m3(), code | code << 8);
}

// Two f32 as codes of an 8-bit dtype, saturating; NaN is 0x7f.
__device__ __forceinline__ uint32_t narrow2(f8e4m3, float low, float high)
{
#if __CUDA_ARCH__ >= 890
    uint16_t codes;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    return codes;
#else
    return spops_f8e4m3_of_float(low) | (uint32_t)spops_f8e4m3_of_float(high) << 8;
#endif
}
__device__ __forceinline__ uint32_t narrow2(f8e5m2, float low, float high)
{
#if __CUDA_ARCH__ >= 890
    uint16_t codes;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    return codes;
#else
    return spops_f8e5m2_of_float(low) | (uint32_t)spops_f8e5m2_of_float(high) << 8;
#endif
}

template <int WORDS>
__device__ __forceinline__ void store_aligned(uint8_t *to, const uint32_t (&word)[WORDS])
{
    if constexpr (WORDS == 1)
        *reinterpret_cast<uint32_t *>(to) = word[0];
    else if constexpr (WORDS == 2)
        *reinterpret_cast<uint2 *>(to) = make_uint2(word[0], word[1]);
    else
#pragma unroll
        for (int i = 0; i < WORDS; i += 4)
            *reinterpret_cast<uint4 *>(to + 4 * i) =
                make_uint4(word[i], word[i + 1], word[i + 2], word[i + 3]);
}

// COUNT f32 as words of T.
template <class T, int COUNT>
__device__ __forceinline__ void pack_values(const float (&v)[COUNT],
                                            uint32_t (&word)[COUNT * sizeof(T) / 4])
{
    constexpr int each = 4 / sizeof(T);
#pragma unroll
    for (int i = 0; i < COUNT / each; ++i) {
        if constexpr (each == 1)
            word[i] = __float_as_uint(v[i]);
        else if constexpr (each == 2)
            word[i] = pack2<T>(v[2 * i], v[2 * i + 1]);
        else
            word[i] = narrow2(T(), v[4 * i], v[4 * i + 1]) |
                      narrow2(T(), v[4 * i + 2], v[4 * i + 3]) << 16;
    }
}

// COUNT (2, 4 or 8) f32 to places `at` and on of a row of T, which are aligned to them (or to 16
// bytes).
template <class T, int COUNT>
__device__ __forceinline__ void store_values(uint8_t *row, int at, const float (&v)[COUNT])
{
    if constexpr (COUNT * sizeof(T) == 2) {
        *reinterpret_cast<uint16_t *>(row + at) = (uint16_t)narrow2(T(), v[0], v[1]);
    } else {
        uint32_t word[COUNT * sizeof(T) / 4];
        pack_values<T>(v, word);
        store_aligned(row + at * sizeof(T), word);
    }
}
// The same where FULL; else the first n of them, one by one.
template <bool FULL, class T, int COUNT>
__device__ __forceinline__ void store_some(uint8_t *row, int at, int n, const float (&v)[COUNT])
{
    if constexpr (FULL) {
        store_values<T>(row, at, v);
    } else {
        for (int i = 0; i < COUNT; ++i) {
            if (i >= n) return;
            if constexpr (sizeof(T) == 1)
                row[at + i] = (uint8_t)narrow2(T(), v[i], 0.0f);
            else
                reinterpret_cast<T *>(row)[at + i] = from_f32<T>(v[i]);
        }
    }
}

// To a row of a dtype that the kernel is told.
template <bool FULL, int COUNT>
__device__ __forceinline__ void store_row(int dtype, uint8_t *row, int at, int n,
                                          const float (&v)[COUNT])
{
    constexpr unsigned stored = SPOPS_DTYPES_FLOAT | SPOPS_DTYPES_FLOAT8;
    with_device_dtype<stored>(
        dtype, [&](auto tag) { store_some<FULL, typename decltype(tag)::type>(row, at, n, v); });
}

// A weight of a dtype that the kernel is told.
__device__ __forceinline__ float load_weight_f32(const void *w, int dtype, int64_t i)
{
    if (dtype == SPOPS_DTYPE_F32) return __ldg(static_cast<const float *>(w) + i);
    if (dtype == SPOPS_DTYPE_F16) return to_f32(static_cast<const f16 *>(w)[i]);
    if (dtype == SPOPS_DTYPE_BF16) return to_f32(static_cast<const bf16 *>(w)[i]);
    const uint32_t code = __ldg(static_cast<const uint8_t *>(w) + i);
    float value, other;
    unpack2<f16>(dtype == SPOPS_DTYPE_F8E4M3 ? widen2(f8e4m3(), code) : widen2(f8e5m2(), code),
                 value, other);
    return value;
}

// out = sum * feat_scale * depth_scale / out_scale, by a kernel that reads scales where it needs
// them, and so from L1 in most cases.
__device__ __forceinline__ float scale_of(const float *x, const float *w, const float *out)
{
    float scale = (x != nullptr ? *x : 1.0f) * (w != nullptr ? *w : 1.0f);
    return out != nullptr ? scale / *out : scale;
}

// The same by a kernel that loads scales long before: with other things that it waits for, or
// before it waits for the kernel that its own depends on. From L2, as L1 may have those of before.
struct loaded_scales {
    float x, w, out;

    __device__ __forceinline__ float product() const
    {
        const float scale = x * w;
        return out != 1.0f ? scale / out : scale;
    }
};
__device__ __forceinline__ float load_scale_or_one(const float *scale)
{
    float value = 1.0f;
    if (scale != nullptr) asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(value) : "l"(scale));
    return value;
}
__device__ __forceinline__ loaded_scales load_scales(const float *x, const float *w,
                                                     const float *out)
{
    return loaded_scales{load_scale_or_one(x), load_scale_or_one(w), load_scale_or_one(out)};
}

// Whether rows of x can be loaded `columns` (8 or 16) at a time, and those of out be stored eight
// at a time.
inline bool rows_in_chunks(const spops_matrix &x, const spops_matrix &out, int columns)
{
    const uint64_t x_chunk = (uint64_t)spops_elements_bytes(x.dtype, columns);
    const uint64_t out_chunk = spops_dtype_bytes(out.dtype) == 1 ? 8 : 16;
    const uint64_t x_align = x_chunk < 16 ? x_chunk : 16;
    return x.cols % columns == 0 && (uintptr_t)x.data % x_align == 0 &&
           (uint64_t)spops_elements_bytes(x.dtype, x.row_stride) % x_align == 0 &&
           (uintptr_t)out.data % out_chunk == 0 &&
           (uint64_t)spops_elements_bytes(out.dtype, out.row_stride) % out_chunk == 0;
}
inline bool rows_in_eights(const spops_matrix &x, const spops_matrix &out)
{
    return rows_in_chunks(x, out, 8);
}

} // namespace spops

#endif
