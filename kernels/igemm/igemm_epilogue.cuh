// SPDX-License-Identifier: Apache-2.0
// What happens to a tile's sums before they are rows of the output: bias, scale and shift of each
// column, a residual row, an activation, rounding. Sums lie in registers as the matrix units leave them.
#ifndef SPOPS_KERNELS_IGEMM_IGEMM_EPILOGUE_CUH
#define SPOPS_KERNELS_IGEMM_IGEMM_EPILOGUE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "core/matrix.h"
#include "igemm/igemm_args.h"
#include "kernels/core/activation.cuh"
#include "kernels/core/matrix_units.cuh"

namespace spops
{

struct epilogue_params {
    void *out;
    const void *residual;
    int64_t out_stride, residual_stride; // in numbers
    const float *bias, *scale, *shift;
    int cols;
    int x_bytes; // of a number of x
    spops_activated activated;
    bool in_f32;        // out and residual are f32, else numbers of T
    bool exact;         // the activation has the same bits in tiles of all widths, and those of f32
    bool plain;         // none of residual, bias, scale, shift, activation
    bool wide;          // out's rows are aligned to 16 bytes and cols is a multiple of 8
    bool residual_wide; // the same of residual
};

inline epilogue_params epilogue_of(const spops_igemm_args *args)
{
    epilogue_params e = {};
    const spops_epilogue &given = args->epilogue;
    const spops_matrix &out = args->out, &residual = given.residual;
    e.out = out.data;
    e.residual = residual.data;
    e.out_stride = out.row_stride;
    e.residual_stride = residual.row_stride;
    e.bias = given.bias;
    e.scale = given.scale;
    e.shift = given.shift;
    e.cols = (int)out.cols;
    e.x_bytes = (int)spops_dtype_bytes(args->x.dtype);
    e.activated = given.activated;
    e.in_f32 = out.dtype == SPOPS_DTYPE_F32;
    e.exact = e.in_f32 || args->whole_sums;
    e.plain = spops_epilogue_is_empty(&given);
    e.wide = (uintptr_t)out.data % 16 == 0 && out.cols % 8 == 0 &&
             out.row_stride * spops_dtype_bytes(out.dtype) % 16 == 0;
    e.residual_wide = (uintptr_t)residual.data % 16 == 0 && out.cols % 8 == 0 &&
                      residual.row_stride * spops_dtype_bytes(out.dtype) % 16 == 0;
    return e;
}

// Of p.rows, those that count, whose number may be on the device.
template <class P> __device__ __forceinline__ int rows_that_count(const P &p)
{
    return p.num_rows != nullptr ? min(__ldg(p.num_rows), p.rows) : p.rows;
}

template <class T> __device__ __forceinline__ float number_of(T v);
template <> __device__ __forceinline__ float number_of(__half v)
{
    return __half2float(v);
}
template <> __device__ __forceinline__ float number_of(__nv_bfloat16 v)
{
    return __bfloat162float(v);
}
template <> __device__ __forceinline__ float number_of(float v)
{
    return v;
}

template <class T> __device__ __forceinline__ T rounded(float v);
template <> __device__ __forceinline__ __half rounded(float v)
{
    return __float2half_rn(v);
}
template <> __device__ __forceinline__ __nv_bfloat16 rounded(float v)
{
    return __float2bfloat16_rn(v);
}
template <> __device__ __forceinline__ float rounded(float v)
{
    return v;
}

template <class T> __device__ __forceinline__ uint32_t rounded_pair(float low, float high);
template <> __device__ __forceinline__ uint32_t rounded_pair<__half>(float low, float high)
{
    const __half2 v = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t *>(&v);
}
template <> __device__ __forceinline__ uint32_t rounded_pair<__nv_bfloat16>(float low, float high)
{
    const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t *>(&v);
}

// v[j] of lane q of four becomes what was v[q] of lane j.
__device__ __forceinline__ void transpose_4(uint32_t (&v)[4], int q)
{
#pragma unroll
    for (int bit = 1; bit <= 2; bit *= 2) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (i & bit) continue;
            const int j = i | bit;
            const uint32_t got = __shfl_xor_sync(~0u, q & bit ? v[i] : v[j], bit);
            if (q & bit)
                v[i] = got;
            else
                v[j] = got;
        }
    }
}

template <class T> __device__ __forceinline__ float2 numbers_of_pair(uint32_t bits);
template <> __device__ __forceinline__ float2 numbers_of_pair<__half>(uint32_t bits)
{
    return __half22float2(*reinterpret_cast<const __half2 *>(&bits));
}
template <> __device__ __forceinline__ float2 numbers_of_pair<__nv_bfloat16>(uint32_t bits)
{
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162 *>(&bits));
}

// What is loaded, and computed from `index`, after this takes no registers before it: there are
// hardly any beside the sums.
__device__ __forceinline__ void not_ahead(int &index)
{
    asm volatile("" : "+r"(index)::"memory");
}

// f(sum, number of its column) for all sums of a thread. Loads wait for nothing but each other, four
// pairs of columns at a time: one after the other they would take longer than the products.
template <int COLS, class F>
__device__ __forceinline__ void each_with_column(const epilogue_params &p, const float *numbers,
                                                 float (&sum)[COLS / 2], int col, int q, const F &f)
{
    constexpr int at_once = COLS == 32 ? 2 : 4;
    const float *const from = numbers + col + 2 * q;
    int left = p.cols - col - 2 * q; // numbers from there on
#pragma unroll
    for (int begin = 0; begin < COLS / 8; begin += at_once) {
        float got[2 * at_once];
#pragma unroll
        for (int i = 0; i < 2 * at_once; ++i) {
            const int at = 8 * (begin + i / 2) + i % 2;
            got[i] = 0.0f;
            if (at < left) got[i] = __ldg(from + at);
        }
#pragma unroll
        for (int i = 0; i < 4 * at_once; ++i)
            f(sum[4 * begin + i], got[i / 4 * 2 + i % 2]);
        not_ahead(left);
    }
}

// The same of numbers in shared memory, at address `from`, of all columns that the tile has.
template <int COLS, class F>
__device__ __forceinline__ void each_with_kept(uint32_t from, float (&sum)[COLS / 2], int q,
                                               const F &f)
{
    constexpr int at_once = COLS == 32 ? 2 : 4;
    int at = (int)from + 8 * q;
#pragma unroll
    for (int begin = 0; begin < COLS / 8; begin += at_once) {
        uint2 got[at_once];
#pragma unroll
        for (int i = 0; i < at_once; ++i)
            got[i] = load_shared2((uint32_t)at + 32 * (begin + i));
#pragma unroll
        for (int i = 0; i < 4 * at_once; ++i)
            f(sum[4 * begin + i], __uint_as_float(i % 2 == 0 ? got[i / 4].x : got[i / 4].y));
        not_ahead(at);
    }
}

// Numbers of a row, as those of a thread's columns follow each other from `from` on; `left` of them are
// there. A number at a time: rows like these are few.
template <class R, int COLS>
__device__ __forceinline__ void add_numbers(float (&sum)[COLS / 2], int h, const R *from, int left)
{
#pragma unroll
    for (int j = 0; j < COLS / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
            if (8 * j + i < left) sum[4 * j + 2 * h + i] += number_of<R>(from[8 * j + i]);
        not_ahead(left);
    }
}

// Whether a residual is read as store_sums writes: a lane loads 8 columns of each 32, and the four lanes of a row exchange
// them.
template <class T> __device__ __forceinline__ bool residual_in_chunks(const epilogue_params &p)
{
    return sizeof(T) == 2 && p.residual_wide && !p.in_f32;
}

// N groups of 32 columns of a row, from column col on.
template <class T, int N>
__device__ __forceinline__ void ask_for_chunks(const epilogue_params &p, uint4 (&got)[N], int row,
                                               int col, int q)
{
    const T *const from =
        static_cast<const T *>(p.residual) + (int64_t)max(row, 0) * p.residual_stride;
#pragma unroll
    for (int j = 0; j < N; ++j) {
        const int c = col + 8 * (4 * j + q);
        got[j] = make_uint4(0, 0, 0, 0);
        if (row >= 0 && c < p.cols) got[j] = *reinterpret_cast<const uint4 *>(from + c);
    }
}

// Those to the sums of row h in groups `begin` and following; all four lanes of a row.
template <class T, int N, int NUM>
__device__ __forceinline__ void add_chunks(float (&sum)[NUM], int h, int begin,
                                           const uint4 (&got)[N], int q)
{
#pragma unroll
    for (int j = 0; j < N; ++j) {
        uint32_t v[4] = {got[j].x, got[j].y, got[j].z, got[j].w};
        transpose_4(v, q);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 pair = numbers_of_pair<T>(v[i]);
            sum[4 * (4 * (begin + j) + i) + 2 * h] += pair.x;
            sum[4 * (4 * (begin + j) + i) + 2 * h + 1] += pair.y;
        }
    }
}

// One row h of a thread's two; all four lanes of a row.
template <class T, int COLS>
__device__ __forceinline__ void add_residual(const epilogue_params &p, float (&sum)[COLS / 2],
                                             int h, int row, int col, int q)
{
    if constexpr (sizeof(T) == 2) {
        if (residual_in_chunks<T>(p)) {
            constexpr int at_once = COLS > 128 ? 8 : COLS % 64 == 0 ? 2 : 1;
#pragma unroll
            for (int begin = 0; begin < COLS / 32; begin += at_once) {
                uint4 got[at_once];
                ask_for_chunks<T>(p, got, row, col + 32 * begin, q);
                add_chunks<T>(sum, h, begin, got, q);
                not_ahead(col);
            }
            return;
        }
    }
    const int64_t first = (int64_t)max(row, 0) * p.residual_stride + col + 2 * q;
    const int left = row < 0 ? 0 : p.cols - col - 2 * q;
    if (p.in_f32)
        add_numbers<float, COLS>(sum, h, static_cast<const float *>(p.residual) + first, left);
    else
        add_numbers<T, COLS>(sum, h, static_cast<const T *>(p.residual) + first, left);
}

// What passes L2 once: it goes before rows and weights, which are read again.
__device__ __forceinline__ uint64_t passing_policy()
{
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ __forceinline__ int load_passing(const int *from, uint64_t policy)
{
    int v;
    asm("ld.global.nc.L2::cache_hint.b32 %0, [%1], %2;" : "=r"(v) : "l"(from), "l"(policy));
    return v;
}

__device__ __forceinline__ void store_passing(void *to, uint4 v, uint64_t policy)
{
    asm volatile("st.global.L2::cache_hint.v4.b32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(to), "r"(v.x),
                 "r"(v.y), "r"(v.z), "r"(v.w), "l"(policy)
                 : "memory");
}

// Bias, scale and shift, those that there are.
template <int COLS>
__device__ __forceinline__ void apply_vectors(const epilogue_params &p, float (&sum)[COLS / 2],
                                              int col, int q, uint32_t numbers)
{
    // Three steps of one code: unrolled, they take registers from the gather warps' loop.
#pragma unroll 1
    for (int step = 0; step < 3; ++step) {
        const float *const v = step == 0 ? p.bias : step == 1 ? p.scale : p.shift;
        if (v == nullptr) continue;
        const uint32_t kept = numbers + step * COLS * (int)sizeof(float);
        if (numbers != 0 && step == 1)
            each_with_kept<COLS>(kept, sum, q, [](float &a, float b) { a *= b; });
        else if (numbers != 0)
            each_with_kept<COLS>(kept, sum, q, [](float &a, float b) { a += b; });
        else if (step == 1)
            each_with_column<COLS>(p, v, sum, col, q, [](float &a, float b) { a *= b; });
        else
            each_with_column<COLS>(p, v, sum, col, q, [](float &a, float b) { a += b; });
    }
}

// Bias, scale and shift, and a residual that is read in chunks, AHEAD groups of 32 columns of both rows at once: the first come
// while the vectors are applied. Each time waits for L2, behind the rows of the next tile.
template <class T, int COLS, int AHEAD>
__device__ __forceinline__ void apply_with_chunks(const epilogue_params &p, float (&sum)[COLS / 2],
                                                  const int (&row)[2], int col, int q,
                                                  uint32_t numbers)
{
    static_assert(COLS / 32 % AHEAD == 0, "all are added, and no more");
    uint4 got[2][AHEAD];
    ask_for_chunks<T>(p, got[0], row[0], col, q);
    ask_for_chunks<T>(p, got[1], row[1], col, q);
    apply_vectors<COLS>(p, sum, col, q, numbers);
#pragma unroll
    for (int begin = 0; begin < COLS / 32; begin += AHEAD) {
        if (begin > 0) {
            ask_for_chunks<T>(p, got[0], row[0], col + 32 * begin, q);
            ask_for_chunks<T>(p, got[1], row[1], col + 32 * begin, q);
        }
        add_chunks<T>(sum, 0, begin, got[0], q);
        add_chunks<T>(sum, 1, begin, got[1], q);
        not_ahead(col);
    }
}

// (sum + bias) * scale + shift + residual, activation: what there is of it. Sums of rows and columns that
// are not there become something. AHEAD: of apply_with_chunks; 0: there are no registers for that.
template <class T, int COLS, int AHEAD>
__device__ __forceinline__ void finish_sums(const epilogue_params &p, float (&sum)[COLS / 2],
                                            const int (&row)[2], int col, int q, uint32_t numbers)
{
    bool rest = true;
    if constexpr (AHEAD > 0 && sizeof(T) == 2)
        if (p.residual != nullptr && residual_in_chunks<T>(p)) {
            apply_with_chunks<T, COLS, AHEAD>(p, sum, row, col, q, numbers);
            rest = false;
        }
    if (rest) {
        apply_vectors<COLS>(p, sum, col, q, numbers);
        if (p.residual != nullptr) {
            add_residual<T, COLS>(p, sum, 0, row[0], col, q);
            add_residual<T, COLS>(p, sum, 1, row[1], col, q);
        }
    }
    if constexpr (sizeof(T) == 2)
        activate_rounded_sums<T>(p.activated, p.exact, sum);
    else
        activate_sums(p.activated, sum);
}

// sum[4 j + 2 h + i] is row row[h] (-1: none), column col + 8 j + 2 q + i. All four lanes of a row
// must come here. numbers: where bias, scale and shift of COLS columns lie in shared memory; 0: they do not.
// AHEAD: of apply_with_chunks. PASSING: whole chunks leave L2 first.
template <class T, int COLS, int AHEAD = 0, bool PASSING = false>
__device__ __forceinline__ void store_sums(const epilogue_params &p, float (&sum)[COLS / 2],
                                           const int (&row)[2], int col, int q,
                                           uint32_t numbers = 0)
{
    if (!p.plain) finish_sums<T, COLS, AHEAD>(p, sum, row, col, q, numbers);
    const uint64_t policy = PASSING ? passing_policy() : 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int64_t at = (int64_t)row[h] * p.out_stride;
        if (p.in_f32) {
            float *out = static_cast<float *>(p.out) + at;
#pragma unroll
            for (int j = 0; j < COLS / 8; ++j) {
                const int c = col + 8 * j + 2 * q;
                const float low = sum[4 * j + 2 * h], high = sum[4 * j + 2 * h + 1];
                if (row[h] < 0 || c >= p.cols) continue;
                if (p.wide) {
                    *reinterpret_cast<float2 *>(out + c) = make_float2(low, high);
                } else {
                    out[c] = low;
                    if (c + 1 < p.cols) out[c + 1] = high;
                }
            }
        } else if constexpr (sizeof(T) == 2) {
            T *out = static_cast<T *>(p.out) + at;
            if (p.wide) {
                // Each lane gathers 8 columns of its own, so that a store fills whole sectors.
#pragma unroll
                for (int j = 0; j < COLS / 8; j += 4) {
                    uint32_t v[4];
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        v[i] =
                            rounded_pair<T>(sum[4 * (j + i) + 2 * h], sum[4 * (j + i) + 2 * h + 1]);
                    transpose_4(v, q);
                    const int c = col + 8 * (j + q);
                    if (row[h] >= 0 && c < p.cols) {
                        const uint4 chunk = make_uint4(v[0], v[1], v[2], v[3]);
                        if constexpr (PASSING)
                            store_passing(out + c, chunk, policy);
                        else
                            *reinterpret_cast<uint4 *>(out + c) = chunk;
                    }
                }
            } else {
#pragma unroll
                for (int j = 0; j < COLS / 8; ++j) {
                    const int c = col + 8 * j + 2 * q;
                    if (row[h] < 0) continue;
                    if (c < p.cols) out[c] = rounded<T>(sum[4 * j + 2 * h]);
                    if (c + 1 < p.cols) out[c + 1] = rounded<T>(sum[4 * j + 2 * h + 1]);
                }
            }
        }
    }
}

} // namespace spops

#endif
