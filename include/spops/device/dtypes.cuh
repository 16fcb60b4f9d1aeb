// SPDX-License-Identifier: Apache-2.0
/*
 * Element types in device code: how f32, f16 and bf16 rows are loaded, converted and stored. Does
 * without the toolkit's headers, so that NVRTC can compile it on a machine that has only drivers.
 */
#ifndef SPOPS_DEVICE_DTYPES_CUH
#define SPOPS_DEVICE_DTYPES_CUH

#include "spops/device/common.h"

namespace spops
{

struct f16 {
    uint16_t bits;
};
struct bf16 {
    uint16_t bits;
};

__device__ __forceinline__ float to_f32(float v)
{
    return v;
}
__device__ __forceinline__ float to_f32(f16 v)
{
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v.bits));
    return f;
}
__device__ __forceinline__ float to_f32(bf16 v)
{
    return __uint_as_float((uint32_t)v.bits << 16);
}

// Round to nearest, ties to even; NaN stays NaN.
template <class T> __device__ __forceinline__ T from_f32(float v);
template <> __device__ __forceinline__ float from_f32<float>(float v)
{
    return v;
}
template <> __device__ __forceinline__ f16 from_f32<f16>(float v)
{
    f16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(v));
    return h;
}
template <> __device__ __forceinline__ bf16 from_f32<bf16>(float v)
{
    bf16 h;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h.bits) : "f"(v));
#else
    const uint32_t u = __float_as_uint(v);
    h.bits = v != v ? (uint16_t)0x7fff : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
#endif
    return h;
}

// Two neighbouring elements in one 32-bit word, the lower one in the low half.
template <class T> __device__ __forceinline__ uint32_t pack2(float lo, float hi)
{
    return (uint32_t)from_f32<T>(lo).bits | (uint32_t)from_f32<T>(hi).bits << 16;
}
#if __CUDA_ARCH__ >= 800
template <> __device__ __forceinline__ uint32_t pack2<f16>(float lo, float hi)
{
    uint32_t word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(hi), "f"(lo));
    return word;
}
template <> __device__ __forceinline__ uint32_t pack2<bf16>(float lo, float hi)
{
    uint32_t word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(hi), "f"(lo));
    return word;
}
#endif

template <class T> __device__ __forceinline__ void unpack2(uint32_t word, float &lo, float &hi)
{
    T a, b;
    a.bits = (uint16_t)word;
    b.bits = (uint16_t)(word >> 16);
    lo = to_f32(a);
    hi = to_f32(b);
}

// The 16 bytes that begin `shift` bytes after the begin of low, where high are the 16 bytes after it.
__device__ __forceinline__ uint4 shift_words(const uint4 &low, const uint4 &high, uint32_t shift)
{
    uint32_t w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    if (shift & 8) {
#pragma unroll
        for (int i = 0; i < 6; ++i)
            w[i] = w[i + 2];
    }
    if (shift & 4) {
#pragma unroll
        for (int i = 0; i < 5; ++i)
            w[i] = w[i + 1];
    }
    const uint32_t bits = 8 * (shift & 3);
    return make_uint4(__funnelshift_r(w[0], w[1], bits), __funnelshift_r(w[1], w[2], bits),
                      __funnelshift_r(w[2], w[3], bits), __funnelshift_r(w[3], w[4], bits));
}

// 16 bytes of f32 elements, or of two-byte ones, as numbers and back.
template <class T, int VEC>
__device__ __forceinline__ void unpack_chunk(const uint4 &word, float (&v)[VEC])
{
    if constexpr (VEC == 4) {
        v[0] = __uint_as_float(word.x);
        v[1] = __uint_as_float(word.y);
        v[2] = __uint_as_float(word.z);
        v[3] = __uint_as_float(word.w);
    } else {
        unpack2<T>(word.x, v[0], v[1]);
        unpack2<T>(word.y, v[2], v[3]);
        unpack2<T>(word.z, v[4], v[5]);
        unpack2<T>(word.w, v[6], v[7]);
    }
}
template <class T, int VEC> __device__ __forceinline__ uint4 pack_chunk(const float (&v)[VEC])
{
    if constexpr (VEC == 4)
        return make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]),
                          __float_as_uint(v[3]));
    else
        return make_uint4(pack2<T>(v[0], v[1]), pack2<T>(v[2], v[3]), pack2<T>(v[4], v[5]),
                          pack2<T>(v[6], v[7]));
}

// VEC neighbouring elements of a row, as loaded: 16 bytes at once, or one element. Where FULL is
// false, n says how many of them exist (the last lane of a row may have fewer than VEC); the rest
// read as 0. FULL kernels serve rows without such a tail: a branch here would keep loads from
// overlapping.
template <class T, int VEC, bool FULL> struct row_chunk {
    static_assert(VEC * sizeof(T) == 16, "a chunk is 16 bytes, or one element");
    uint4 word;

    __device__ __forceinline__ void clear() { word = make_uint4(0, 0, 0, 0); }
    __device__ __forceinline__ void load(const T *p, int n, const void * = nullptr)
    {
        if (FULL || n >= VEC) {
            word = __ldg(reinterpret_cast<const uint4 *>(p));
        } else {
            T tail[VEC] = {};
#pragma unroll
            for (int j = 0; j < VEC - 1; ++j)
                if (j < n) tail[j] = p[j];
            word = *reinterpret_cast<const uint4 *>(tail);
        }
    }

    // The 16 bytes as they are, or as many elements as exist.
    __device__ __forceinline__ void store(T *p, int n) const
    {
        if (FULL || n >= VEC) {
            *reinterpret_cast<uint4 *>(p) = word;
        } else {
            const uint32_t words[4] = {word.x, word.y, word.z, word.w};
            constexpr int per_word = VEC / 4;
#pragma unroll
            for (int j = 0; j < VEC - 1; ++j) {
                if (j >= n) continue;
                if constexpr (per_word == 1) {
                    reinterpret_cast<uint32_t *>(p)[j] = words[j];
                } else {
                    reinterpret_cast<uint16_t *>(p)[j] = (uint16_t)(words[j / 2] >> 16 * (j % 2));
                }
            }
        }
    }

    __device__ __forceinline__ void get(float (&v)[VEC]) const
    {
        unpack_chunk<T>(word, v);
    }
    __device__ __forceinline__ void set(const float (&v)[VEC])
    {
        word = pack_chunk<T>(v);
    }
};

template <class T, bool FULL> struct row_chunk<T, 1, FULL> {
    T word;

    __device__ __forceinline__ void clear() { word = T(); }
    __device__ __forceinline__ void load(const T *p, int, const void * = nullptr) { word = *p; }
    __device__ __forceinline__ void store(T *p, int) const { *p = word; }
    __device__ __forceinline__ void get(float (&v)[1]) const { v[0] = to_f32(word); }
    __device__ __forceinline__ void set(const float (&v)[1]) { word = from_f32<T>(v[0]); }
};

// The same of a row of any length that begins anywhere. end is where the matrix ends, up to which
// bytes after the row may be read; without it none are, and the row begins on 16 bytes.
template <class T, int VEC> struct shifted_chunk {
    static_assert(VEC * sizeof(T) == 16, "a chunk is 16 bytes, or one element");
    uint4 word, next; // next: of a row that begins between two borders of 16 bytes
    uint32_t shift;   // bytes of word in front of the chunk
    int n;

    __device__ __forceinline__ void clear()
    {
        word = next = make_uint4(0, 0, 0, 0);
        shift = 0;
        n = VEC;
    }
    // Nothing here waits for what it loads: get shifts.
    __device__ __forceinline__ void load(const T *p, int count, const void *end = nullptr)
    {
        const unsigned long long at = reinterpret_cast<unsigned long long>(p);
        const uint4 *from = reinterpret_cast<const uint4 *>(at - at % 16);
        clear();
        n = count;
        shift = (uint32_t)at & 15;
        if (end == nullptr) end = p + (count < VEC ? count : VEC);
        if (from + (shift != 0 ? 2 : 1) <= end) {
            word = __ldg(from);
            if (shift != 0) next = __ldg(from + 1);
            return;
        }
        T tail[VEC] = {};
#pragma unroll
        for (int j = 0; j < VEC; ++j)
            if (j < count) tail[j] = p[j];
        word = *reinterpret_cast<const uint4 *>(tail);
        shift = 0;
    }

    // The 16 bytes as they are, or as many elements as exist.
    __device__ __forceinline__ void store(T *p, int count) const
    {
        const uint4 own = shift != 0 ? shift_words(word, next, shift) : word;
        if (count >= VEC && reinterpret_cast<unsigned long long>(p) % 16 == 0) {
            *reinterpret_cast<uint4 *>(p) = own;
            return;
        }
        const uint32_t words[4] = {own.x, own.y, own.z, own.w};
#pragma unroll
        for (int j = 0; j < VEC; ++j) {
            if (j >= count) continue;
            if constexpr (VEC == 4)
                reinterpret_cast<uint32_t *>(p)[j] = words[j];
            else
                reinterpret_cast<uint16_t *>(p)[j] = (uint16_t)(words[j / 2] >> 16 * (j % 2));
        }
    }

    __device__ __forceinline__ void get(float (&v)[VEC]) const
    {
        unpack_chunk<T>(shift != 0 ? shift_words(word, next, shift) : word, v);
#pragma unroll
        for (int j = 1; j < VEC; ++j)
            v[j] = j < n ? v[j] : 0.0f;
    }
    __device__ __forceinline__ void set(const float (&v)[VEC])
    {
        clear();
        word = pack_chunk<T>(v);
    }
};

// The chunk of a kernel for whole chunks, or for any rows.
template <class T, int VEC, bool FULL> struct chunk_of {
    typedef shifted_chunk<T, VEC> type;
};
template <class T, int VEC> struct chunk_of<T, VEC, true> {
    typedef row_chunk<T, VEC, true> type;
};
template <class T> struct chunk_of<T, 1, false> {
    typedef row_chunk<T, 1, false> type;
};

// How a kernel reads its weights. ANY decides per load, from the dtype (spops_dtype); the others
// are for kernels where that costs too much.
enum weight_kind { WEIGHT_NONE = 0, WEIGHT_F32 = 1, WEIGHT_SAME = 2, WEIGHT_ANY = 3 };

template <int KIND, class T>
__device__ __forceinline__ float load_weight(const void *w, int dtype, int32_t i)
{
    if constexpr (KIND == WEIGHT_NONE) {
        return 1.0f;
    } else if constexpr (KIND == WEIGHT_F32) {
        return __ldg(static_cast<const float *>(w) + i);
    } else if constexpr (KIND == WEIGHT_SAME) {
        return to_f32(static_cast<const T *>(w)[i]);
    } else {
        if (w == nullptr) return 1.0f;
        if (dtype == 0) return static_cast<const float *>(w)[i];
        if (dtype == 1) return to_f32(static_cast<const f16 *>(w)[i]);
        return to_f32(static_cast<const bf16 *>(w)[i]);
    }
}

#ifndef __CUDACC_RTC__
// Columns a thread takes: 16 bytes where every row starts on 16 bytes and strides stay below 2^32
// bytes, else one element.
inline int chunk_elements(const void *data, int64_t row_stride, int64_t rows, size_t element_bytes)
{
    const uint64_t stride_bytes = rows <= 1 ? 0 : (uint64_t)row_stride * element_bytes;
    const bool wide = reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride_bytes % 16 == 0 &&
                      stride_bytes >> 32 == 0;
    return wide ? (int)(16 / element_bytes) : 1;
}
#endif

} // namespace spops

#endif
