// SPDX-License-Identifier: Apache-2.0
// What happens to a tile's sums before they are rows of the output: bias, scale and shift of each
// column, a residual row, ReLU, rounding. Sums lie in registers as the matrix units leave them.
#ifndef SPOPS_KERNELS_MVMR_IGEMM_EPILOGUE_CUH
#define SPOPS_KERNELS_MVMR_IGEMM_EPILOGUE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "core/matrix.h"

namespace spops
{

struct epilogue_params {
    void *out;
    const void *residual;
    int64_t out_stride, residual_stride; // in numbers
    const float *bias, *scale, *shift;
    int cols;
    int x_bytes; // of a number of x
    bool relu;
    bool in_f32; // out and residual are f32, else numbers of T
    bool plain;  // none of residual, bias, scale, shift, relu
    bool wide;   // out's rows are aligned to 16 bytes and cols is a multiple of 8
};

// Of the product of a convolution, sparse or of points.
template <class Args> epilogue_params epilogue_of(const Args *args)
{
    epilogue_params e = {};
    const spops_matrix &out = args->out, &residual = args->residual;
    e.out = out.data;
    e.residual = residual.data;
    e.out_stride = out.row_stride;
    e.residual_stride = residual.row_stride;
    e.bias = args->bias;
    e.scale = args->scale;
    e.shift = args->shift;
    e.cols = (int)out.cols;
    e.x_bytes = (int)spops_dtype_bytes(args->x.dtype);
    e.relu = args->relu;
    e.in_f32 = out.dtype == SPOPS_DTYPE_F32;
    e.plain = residual.data == nullptr && args->bias == nullptr && args->scale == nullptr &&
              args->shift == nullptr && !args->relu;
    e.wide = (uintptr_t)out.data % 16 == 0 && out.cols % 8 == 0 &&
             out.row_stride * spops_dtype_bytes(out.dtype) % 16 == 0;
    return e;
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

// (a + bias) * scale + shift + residual, relu, of one number.
template <class T>
__device__ __forceinline__ float finished(const epilogue_params &p, float a, int row, int col)
{
    if (p.bias != nullptr) a += __ldg(p.bias + col);
    if (p.scale != nullptr) a *= __ldg(p.scale + col);
    if (p.shift != nullptr) a += __ldg(p.shift + col);
    if (p.residual != nullptr) {
        const int64_t at = row * p.residual_stride + col;
        a += p.in_f32 ? static_cast<const float *>(p.residual)[at]
                      : number_of<T>(static_cast<const T *>(p.residual)[at]);
    }
    // A NaN stays one.
    if (p.relu && a < 0.0f) a = 0.0f;
    return a;
}

// sum[4 j + 2 h + i] is row row[h] (-1: none), column col + 8 j + 2 q + i. All four lanes of a row
// must come here.
template <class T, int COLS>
__device__ __forceinline__ void store_sums(const epilogue_params &p, float (&sum)[COLS / 2],
                                           const int (&row)[2], int col, int q)
{
    if (!p.plain) {
#pragma unroll
        for (int j = 0; j < COLS / 8; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int c = col + 8 * j + 2 * q + e % 2;
                if (row[e / 2] >= 0 && c < p.cols)
                    sum[4 * j + e] = finished<T>(p, sum[4 * j + e], row[e / 2], c);
            }
    }
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
                    if (row[h] >= 0 && c < p.cols)
                        *reinterpret_cast<uint4 *>(out + c) = make_uint4(v[0], v[1], v[2], v[3]);
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
